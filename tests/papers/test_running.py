"""Runs add up, resume and stop in time; mistakes are one message."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import normscope as ns
from normscope.cli import app
from normscope.papers import Store, all_entries, all_experiments, judge, pool
from normscope.papers.experiment import Place, Run, compact, numbers
from normscope.papers.running import missing, reproduce

ROOT = Path(__file__).parents[2]


def _store(tmp_path):
    return Store(tmp_path / "results/reproduce")


def test_seeds_accumulate_and_nothing_is_run_twice(tmp_path):
    out, begun = tmp_path / "reproduce", []

    def on_run(job, seconds):
        if seconds is None:
            begun.append(job.seed)

    assert reproduce("gradients", out=out, seeds=2, device="cpu", on_run=on_run)[0].verdict == "not yet run"
    assert begun == [0, 1]
    first = (out / "gradients.json").read_text()
    judged = reproduce("gradients", out=out, device="cpu", on_run=on_run)
    assert begun == [0, 1, 2, 3, 4]
    assert [one.verdict for one in judged] == ["reproduced", "reproduced"]
    assert first.splitlines()[8][:-1] in (out / "gradients.json").read_text()
    assert not list(out.glob("*.new"))


def test_an_interrupted_run_resumes(tmp_path, monkeypatch):
    experiment, made = all_experiments()["decoupling"], []

    def interrupted(settings, seed, place):
        if seed == 2:
            raise KeyboardInterrupt
        made.append(seed)
        return {"error": {}}

    monkeypatch.setitem(experiment.__dict__, "run", interrupted)
    out = tmp_path / "reproduce"
    with pytest.raises(KeyboardInterrupt):
        reproduce("decoupling", out=out, device="cpu")
    assert [run.seed for run in Store(out).runs(experiment, "units", "small")] == [0, 1]
    assert [job.seed for job in missing(["decoupling"], Store(out), "small")] == [2, 3, 4]


def test_a_run_beyond_the_limit_is_given_up_and_what_is_finished_is_kept(tmp_path, monkeypatch):
    experiment = all_experiments()["decoupling"]

    def slow(settings, seed, place):
        for step in range(1000 if seed else 1):
            time.sleep(0.01)
            place.tick(step)
        return {"error": {}}

    monkeypatch.setitem(experiment.__dict__, "run", slow)
    out = tmp_path / "reproduce"
    judged = reproduce("decoupling", out=out, device="cpu", minutes=0.01, yes=True)
    assert {one.verdict for one in judged} == {"not yet run"}
    assert [run.seed for run in Store(out).runs(experiment, "units", "small")] == [0]


@pytest.mark.slow
def test_other_processes_make_the_same_runs(tmp_path):
    for jobs, out in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        reproduce("gradients/formulas", out=out, seeds=2, device="cpu", jobs=jobs)
    curves = [
        [run.curves for run in Store(tmp_path / out).runs(all_experiments()["gradients"], "draws", "small")]
        for out in ("one", "two")
    ]
    assert len(curves[0]) == 2
    assert curves[0] == curves[1]


@pytest.mark.slow
def test_a_run_that_fails_in_another_process_leaves_the_others(tmp_path):
    """A data folder that goes away after it was looked at: the runs raise, and the message names the first."""
    root = tmp_path / "data" / "mnist"
    root.mkdir(parents=True)
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        (root / f"{name}.gz").write_bytes(b"no image")
    out = tmp_path / "reproduce"
    with pytest.raises(pool.RunFailed, match="2 runs failed, the others are kept. trainable-depth, plain, small"):
        reproduce("trainable-depth", "gradients/formulas", out=out, seeds=1, device="cpu", root=root.parent, jobs=2)
    assert len(Store(out).runs(all_experiments()["gradients"], "draws", "small")) == 1


def test_a_changed_plan_has_runs_of_its_own(tmp_path, monkeypatch):
    experiment, store = all_experiments()["gradients"], Store(tmp_path)
    store.add(experiment, "small", Run("draws", 0, {"a": 1.23456789}, 1.0, {}))
    assert store.runs(experiment, "draws", "small")[0].curves == {"a": 1.23457}
    assert store.runs(experiment, "draws", "paper") == []
    monkeypatch.setitem(experiment.__dict__, "settings", {"small": {"draws": 7}, "paper": {"draws": 100}})
    assert store.runs(experiment, "draws", "small") == []
    store.add(experiment, "small", Run("draws", 0, {"a": 2.0}, 1.0, {}))
    assert len(json.loads(store.path(experiment).read_text())["runs"]) == 2


def test_numbers_survive_the_file():
    value = {"a": [1.0, float("inf"), 1e-12, 123456789.0], "b": (2, "text"), "c": float("nan")}
    back = numbers(json.loads(json.dumps(compact(value))))
    assert back["a"] == [1, float("inf"), 1e-12, 1.23457e8]
    assert back["b"] == [2, "text"]
    assert back["c"] != back["c"]


def test_a_damaged_file_is_named(tmp_path):
    experiment = all_experiments()["gradients"]
    (tmp_path / "gradients.json").write_text("{")
    with pytest.raises(ValueError, match="gradients.json is damaged or no JSON"):
        Store(tmp_path).runs(experiment, "draws", "small")
    (tmp_path / "gradients.json").write_text('{"schema": 1, "experiment": "other"}')
    with pytest.raises(ValueError, match="it lacks 'what'"):
        Store(tmp_path).runs(experiment, "draws", "small")


def test_earlier_landscapes_count_only_where_they_have_the_curves():
    """Two stored seeds of VGG have looks but no accuracy by batch: fig-4 lacks one seed, fig-1/faster all three."""
    store = Store(ROOT / "results/none")
    assert {job.seed for job in missing(["fig-4"], store, "paper")} == {2}
    assert {job.seed for job in missing(["fig-1/faster"], store, "paper")} == {0, 1, 2}
    assert {job.cell for job in missing(["fig-9/loss-peaks", "fig-9/beyond-30"], store, "paper")} == {
        "none, far",
        "batch, far",
    }


def test_long_runs_on_a_cpu_are_asked_about(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"6 runs at this scale would take about 35.0 hours on this CPU. Add --yes"):
        reproduce("fig-1/faster", out=tmp_path, scale="paper", device="cpu")
    monkeypatch.setenv("NORMSCOPE_DATA", str(tmp_path))
    with pytest.raises(ns.data.DataError, match="normscope data fetch cifar10"):
        reproduce("fig-1/faster", out=tmp_path, scale="paper", device="cpu", yes=True)


def test_mistakes_are_one_message(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'fig-9'"):
        reproduce("fig9", out=tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'beta'"):
        reproduce("fig-9/betas", out=tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'paper'"):
        reproduce("fig-9", out=tmp_path, scale="papers")
    with pytest.raises(ValueError, match="Name at least one entry"):
        reproduce(out=tmp_path)
    with pytest.raises(ValueError, match="count from 1 on"):
        reproduce("fig-9", out=tmp_path, seeds=0)

    with pytest.raises(ValueError, match="device must be one of 'cpu'.*got 'gpu'"):
        reproduce("gradients", out=tmp_path, device="gpu")
    with pytest.raises(ValueError, match="device must be one of 'cpu'.*got 'cuda:99'"):
        reproduce("gradients", out=tmp_path, device="cuda:99")
    with pytest.raises(ValueError, match="vgg-loss has no rule at the small scale"):
        reproduce("vgg-loss", out=tmp_path)


def test_nothing_is_run_that_no_rule_reads_at_this_scale(tmp_path):
    """fig-1 at small scale judges one statement, of two cells; an entry that is only drawn needs all of its own."""
    store = Store(tmp_path / "reproduce")
    assert {job.cell for job in missing(["fig-1"], store, "small")} == {"none", "batch"}
    assert len({job.cell for job in missing(["fig-1"], store, "paper")}) == 6
    assert {job.cell for job in missing(["fig-8"], store, "small")} == {"none, far", "batch, far"}


def test_only_what_is_named_is_judged(tmp_path):
    assert [one.name for one in reproduce("gradients/formulas", out=tmp_path, seeds=1, device="cpu")] == [
        "gradients/formulas"
    ]


def _cli(*arguments, cwd):
    command = [sys.executable, "-m", "normscope", "reproduce", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_the_command_line(tmp_path):
    listed = _cli("--list", cwd=ROOT)
    assert listed.returncode == 0, listed.stderr
    names = {f"{entry.name}/{s.key}" for entry in all_entries().values() for s in entry.statements}
    head, *rows, _ = listed.stdout.splitlines()
    assert head.split() == ["statement", "verdict", "seeds,", "scale", "minutes", "data", "paper"]
    assert {line.split()[0] for line in rows} == names
    checked = _called("--check", "--json", "--out", str(ROOT / "results/reproduce"))
    assert checked.exit_code == 0, checked.output
    said = json.loads(checked.stdout[checked.stdout.index("{") :])
    assert (said["schema"], {one["name"] for one in said["statements"]}) == (1, names)
    wrong = _cli("explosions", cwd=tmp_path)
    assert (wrong.returncode, "Did you mean 'explosion'" in wrong.stderr) == (2, True)
    assert "Traceback" not in wrong.stderr
    assert isinstance(_called().exception, ValueError)
    run = _cli("gradients", "--seeds", "1", "--device", "cpu", cwd=tmp_path)
    assert run.returncode == 1, run.stderr
    assert (tmp_path / "results/reproduce/figures/gradients.png").is_file()
    assert "run with 1 seed of 5 needed" in run.stdout
    assert "not yet run" not in run.stdout
    assert "2 run with too few seeds" in run.stdout


def _called(*arguments):
    """In this process: what the command line does after its options are read."""
    return CliRunner().invoke(app, ["reproduce", *arguments])


def test_names_are_checked_and_pages_are_written_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for shown in ("--list", "--check"):
        with pytest.raises(ValueError, match="Did you mean 'skip'"):
            raise _called(shown, "explosion/skips").exception
    with pytest.raises(ValueError, match="--gallery writes whole pages"):
        raise _called("explosion", "--gallery", ".").exception
    assert not list(tmp_path.iterdir())
    only = _called("--list", "explosion/skip", "--out", str(ROOT / "results/reproduce"))
    assert [line.split()[0] for line in only.stdout.splitlines()[:-1]] == ["statement", "explosion/skip"]
    skip = next(s for s in all_entries()["explosion"].statements if s.key == "skip")
    needed = all_entries()["explosion"].cells(skip)
    minutes = sum(experiment.cost("small", "cpu") for experiment, _ in needed) * skip.n / 60
    row = only.stdout.splitlines()[1]
    assert f" {minutes:.2g}  none " in row
    assert row.endswith(all_entries()["explosion"].source)


def test_the_status_speaks_of_what_was_named_at_its_scale(tmp_path, monkeypatch):
    """All of fig-9's rules but one have a meaning at small scale; that one is not missed."""
    monkeypatch.setattr(pool, "run_job", lambda *_: None)
    assert _called("fig-9", "--device", "cpu", "--out", str(tmp_path / "a")).exit_code == 1
    store, experiment = Store(tmp_path / "b"), all_experiments()["dln"]
    shared = {"lr": 1e-6, "keep": 25, "step": [0, 25], "step_loss": [2.0] * 20, "loss_min": [1.0, 1.0]}
    for cell in ("none", "batch", "none, far", "batch, far"):
        rough = 100.0 if "none" in cell else 1.0
        curves = shared | {"loss_max": [rough] * 2, "change_max": [rough] * 2, "beta": [1e6 * rough] * 2}
        curves |= {"factors": [100.0, 300.0], "change": [[rough] * 2] * 2}
        for seed in range(3):
            store.add(experiment, "small", Run(cell, seed, curves, 0.0, {}))
    done = _called("fig-9", "--device", "cpu", "--out", str(store.folder))
    assert (done.exit_code, "fig-9/plateau" in done.stdout) == (0, True), done.output


def test_a_run_that_is_given_up_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "run_job", lambda *_: None)
    said = _called("gradients", "--seeds", "1", "--device", "cpu", "--out", str(tmp_path), "--minutes", "1")
    assert "gradients, draws, small, seed 0: given up, --minutes is over" in said.output


# Two minutes in all on one core; what needs files of data is not among them.
SMALL = ["theorems", "gradients", "inference", "decoupling", "convergence", "amplification", "explosion"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_small_scale_gives_the_stored_verdicts(name, tmp_path):
    """Run for real; exact statements come out as at the paper's scale."""
    found = {one.name: one for one in reproduce(name, out=tmp_path / "reproduce", device="cpu")}
    stored = {one.name: one for one in judge(all_entries()[name], Store(ROOT / "results/reproduce"))}
    assert {one.scale for one in found.values()} == {"small"}
    for one in found.values():
        if one.statement.exact:
            assert one.verdict == stored[one.name].verdict, one.came_out


@pytest.mark.slow
def test_a_short_deep_linear_network_leaves_every_curve(tmp_path):
    experiment = all_experiments()["dln"]
    settings = experiment.plan("batch, far", "small") | {"steps": 150}
    curves = experiment.run(settings, 0, Place())
    assert set(curves) >= {"step_loss", "change", "shift", "cosine", "histograms", "beta", "loss_at"}
    assert curves["step"] == [0, 50, 100]
    assert curves["beta"][-1] == pytest.approx(2e6, rel=1)
    assert sum(curves["histograms"]["11"][0]["counts"]) == 1000
