"""Set a plan's number of threads and precision while it is computed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from normscope.sweeping.plan import Plan


@contextmanager
def numerics(plan: Plan, device: torch.device) -> Iterator[None]:
    """Set the plan's number of threads and precision; the former ones are put back at the end."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        if device.type == "cpu":
            torch.set_num_threads(plan.threads)
        else:
            torch.set_float32_matmul_precision("high" if plan.tf32 else "highest")
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
