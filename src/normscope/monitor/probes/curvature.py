r"""Curvature in the `Monitor`: lambda_max as trained, eta* of the optimizer, and what its learning rate means.

Every snapshot after the first starts the search from the remembered eigenvectors of the last one (12 vectors of the
parameters' size). It takes 3 to 12 products, where a fresh start takes 8 to 20; more of both where a step moves the
matrix far. A product costs up to two gradients, so a snapshot costs as much as 3 to 40 training steps. The Monitor's
budget spaces them.
"""

import math
from dataclasses import dataclass
from typing import Any

from normscope.curvature.eigensolvers.lanczos import KEPT_PAIRS, Memory
from normscope.curvature.eigensolvers.solver import Solver
from normscope.curvature.operators.loss_of_outputs import own_loss_of
from normscope.curvature.session.opening import open_session
from normscope.curvature.session.options import Options
from normscope.curvature.session.session import requiring_grad
from normscope.isolation.memory_bound import bytes_of
from normscope.messages.choices import check_choice
from normscope.monitor.snapshot import Snapshot, as_vector
from normscope.stability.optimizer_limits import Limit, momentum_limit, optimizer_limit
from normscope.stability.verdict import Verdict
from normscope.stability.wording import stability_verdict

_SOURCE = "curvature of this batch, as trained"


@dataclass(frozen=True)
class Curvature:
    """lambda_max of `matrix` with its relative residual; eta* of the optimizer by `rule`.

    Attributes:
        matrix: "ggn", "hessian" or "fisher".
        lambda_max: the largest eigenvalue, one over a learning rate.
        residual: the relative residual of the eigenvalue; no unit.
        converged: whether the residual has reached the tolerance.
        products: number of products with the matrix.
        eta_star: the stability limit, a learning rate.
        rule: the formula of eta_star.
        lr: the largest learning rate of the optimizer's groups, nan without an optimizer.
        reason: the reason where there is no eta*, which is nan then.
        preconditioned: whether lambda_max is that of the matrix preconditioned by the optimizer, which is another
            number and has a column of its own.
    """

    matrix: str
    lambda_max: float
    residual: float
    converged: bool
    products: int
    eta_star: float
    lr: float
    rule: str
    reason: str
    preconditioned: bool = False

    def summary(self) -> dict[str, float]:
        names = ("lambda_max", "lambda_preconditioned")
        values = {names[self.preconditioned]: self.lambda_max, names[not self.preconditioned]: math.nan}
        return {name: values[name] for name in names} | {"lambda_residual": self.residual, "eta_star": self.eta_star}

    def by_layer(self) -> dict[str, dict[str, float]]:
        return {}

    def verdicts(self, loss_kind: str) -> list[Verdict]:
        if self.reason:
            return [Verdict("learning rate", None, self.reason, self.rule, _SOURCE)]
        if math.isnan(self.lr):
            return []
        doubt: dict[str, Any] = {"residual": self.residual, "converged": self.converged}
        return [stability_verdict(self.lr, self.eta_star, loss_kind=loss_kind, rule=self.rule, source=_SOURCE, **doubt)]


class CurvatureProbe:
    """The probe of `Curvature` of the batch, as trained; it starts from the eigenvectors of the last snapshot.

    Args:
        matrix: "ggn" or "hessian". A Monitor without loss_fn knows no outputs, and takes the Hessian.
        solver: settings of the eigenvalue search; by default at most 50 products, so that one snapshot stays short.
    """

    name = "curvature"
    forward_only = False

    def __init__(self, matrix: str = "ggn", *, solver: Solver | None = None) -> None:
        check_choice("matrix", matrix, ("ggn", "hessian"))
        self.matrix = matrix
        self._solver = solver or Solver(max_products=50)
        self._last: Memory | None = None

    def measure(self, snapshot: Snapshot) -> Curvature:
        gradient = as_vector(snapshot.gradient)
        limit, reason = self._limit(snapshot)
        task, outer = snapshot.at.task, snapshot.at.lent
        snapshot.at.move_to(snapshot.theta)
        outer.reset()
        loss_fn = task.objective.loss_fn or own_loss_of
        matrix = "hessian" if task.objective.loss_fn is None else self.matrix
        remembered = self._last if self._last is not None and self._last.vectors.shape[1] == gradient.numel() else None
        batches = [task.objective.parts(snapshot.at.batch)]
        options = Options(
            call=task.objective.outputs,
            processes=task.processes,
            limit=limit,
            solver=self._solver,
            max_memory=task.max_memory,
        )
        with (
            requiring_grad(outer, range(len(outer.leaves))),
            open_session(
                task.model,
                loss_fn,
                batches,
                only=set(map(id, outer.leaves)),
                beside=outer.size + bytes_of(snapshot.at.batch),
                options=options,
            ) as session,
        ):
            gradient = gradient.to(session.lent.leaves[0].dtype)
            ritz, _ = session.search("batch", matrix, memory=remembered, gradient=gradient, keep=KEPT_PAIRS)
            outer.forwards += session.lent.forwards
            outer.backwards += session.lent.backwards
        self._last = ritz.memory
        top = ritz.values[0]
        return Curvature(
            matrix=matrix,
            lambda_max=top,
            residual=ritz.residuals[0],
            converged=ritz.converged,
            products=ritz.products,
            eta_star=math.nan if reason else (limit.factor / top if top > 0 else math.inf),
            lr=_rate(snapshot),
            rule=limit.rule,
            reason=reason,
            preconditioned=limit.inverse is not None,
        )

    @staticmethod
    def _limit(snapshot: Snapshot) -> tuple[Limit, str]:
        """The optimizer's limit; where it has no limit, or none yet, that of gradient descent and the reason."""
        if snapshot.optimizer is None:
            return momentum_limit(), ""
        try:
            return optimizer_limit(snapshot.optimizer, snapshot.at.lent.originals), ""
        except ValueError as error:
            return momentum_limit(), str(error)


def _rate(snapshot: Snapshot) -> float:
    try:
        return max(snapshot.rates)
    except ValueError:
        return math.nan
