"""Memory between products: addresses of the CPU's alone, whatever else is set, and only while they are asked for."""

import weakref

import pytest
import torch

from normscope.curvature.eigensolvers import heap_trimming


def test_one_block_is_held_inside_and_none_after(monkeypatch):
    made: list[weakref.ref[torch.UntypedStorage]] = []
    block = heap_trimming._block

    def seen() -> torch.UntypedStorage:
        found = block()
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(heap_trimming, "_block", seen)
    with heap_trimming.untrimmed_heap(torch.device("cpu")):
        assert [ref() is None for ref in made] == [True] * heap_trimming._BLOCKS + [False]
    assert all(ref() is None for ref in made)
    with pytest.raises(KeyError) as kept, heap_trimming.untrimmed_heap(torch.device("cpu")):
        raise KeyError
    assert kept.tb is not None
    assert all(ref() is None for ref in made)


def test_nothing_is_filled_or_made_on_another_device():
    filled = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with torch.device("meta"):
            block = heap_trimming._block()
    finally:
        torch.use_deterministic_algorithms(filled)
    assert block.device.type == "cpu"
    seen = torch.empty(0, dtype=torch.uint8).set_(block)
    # Deterministic algorithms fill bytes with their largest value.
    assert not (seen == 255).all()


def test_without_so_many_addresses_products_go_on(monkeypatch):
    def refused() -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(heap_trimming, "_block", refused)
    with heap_trimming.untrimmed_heap(torch.device("cpu")):
        pass
