"""Refusal of losses that do not fit their outputs or targets, with a next step."""

from normscope.loss_kinds import FLAT, LossKind


def refuse_flat(kind: LossKind, matrix: str) -> None:
    """Raise where the loss is the same whatever the outputs."""
    if kind == FLAT and matrix != "hessian":
        raise ValueError(
            "The loss does not change with the outputs: they do not fit each other, or all targets of this batch are "
            "ignored. Cross-entropy over one class is 0 always; for one logit a sample use "
            "binary_cross_entropy_with_logits, for numbers a squared error."
        )


def refuse_impossible(kind: LossKind, matrix: str, lambda_max: float) -> None:
    """Raise where the largest eigenvalue is no number to take a learning rate from; a Hessian's may be negative."""
    if matrix == "hessian":
        return
    if lambda_max < 0 or (lambda_max == 0 and not kind.convex):
        raise ValueError(
            f"The largest eigenvalue found of the Gauss-Newton matrix is {lambda_max:.3g}: the loss bends down in the "
            "outputs, so its quadratic limits no learning rate. If it is to be maximized, hand in its negative; "
            "else ask for matrix='hessian'."
        )
    if lambda_max == 0:
        raise ValueError(
            "No output changes with the parameters to first order, as where all units are dead or all weights zero: "
            "lambda_max is 0 and limits no learning rate. Measure at another start, or after some steps."
        )
