"""Two processes under DDP: watched as alone, bit for bit; they measure together, fail together, and find one number."""

from dataclasses import replace

import pytest
from exact import NETWORKS, Cell, flat
from exact_processes import pure_batch, pure_network, snapshots, two_processes
from torch.nn import functional as F

from normscope.norms import NORM_NAMES

SHORT = Cell("tiny", "batch", steps=4, every=2)


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("part", [0, 1])
def test_every_normalizer(tmp_path, network, part):
    names = NORM_NAMES[part::2]
    kinds = ("sgd", "adamw")
    jobs = [("bit_exact", {"cell": Cell(network, n, kinds[i % 2])}) for i, n in enumerate(names)]
    found = two_processes(tmp_path, jobs)
    assert dict(zip(names, found, strict=True)) == {name: [[], []] for name in names}


@pytest.mark.slow
def test_synced_normalizers(tmp_path):
    names = ("batch", "l1", "l2", "linf", "noisy")
    found = two_processes(tmp_path, [("bit_exact_with_synced_norms", {"cell": replace(SHORT, norm=n)}) for n in names])
    assert dict(zip(names, found, strict=True)) == {name: [[], []] for name in names}


OPTIONS = {
    "plain": {},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "views": {"gradient_as_bucket_view": True},
    "all": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
}


# Of the session: a worker may do tests of other files in between.
@pytest.fixture(scope="session")
def together(tmp_path_factory):
    """All that is quick, in one pair of processes."""
    jobs = {
        name: ("bit_exact", {"cell": SHORT, "options": options, "unused": "find_unused_parameters" in options})
        for name, options in OPTIONS.items()
    }
    jobs |= {
        "noisy": ("bit_exact", {"cell": replace(SHORT, norm="noisy")}),
        "accumulated": ("bit_exact", {"cell": replace(SHORT, accumulate=2, clip=True, optimizer="adamw")}),
        "synced": ("bit_exact_with_synced_norms", {"cell": SHORT}),
        "one raises": ("one_raises", {"cell": SHORT, "sync": False}),
        "one raises, synced": ("one_raises", {"cell": SHORT, "sync": True}),
        "budget": ("with_a_budget", {"cell": replace(SHORT, steps=20)}),
        "measured none": ("measured", {"norm": "none"}),
        "measured batch": ("measured", {"norm": "batch"}),
    }
    return dict(zip(jobs, two_processes(tmp_path_factory.mktemp("ddp"), list(jobs.values())), strict=True))


@pytest.mark.xdist_group("ddp")
@pytest.mark.parametrize("name", [*OPTIONS, "noisy", "accumulated", "synced"])
def test_watched_as_alone(together, name):
    assert together[name] == [[], []]


@pytest.mark.xdist_group("ddp")
@pytest.mark.parametrize("name", ["one raises", "one raises, synced"])
def test_where_one_raises_both_go_on(together, name):
    first, second = together[name]
    for found in (first, second):
        assert found["wrong"] == []
        assert found["unaffected"]
        assert found["snapshots"] == first["snapshots"]
    assert first["errors"].keys() == second["errors"].keys()
    for where, text in second["errors"].items():
        assert text == f"RuntimeError: planted {where.removeprefix('breaks ')}"
        expected = "ValueError: planted in both" if where == "breaks after" else "FailedElsewhere"
        assert first["errors"][where].startswith(expected)


@pytest.mark.xdist_group("ddp")
def test_a_budget_is_kept_together(together):
    (wrong, steps, put_off), (wrong_there, steps_there, put_off_there) = together["budget"]
    assert wrong == wrong_there == []
    assert steps == steps_there
    assert len(steps) == 2
    assert put_off == put_off_there > 0


@pytest.mark.xdist_group("ddp")
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_numbers_are_those_of_one_process_on_the_mean_loss(together, norm):
    """Each half with its own batch statistics, as DDP trains."""
    halves = [pure_batch(rank) for rank in range(2)]

    def mean_loss(model, batch):
        return sum(F.cross_entropy(model(x), y) for x, y in batch) / 2

    alone = snapshots(pure_network(norm), halves, forward=mean_loss)
    for found in together[f"measured {norm}"]:
        for ours, theirs in zip(found, alone, strict=True):
            a, b = ({k: v for k, v in flat("", result) if "rerun" not in k} for result in (ours, theirs))
            assert a.keys() == b.keys()
            for name, value in a.items():
                exact = isinstance(value, str) or " keys" in name or name.endswith("layers")
                assert value == (b[name] if exact else pytest.approx(b[name], rel=1e-9, abs=1e-12)), name
