"""The order of batches, and the augmentation against a loop over single images."""

from itertools import islice

import pytest
import torch

from normscope.data import batches, crop_and_flip


@pytest.fixture
def xy():
    x = torch.arange(10.0)
    return x, x.long() * 3


def order(x, y, **options):
    return [xb.tolist() for xb, _ in batches(x, y, **options)]


def test_inputs_and_targets_stay_together_and_an_epoch_sees_each_once(xy):
    seen = []
    for xb, yb in batches(*xy, batch_size=3, seed=0, epochs=1, drop_last=False):
        assert torch.equal(yb, xb.long() * 3)
        seen += xb.tolist()
    assert sorted(seen) == xy[0].tolist()


def test_drop_last(xy):
    assert [len(b) for b in order(*xy, batch_size=4, seed=0, epochs=2)] == [4, 4, 4, 4]
    assert [len(b) for b in order(*xy, batch_size=4, seed=0, epochs=2, drop_last=False)] == [4, 4, 2, 4, 4, 2]
    assert [len(b) for b in order(*xy, batch_size=5, seed=0, epochs=1)] == [5, 5]


def test_each_epoch_has_a_fresh_order(xy):
    first, second = order(*xy, batch_size=5, seed=0, epochs=2)[::2]
    assert first != second


def test_seed_fixes_the_order_whatever_the_global_state(xy):
    torch.manual_seed(1)
    one = order(*xy, batch_size=3, seed=7, steps=20)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert order(*xy, batch_size=3, seed=7, steps=20) == one
    assert torch.equal(torch.get_rng_state(), state)
    assert order(*xy, batch_size=3, seed=8, steps=20) != one


def test_order_is_pinned(xy):
    """A change of this order changes every trained number: it belongs into the changelog."""
    assert order(*xy, batch_size=5, seed=0, epochs=1) == [[3.0, 7.0, 5.0, 2.0, 0.0], [8.0, 1.0, 6.0, 9.0, 4.0]]


def test_steps_epochs_and_endless_agree(xy):
    endless = [b.tolist() for b, _ in islice(batches(*xy, batch_size=5, seed=0), 6)]
    assert order(*xy, batch_size=5, seed=0, steps=6) == endless
    assert order(*xy, batch_size=5, seed=0, epochs=3) == endless
    assert order(*xy, batch_size=5, seed=0, steps=0) == order(*xy, batch_size=5, seed=0, epochs=0) == []


@pytest.mark.parametrize("size", [10, 11])
def test_full_batch_is_the_set_itself(xy, size):
    found = list(batches(*xy, batch_size=size, seed=0, epochs=3))
    assert len(found) == 3
    assert all(xb is xy[0] and yb is xy[1] for xb, yb in found)


def test_augmentation_is_reproducible_and_does_not_move_the_order(xy):
    def noisy(x, generator):
        return x + torch.rand(x.shape, generator=generator) / 2

    plain = order(*xy, batch_size=3, seed=7, steps=9)
    one = order(*xy, batch_size=3, seed=7, steps=9, augment=noisy)
    assert one == order(*xy, batch_size=3, seed=7, steps=9, augment=noisy)
    assert one != plain
    assert [[float(int(v)) for v in b] for b in one] == plain


def test_augmentation_of_the_full_batch_differs_from_step_to_step():
    x, y = torch.randn(6, 1, 5, 5, generator=torch.Generator().manual_seed(0)), torch.arange(6)
    (one, _), (two, _) = batches(x, y, batch_size=6, seed=0, steps=2, augment=crop_and_flip)
    assert not torch.equal(one, two)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ({"batch_size": 2, "steps": 1, "epochs": 1}, "steps or epochs, not both"),
        ({"batch_size": 2, "steps": -1}, "steps must not be negative; got -1"),
        ({"batch_size": 2, "epochs": -1}, "epochs must not be negative; got -1"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(xy, options, message):
    with pytest.raises(ValueError, match=message):
        batches(*xy, seed=0, **options)


def test_unequal_or_empty_tensors_are_refused(xy):
    with pytest.raises(ValueError, match="got 10 and 9"):
        batches(xy[0], xy[1][:9], batch_size=2, seed=0)
    with pytest.raises(ValueError, match="at least one; got 0 and 0"):
        batches(xy[0][:0], xy[1][:0], batch_size=2, seed=0)


def slow_crop_and_flip(x, generator, pad):
    """Image by image: pad, cut, mirror; the draws in the documented order (tops, lefts, flips)."""
    n, c, h, w = x.shape
    shifts = torch.randint(2 * pad + 1, (2, n), generator=generator).tolist()
    flips = torch.randint(2, (n,), generator=generator).tolist()
    out = []
    for image, top, left, flip in zip(x, *shifts, flips, strict=True):
        padded = torch.zeros(c, h + 2 * pad, w + 2 * pad, dtype=x.dtype)
        padded[:, pad : pad + h, pad : pad + w] = image
        crop = padded[:, top : top + h, left : left + w]
        out.append(torch.flip(crop, (2,)) if flip else crop)
    return torch.stack(out)


@pytest.mark.parametrize("pad", [0, 1, 4])
@pytest.mark.parametrize("shape", [(64, 3, 8, 6), (1, 1, 5, 5)])
def test_crop_and_flip_equals_a_loop_over_images(shape, pad):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    fast = crop_and_flip(x, torch.Generator().manual_seed(1), pad=pad)
    assert torch.equal(fast, slow_crop_and_flip(x, torch.Generator().manual_seed(1), pad))
    assert torch.equal(x, before)
    assert fast.is_contiguous()


def test_crop_and_flip_draws_every_shift_and_half_the_flips():
    """One bright pixel off the middle: where it lands says which shift and flip were drawn."""
    n = 20_000
    x = torch.zeros(n, 1, 12, 12)
    x[:, 0, 5, 4] = 1
    landed = crop_and_flip(x, torch.Generator().manual_seed(0)).flatten(1).argmax(1)
    rows, columns = landed // 12, landed % 12
    # a shift of -4..4 moves the pixel to row 1..9; column 4 to 0..8, or mirrored to 3..11
    assert torch.bincount(rows, minlength=12).nonzero().flatten().tolist() == list(range(1, 10))
    assert (torch.bincount(rows, minlength=10)[1:10] / n - 1 / 9).abs().max() < 5 * (8 / 81 / n) ** 0.5
    # columns 0..2 are reached without a flip only, 9..11 with one only: 3/18 each
    for side in (columns < 3, columns > 8):
        assert abs(side.float().mean().item() - 1 / 6) < 5 * (5 / 36 / n) ** 0.5


def test_crop_and_flip_takes_images_only():
    with pytest.raises(ValueError, match=r"got shape \(3, 4\)"):
        crop_and_flip(torch.zeros(3, 4), torch.Generator())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_order_and_augmentation_are_the_same_on_the_device():
    x, y = torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(20)
    options = {"batch_size": 6, "seed": 3, "steps": 7, "augment": crop_and_flip}
    pairs = zip(batches(x, y, **options), batches(x.cuda(), y.cuda(), **options), strict=True)
    for (x_host, y_host), (x_device, y_device) in pairs:
        assert x_device.is_cuda
        assert torch.equal(x_host, x_device.cpu())
        assert torch.equal(y_host, y_device.cpu())
