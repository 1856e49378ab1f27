"""Two processes with a part of the batch each equal one process with the whole."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from normscope.norms import BatchNorm2d, make_norm


def whole_batch():
    return 3 * torch.randn(10, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1


def cotangent():
    return torch.randn(10, 3, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def run(layer, x, g):
    """Output, first gradients, and a second derivative, as one process sees them."""
    x = x.clone().requires_grad_()
    y = layer(x)
    grads = torch.autograd.grad((y.sin() * g).sum(), (x, *layer.parameters()), create_graph=True)
    (second,) = torch.autograd.grad((grads[0] * g).sum(), x)
    return [t.detach() for t in (y, *grads, second)]


def rank_main(rank, rows, name, momentum, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=len(rows))
    layer = make_norm(name, 3, dim=2, gamma=1.5, sync=True, momentum=momentum, dtype=torch.float64)
    start = sum(rows[:rank])
    part = slice(start, start + rows[rank])
    found = run(layer, whole_batch()[part], cotangent()[part])
    for parameter_grad in found[2:4]:
        dist.all_reduce(parameter_grad)
    torch.save((found, dict(layer.named_buffers())), os.path.join(folder, f"{rank}.pt"))
    dist.barrier()
    os._exit(0)  # A usual exit may abort: a thread of gloo waits for an interpreter that is gone.


@pytest.mark.parametrize(
    ("rows", "momentum"),
    [
        ((4, 6), 0.1),
        pytest.param((9, 1), None, marks=pytest.mark.slow),
        pytest.param((10, 0), 0.1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", ["batch", *(pytest.param(p, marks=pytest.mark.slow) for p in ("l1", "l2", "linf"))])
def test_parts_equal_the_whole(tmp_path, rows, momentum, name):
    mp.spawn(rank_main, args=(rows, name, momentum, str(tmp_path)), nprocs=len(rows))
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(len(rows))]
    alone = make_norm(name, 3, dim=2, gamma=1.5, momentum=momentum, dtype=torch.float64)
    y, grad_x, grad_w, grad_b, second = run(alone, whole_batch(), cotangent())
    for index, expected in ((0, y), (1, grad_x), (4, second)):
        together = torch.cat([found[index] for found, _ in parts])
        assert (together - expected).abs().max() <= 1e-12 * max(1.0, expected.abs().max())
    for found, buffers in parts:
        for ours, expected in ((found[2], grad_w), (found[3], grad_b)):
            assert (ours - expected).abs().max() <= 1e-12 * max(1.0, expected.abs().max())
        for key, expected in alone.named_buffers():
            assert (buffers[key].double() - expected.double()).abs().max() <= 1e-12, key


def test_without_a_process_group_it_is_plain_batch_norm():
    x = whole_batch()
    layer = BatchNorm2d(3, sync=True, dtype=torch.float64)
    assert torch.equal(layer(x), BatchNorm2d(3, dtype=torch.float64)(x))
    assert "sync=True" in repr(layer)
