"""Small networks to measure, the verbs that measure them, and what must be the same afterwards."""

import contextlib
import random
import signal
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo import eval_frame
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils import checkpoint

import normscope as ns
from normscope.isolation.one_at_a_time import turn
from normscope.norms._constant_statistics import held

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (8,), generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(2))
LABELS = torch.randint(3, (4,), generator=torch.Generator().manual_seed(3))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.1))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(checkpoint.checkpoint(self.inner, x.requires_grad_(), use_reentrant=True))


def networks():
    """Each with its batch, and an optimizer that holds its parameters and has gradients to look along."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.1), nn.Linear(6, 3))
    images = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    found = []
    for model, batch in ((dense, (X, Y)), (images, (IMAGES, LABELS)), (Checkpointed(), (X, Y))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        F.cross_entropy(model(batch[0].clone()), batch[1]).backward()
        found.append((model, batch, optimizer))
    return found


def light(model, batch, optimizer, loss):
    monitor = ns.Monitor(model, loss, every=1, budget=None, measure="light", on_error="raise")
    monitor.step(*batch, optimizer)


def full(model, batch, optimizer, loss):
    monitor = ns.Monitor(model, loss, every=1, budget=None, measure="full", on_error="raise")
    monitor.step(*batch, optimizer)


def measured(stats):
    def verb(model, batch, optimizer, loss):
        return ns.measure(model, loss, batch, stats=stats, hessian=False, solver=ns.curvature.Solver(most=3)).lambda_max

    return verb


def bounded(model, batch, optimizer, loss):
    model.train()  # Not in `no_grad`: a signal between its two lines would leave a trace of this script.
    with contextlib.suppress(ValueError):
        ns.bounds.check_network(model, loss, batch, units=1)


VERBS = {
    "light": light,
    "full": full,
    "batch": measured("batch"),
    "frozen": measured("frozen"),
    "running": measured("running"),
    "bounds": bounded,
}
_NAMES = [(torch, n) for n in ("batch_norm", "relu", "conv1d", "conv2d", "conv3d", "_weight_norm")]
_NAMES += [(F, n) for n in ("conv1d", "conv2d", "conv3d")] + [(checkpoint, "CheckpointFunction")]
_NAMES += [(dist, "all_reduce"), (dist, "all_gather"), (nn.Module, "__call__")]
_PRECISION = [("generic", "all"), *(("mkldnn", kind) for kind in ("all", "matmul", "conv", "rnn"))]


def process_state():
    """All that belongs to the process and not to a model."""
    return {
        "names": [id(vars(home)[name]) for home, name in _NAMES],
        "stance": eval_frame._stance.stance,
        "generators": [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state(legacy=False))],  # noqa: NPY002
        "modes": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")],
        "forward mode": forward_ad._current_level,
        "held": held(),
        "hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "attention": [torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()],
        "precision": [torch._C._get_fp32_precision_getter(*setting) for setting in _PRECISION],
        "handlers": [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGALRM, signal.SIGUSR1)],
        "turn": (turn._depth, turn._thread),
    }


def model_state(model, optimizer):
    """Identities of what the modules hold, and versions and values of their tensors."""
    found = []
    for module in model.modules():
        attributes = vars(module)
        for holder in (attributes, *(v for v in attributes.values() if isinstance(v, dict))):
            found.append([(key, id(value)) for key, value in holder.items()])
    tensors = [*model.parameters(), *model.buffers()]
    found.append([(t._version, t.sum().item(), None if t.grad is None else t.grad.sum().item()) for t in tensors])
    found.append([id(p) for group in optimizer.param_groups for p in group["params"]])
    return found


def differences(before, after):
    return [key for key in before if before[key] != after[key]]


def quiet():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
