"""Words about a kind of loss: every place calls the loss by its own name."""

import pytest

from normscope.loss_kinds import KINDS, MEANINGS, OTHER, SURVIVES
from normscope.loss_kinds.meaning import Meaning
from normscope.monitor import CriticalRate, Landscape
from normscope.stability.wording import stability_verdict


def _texts(loss_kind: str) -> dict[str, str]:
    """The text of each place about a learning rate that raises the loss."""
    critical = CriticalRate("optimizer", 0.5, 0.4, 0.6, 0.1, 8)
    landscape = Landscape(
        lr=0.1, loss=1.0, grad_norm=1.0, factors=(1.0,), losses=(2.0,), changes=(0.1,), cosines=(0.5,)
    )
    verdict = stability_verdict(
        0.2, 0.1, loss_kind=loss_kind, rule="", source="", residual=0.0, converged=True
    )  # fmt: skip
    return {
        "critical rate": critical.verdicts(loss_kind)[0].text,
        "landscape": landscape.verdicts(loss_kind)[0].text,
        "verdict": verdict.text,
    }


def test_every_known_kind_has_a_meaning():
    assert set(KINDS) == set(MEANINGS)


@pytest.mark.parametrize("place", ["critical rate", "landscape", "verdict"])
def test_a_new_kind_that_survives_is_called_by_its_name(place, monkeypatch):
    monkeypatch.setitem(MEANINGS, "huber", Meaning("the Huber loss", SURVIVES))
    assert (
        "With the Huber loss, networks with BatchNorm survive far above eta*, "
        "but may learn badly from eta* on; those without may fail below it." in _texts("huber")[place]
    )
    assert "depend" in _texts(OTHER)[place]
    assert "survives" not in _texts("squared")[place]
