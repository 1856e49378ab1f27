"""Curvature through outputs of any form: several tensors, mappings, losses that the model computes itself."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import Setup, measure
from normscope.curvature import Network, Solver
from normscope.curvature.operators.loss_of_outputs import NoOutputs
from normscope.isolation.lending import untouched

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(10, 4, generator=GENERATOR, dtype=torch.float64)
Y = torch.arange(10) % 3


@dataclass
class Unknown:
    """An output of a class that torch cannot look into."""

    loss: Tensor
    logits: Tensor
    part: Tensor


class Foreign(nn.Module):
    """Predictions and a code; with labels a loss of its own."""

    def __init__(self, form: str = "mapping", extra: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.code, self.norm, self.head = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.form, self.extra = form, extra
        self.double()

    def forward(self, x: Tensor, labels: Tensor | None = None):
        code = torch.tanh(self.norm(self.code(x)))
        logits = self.head(code)
        if labels is None:
            return {"logits": logits, "code": code, "count": 3} if self.form == "mapping" else (logits, (code, None))
        loss = F.cross_entropy(logits, labels) + self.extra * code.square().mean()
        if self.form == "object":
            return Unknown(loss, logits, code)
        return {"loss": loss, "logits": logits, "code": code} if self.form == "mapping" else (logits, loss)


def both(outputs, y: Tensor) -> Tensor:
    logits, code = (outputs["logits"], outputs["code"]) if isinstance(outputs, dict) else (outputs[0], outputs[1][0])
    return F.cross_entropy(logits, y) + 0.3 * code.square().mean()


def dense(product, size: int) -> Tensor:
    return torch.stack([product(row) for row in torch.eye(size, dtype=torch.float64)])


def by_hand(model: nn.Module, loss_of) -> Tensor:
    """J^T M J from the Jacobian of all outputs, joined, and the second derivative of the loss with respect to them."""
    parameters = dict(model.named_parameters())
    fixed = {name: b.clone() for name, b in model.named_buffers()}

    def outputs(values: tuple[Tensor, ...]) -> Tensor:
        state = dict(zip(parameters, values, strict=True)) | {name: b.clone() for name, b in fixed.items()}
        found = torch.func.functional_call(model, state, (X,))
        logits, code = (found["logits"], found["code"]) if isinstance(found, dict) else (found[0], found[1][0])
        return torch.cat([logits.reshape(-1), code.reshape(-1)])

    values = tuple(p.detach() for p in parameters.values())
    parts = torch.autograd.functional.jacobian(lambda *v: outputs(v), values)
    jacobian = torch.cat([part.flatten(1) for part in parts], 1)
    middle = torch.autograd.functional.hessian(loss_of, outputs(values))
    return jacobian.T @ middle @ jacobian


def of_joined(z: Tensor) -> Tensor:
    return F.cross_entropy(z[:30].view(10, 3), Y) + 0.3 * z[30:].square().mean()


@pytest.mark.parametrize("form", ["mapping", "tuple"])
def test_several_outputs_have_the_matrix_of_all_that_the_loss_reads(form):
    model = Foreign(form)
    with untouched(model) as lent:
        network = Network(lent, model, both, (X, Y), stats="batch")
        found = dense(network.product("ggn"), network.size)
    torch.testing.assert_close(found, by_hand(model, of_joined), rtol=1e-9, atol=1e-12)
    top = float(torch.linalg.eigvalsh(found)[-1])
    assert measure(model, both, (X, Y), solver=Solver(tol=1e-8), hessian=False).lambda_max == pytest.approx(
        top, rel=1e-8
    )


@pytest.mark.parametrize("form", ["mapping", "tuple", "object"])
@pytest.mark.parametrize("stats", ["batch", "frozen", "running"])
def test_a_loss_of_the_models_own_has_the_curvature_of_the_same_loss_outside(form, stats):
    model = Foreign(form)
    outside = Foreign("mapping")
    batch = {"x": X, "labels": Y}
    found = measure(model, None, batch, stats=stats, solver=Solver(tol=1e-8), hessian=False)
    same = measure(
        outside,
        lambda o, y: F.cross_entropy(o["logits"], y),
        batch,
        stats=stats,
        solver=Solver(tol=1e-8),
        hessian=False,
    )
    assert found.matrix == "ggn"
    assert found.lambda_max == pytest.approx(same.lambda_max, rel=1e-7)
    assert found.loss == pytest.approx(same.loss, rel=1e-12)
    assert found.loss_name == "the model's own loss"


@pytest.mark.parametrize(
    "options",
    [{"forward": lambda model, batch: F.cross_entropy(model(batch["x"])["logits"], batch["labels"])}, {"extra": 0.5}],
    ids=["forward gives the loss alone", "a part of the loss passes by the logits"],
)
def test_a_loss_that_is_no_function_of_the_outputs_has_a_hessian(options):
    model = Foreign("mapping", extra=options.pop("extra", 0.0))
    batch = {"x": X, "labels": Y}
    found = measure(model, None, batch, solver=Solver(tol=1e-8), hessian=False, **options)
    assert found.matrix == "hessian"
    assert any(note.startswith("The matrix is the Hessian.") for note in found.notes)
    expected = measure(model, None, batch, matrix="hessian", solver=Solver(tol=1e-8), hessian=False, **options)
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-7)
    with pytest.raises(NoOutputs, match="matrix='hessian'"):
        measure(model, None, batch, matrix="ggn", **options)


def test_a_setup_is_measured_as_its_parts_are():
    model = Foreign()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    setup = Setup(model, both, [(X, Y), (X.flip(0), Y)], sgd)
    found = measure(setup, hessian=False)
    parts = measure(model, both, [(X, Y), (X.flip(0), Y)], optimizer=sgd, hessian=False)
    assert (found.lambda_max, found.eta_star) == (parts.lambda_max, parts.eta_star)
    assert found.factor == pytest.approx(3.8)


class Strided(nn.Module):
    """A GroupNorm on an input that is not contiguous, of which torch has no forward mode: it raises a RuntimeError."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.n, self.b = nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.n(self.a(x).transpose(1, 2).unflatten(2, (3, 2))).flatten(2).mean(2))


def test_a_layer_whose_forward_mode_fails_is_measured_by_reverse_mode():
    x = torch.randn(5, 6, 4, generator=GENERATOR, dtype=torch.float64)
    model = Strided()
    found = measure(model, F.cross_entropy, (x, Y[:5]), solver=Solver(tol=1e-8))
    with untouched(model) as lent:
        network = Network(lent, model, F.cross_entropy, (x, Y[:5]), stats="batch")
        parts = torch.autograd.functional.jacobian(
            lambda *v: torch.func.functional_call(model, dict(zip(lent.names, v, strict=True)), (x,)),
            tuple(leaf.detach() for leaf in lent.leaves),
        )
        jacobian = torch.cat([part.flatten(2).flatten(0, 1) for part in parts], 1)
        outputs = model(x).detach()
        middle = torch.autograd.functional.hessian(lambda z: F.cross_entropy(z, Y[:5]), outputs).reshape(15, 15)
        assert network.size == jacobian.shape[1]
    expected = float(torch.linalg.eigvalsh(jacobian.T @ middle @ jacobian)[-1])
    assert found.lambda_max == pytest.approx(expected, rel=1e-7)
    assert any("no forward-mode derivative" in note for note in found.notes)
