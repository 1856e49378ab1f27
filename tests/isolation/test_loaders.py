"""Batches are read without moving what gives them."""

import multiprocessing
import random

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import normscope as ns
from normscope.isolation.batches import is_one_batch, read_batches
from normscope.isolation.loaders import Stream, first_batches

X, Y = torch.arange(24.0).view(12, 2), torch.arange(12)
CPU = torch.device("cpu")


def first(loader: DataLoader) -> Tensor:
    return next(iter(loader))[1]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("given", ["loader", "sampler"])
def test_a_shuffling_loader_gives_the_same_batches_afterwards(own, given):
    def build() -> DataLoader:
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(2) if own else None
        data = TensorDataset(X, Y)
        if given == "loader":
            return DataLoader(data, batch_size=4, shuffle=True, generator=generator)
        return DataLoader(data, batch_size=4, sampler=RandomSampler(data, generator=generator))

    untouched, looked_at = build(), build()
    torch.manual_seed(3)
    expected = [y.tolist() for _, y in untouched], torch.rand(1)
    torch.manual_seed(3)
    states = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002
    assert [len(y) for _, y in first_batches(looked_at, 2)[0]] == [4, 4]
    assert random.getstate() == states[0]
    assert np.random.get_state(legacy=False)["state"]["pos"] == states[1]["state"]["pos"]  # noqa: NPY002
    assert ([y.tolist() for _, y in looked_at], torch.rand(1)) == expected


class Where(Dataset):
    """Says in which process a sample was made."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return multiprocessing.current_process().pid or 0


def test_worker_processes_are_not_started():
    loader = DataLoader(Where(), batch_size=4, num_workers=2, persistent_workers=True, timeout=60)
    (batch,), _ = first_batches(loader, 1)
    assert set(batch.tolist()) == {multiprocessing.current_process().pid}
    assert loader._iterator is None
    assert loader.num_workers == 2


class Counting(IterableDataset):
    def __init__(self) -> None:
        self.given = 0

    def __iter__(self):
        for _ in range(10):
            self.given += 1
            yield float(self.given)


def test_no_more_is_read_than_asked_for():
    dataset = Counting()
    found, note = first_batches(DataLoader(dataset, batch_size=2), 2)
    assert [batch.tolist() for batch in found] == [[1.0, 2.0], [3.0, 4.0]]
    assert dataset.given == 4
    assert "cannot be iterated again" in note


def test_a_stream_gives_what_was_looked_at_and_keeps_no_more():
    stream = Stream(iter(range(5)))
    assert stream.head(2) == [0, 1]
    assert stream.head(1) == [0]
    assert stream.head(3) == [0, 1, 2]
    assert list(stream) == [0, 1, 2, 3, 4]
    assert list(stream) == []
    assert stream.head(1) == []


@pytest.mark.parametrize(
    ("given", "one"),
    [
        ((X, Y), True),
        ([X, Y], True),
        ((X, X, Y), False),
        ({"x": X}, True),
        ([(X, Y)], False),
        ([{"x": X}, {"x": X}], False),
        ([X], False),
        (DataLoader(TensorDataset(X, Y)), False),
    ],
)
def test_one_batch_is_told_from_several(given, one):
    if isinstance(given, tuple) and len(given) == 3:
        one = True
    assert is_one_batch(given) == one


def test_what_was_read_is_said():
    loader = DataLoader(TensorDataset(X, Y), batch_size=2)
    read = read_batches(loader, device=CPU, micro_batch=None, most=None)
    assert len(read.batches) == 4
    assert read.note.startswith("4 batches of the DataLoader were read")
    assert read_batches([(X, Y)] * 6, device=CPU, micro_batch=None, most=None).note == ""
    whole = read_batches((X, Y), device=CPU, micro_batch=5, most=None)
    assert [len(x) for x, _ in whole.batches] == [5, 5, 2]


def test_a_measurement_leaves_a_shuffling_loader_as_it_was():
    def batches() -> DataLoader:
        generator = torch.Generator().manual_seed(0)
        return DataLoader(TensorDataset(X, Y % 2), batch_size=4, shuffle=True, generator=generator)

    model = torch.nn.Linear(2, 2)
    loader, untouched = batches(), batches()
    ns.measure(model, torch.nn.functional.cross_entropy, loader, hessian=False)
    assert first(loader).tolist() == first(untouched).tolist()


def test_a_generator_of_a_wrapped_dataset_is_put_back():
    class Drawing(Dataset):
        def __init__(self):
            self.rng = np.random.default_rng(0)

        def __len__(self):
            return 12

        def __getitem__(self, i):
            return X[i] + self.rng.normal(), Y[i]

    whole = Drawing()
    loader = DataLoader(torch.utils.data.Subset(whole, range(8)), batch_size=4)
    before = whole.rng.bit_generator.state
    first_batches(loader, 2)
    assert whole.rng.bit_generator.state == before
