r"""Lanczos from the vector of an earlier look, and anew where that vector has lost its eigenvalue.

    r = ||A v - theta v|| / |theta|,    theta = v^T A v,  |v| = 1

comes with the first product. At r >= 1 less of A v lies along v than across it: started there, Lanczos took up to seven
products more than afresh (an MLP five to ten steps on; on 14 such points 198 in all, and 178 afresh). So the search
begins anew then, and costs one product more than afresh.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from normscope.curvature.lanczos import Product, Ritz, lanczos

LEAST, LEAST_WARM = 6, 5


def lanczos_from(product: Product, last: Tensor, fresh: Callable[[], Tensor], *, most: int, **options: Any) -> Ritz:
    """As `lanczos`; last: where to start, fresh: where to start instead. Both have a random part."""
    v = last / last.norm()
    image = product(v)
    theta = float(v @ image)
    if most > 1 and float((image - theta * v).norm()) >= abs(theta):
        found = lanczos(product, fresh(), mix=0.0, least=LEAST, most=most - 1, **options)
        return replace(found, products=found.products + 1)
    known = [image]

    def after_the_first(q: Tensor) -> Tensor:
        return known.pop() if known else product(q)

    return lanczos(after_the_first, v, mix=0.0, least=LEAST_WARM, most=most, **options)
