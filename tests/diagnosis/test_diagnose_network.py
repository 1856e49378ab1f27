"""The verb: what it takes, what it refuses, and what it says it looked at."""

import pytest
import torch
from diagnosed import data, network, setup
from torch import nn

import normscope as ns


def test_a_clean_training_has_no_warning():
    found = ns.diagnose(setup())
    assert found.ok, str(found)
    assert found.passes <= 40
    assert found.skipped == {} or set(found.skipped.values()) <= {"there is no optimizer"}


def test_findings_are_sorted_by_severity_then_cost():
    model = network(momentum=0.99)
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    found = ns.diagnose(setup(model))
    severities = [each.severity for each in found.findings]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert found.findings[0].name == "zero-scale-without-skip"
    assert not found.ok


def test_a_network_without_normalizers_is_judged_by_what_remains():
    found = ns.diagnose(setup(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))))
    assert found.looked_at[0] == "a network without normalizers."
    assert found.ok


class BatchAbs(nn.Module):
    """Divides each channel by its mean absolute value over the batch."""

    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return self.gain * x / (x.abs().mean(0) + 1e-5)


def test_a_normalizer_of_no_known_kind_is_named_as_not_judged():
    hidden = [nn.Linear(6, 16), BatchAbs(16), nn.ReLU()]
    found = ns.diagnose(setup(nn.Sequential(*hidden, nn.Linear(16, 3))))
    assert found.looked_at[0] == "no normalizer of a known kind; not judged, and possibly normalizers: 1."
    reason = "it computes a normalization that is none of the known kinds"
    assert f"1 was not judged as a normalizer: {reason}." in found.notes
    beside = nn.Sequential(*hidden, nn.Linear(16, 16), nn.BatchNorm1d(16), BatchAbs(16), nn.Linear(16, 3))
    found = ns.diagnose(setup(beside))
    assert found.looked_at[0] == "1 normalizers (1 BatchNorm1d); not judged, and possibly normalizers: 1 and 1 more."


def test_without_evaluation_batches_it_says_so():
    found = ns.diagnose(setup(eval_batches=None))
    assert any("no evaluation batches" in note for note in found.notes)


def test_one_batch_only_is_said():
    found = ns.diagnose(setup(batches=[data(64)]))
    assert any("one batch only" in note for note in found.notes)


def test_an_unknown_rule_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'momentum-inverted'"):
        ns.diagnose(network(), rules=["momentum-invertd"])
    with pytest.raises(ValueError, match="the id of a rule must be one of"):
        ns.diagnose(network(), rules="NS999")


def test_empty_batches_are_refused():
    with pytest.raises(ValueError, match="batches are empty"):
        ns.diagnose(network(), nn.CrossEntropyLoss(), [])
    with pytest.raises(ValueError, match="evaluation batches are empty"):
        ns.diagnose(network(), nn.CrossEntropyLoss(), [data(64)], eval_batches=[])


def test_sarif_to_a_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="SARIF is one file"):
        ns.diagnose(network()).sarif(tmp_path)


def test_configuration_alone():
    found = ns.diagnose(network(momentum=0.99))
    assert [each.name for each in found.findings] == ["momentum-inverted"]
    assert "there are no batches" in found.skipped.values()


def test_a_state_dict_is_judged_without_data():
    model = network()
    weights = model.state_dict()
    assert ns.diagnose(network(momentum=0.99), weights).at_least("warning")[0].name == "momentum-inverted"
    with pytest.raises(ValueError, match="fits another model"):
        ns.diagnose(model, {"other": torch.zeros(1)})


def test_a_loss_that_varies_is_judged():
    def noisy(outputs, y):
        return nn.functional.cross_entropy(outputs, y) * (1 + 0.1 * torch.rand(()))

    assert ns.diagnose(setup(loss_fn=noisy)).ok


def test_json_holds_every_finding():
    found = ns.diagnose(setup(network(momentum=0.99)))
    stored = found.plain()
    assert (stored["kind"], stored["schema"], stored["ok"]) == ("diagnosis", 1, False)
    assert [each["rule"] for each in stored["findings"]] == [each.rule for each in found.findings]
    assert list(found.frame()["rule"]) == [each.rule for each in found.findings]


def test_the_page_says_each_finding(tmp_path):
    found = ns.diagnose(setup(network(momentum=0.99), eval_batches=None))
    page = found.report(tmp_path / "diagnosis.html").read_text(encoding="utf-8")
    assert all(each.rule in page and each.name in page for each in found.findings)
    assert "not priced" in page
    assert "NS203" in page


def test_rules_that_pass_show_what_they_measured(tmp_path):
    found = ns.diagnose(setup(batch_size=32), rules=["NS201", "NS202", "NS203", "NS204"])
    assert found.findings == ()
    assert found.measured.keys() == {"NS201", "NS202", "NS203", "NS204"}
    assert all(0 <= seen.value < seen.limit for seen in found.measured.values())
    # The mean of 32 independent values has 1/32 of their variance.
    assert found.measured["NS202"].value == pytest.approx(1 / 32, rel=0.1)
    assert "Passed: NS202, variance of a batch's mean / variance = 0.03" in str(found)
    assert found.plain()["measured"]["NS203"]["limit"] == found.measured["NS203"].limit
    assert "distance of evaluation inputs" in found.report(tmp_path / "page.html").read_text(encoding="utf-8")


def test_one_batch_may_be_handed_in_alone():
    found = ns.diagnose(network(), nn.CrossEntropyLoss(), data(64), eval_batches=data(32))
    assert "1 training batches of 64, 1 evaluation batches." in found.looked_at


def test_a_model_that_returns_its_loss_needs_no_loss_fn():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(6, 6), nn.Tanh())])
            for parameter in self.parameters():
                nn.init.constant_(parameter, 0.01)

        def forward(self, x, labels):
            return {"loss": (self.net(x)[:, 0] - labels).square().mean()}

    x, y = data()
    batches = [{"x": a, "labels": b.float()} for a, b in zip(x.split(32), y.split(32), strict=True)]
    model = Own()
    found = ns.diagnose(model, None, batches, torch.optim.SGD(model.parameters(), lr=1e-6))
    assert "gradients-vanish" in [each.name for each in found.findings]


def test_an_untrained_network_without_optimizer_is_no_fault():
    x, y = data()
    assert ns.diagnose(network(), nn.CrossEntropyLoss(), [(3 * x[:64] + 5, y[:64])]).ok


def test_lbfgs_is_judged_by_what_needs_no_training():
    model = network()
    found = ns.diagnose(model, nn.CrossEntropyLoss(), [data(64)], torch.optim.LBFGS(model.parameters()))
    assert "a copy of LBFGS cannot train" in found.skipped.values()
    assert "NS105" in found.rules
