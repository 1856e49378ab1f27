"""`normscope cite` and `normscope doctor`: sources of what was used, and what works here."""

import json
import re
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from normscope.cli import main
from normscope.installation import CHECKS, Check, Missing, examine
from normscope.sources import SOURCES, USES, sources_for


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["normscope", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_bibtex_is_whole_and_every_source_is_used():
    for source in SOURCES:
        text = source.bibtex()
        assert text.count("{") == text.count("}")
        assert re.match(r"@\w+\{\w+,\n", text)
        assert {"author", "title", "year"} <= source.fields.keys()
        assert re.fullmatch(r"\d{4}\.\d{5}", source.fields["eprint"])
    used = {source.key for use in USES for source in sources_for([use])}
    assert {source.key for source in SOURCES} <= used


def test_cite_knows_verbs_and_runs(monkeypatch, capsys, tmp_path):
    status, out, _ = run(monkeypatch, capsys, "cite", "predict")
    assert status == 0
    assert re.findall(r"^@\w+\{(\w+),", out, re.M) == ["normscope", "wei2019mean"]
    status, out, _ = run(monkeypatch, capsys, "cite", "solve", "--json")
    assert [row["key"] for row in json.loads(out)["sources"]] == ["normscope", "kohler2018exponential"]
    solved = {
        "kind": "comparison",
        "schema": 1,
        "title": "y",
        "best": 0.5,
        "target": 1e-6,
        "notes": [],
        "promise": None,
    }
    solved["methods"] = {"gd": {"iterations": 1, "to_target": None, "seconds": 0.1, "reason": "-", "gap": [1.0, 0.5]}}
    (tmp_path / "results.json").write_text(json.dumps(solved))
    assert "kohler2018exponential" in run(monkeypatch, capsys, "cite", tmp_path)[1]
    status, _, err = run(monkeypatch, capsys, "cite", "predcit")
    assert status == 2
    assert "predict" in err


def test_a_check_works_fails_or_is_absent():
    def broken():
        raise OSError("no such library\nand more")

    def missing():
        raise PackageNotFoundError("ray")

    assert examine(Check("a", lambda: "fine")).state == "works"
    assert (examine(Check("a", broken)).state, examine(Check("a", broken)).says) == (
        "fails",
        "OSError: no such library",
    )
    found = examine(Check("ray", missing, "normscope[ray]"))
    assert (found.state, found.says) == ("absent", "bring it with: pip install 'normscope[ray]'")
    assert examine(Check("numpy", missing)).state == "fails"

    def without():
        raise Missing("do this instead")

    assert (examine(Check("make", without)).state, examine(Check("make", without)).says) == (
        "absent",
        "do this instead",
    )


def test_what_must_be_there_works_here():
    required = [check for check in CHECKS if not check.brings]
    found = {check.name: examine(check).state for check in required}
    # What normscope does without may be absent.
    assert {state for name, state in found.items() if name not in ("compiler", "make")} == {"works"}
    assert {"lightning", "transformers", "tensorboard", "wandb", "ray"} <= {
        check.name for check in CHECKS if check.brings
    }


def test_doctor_tells_each_machine_what_the_installation_page_tells(monkeypatch):
    checks = {check.name: check for check in CHECKS}
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert "macOS" in examine(checks["system"]).says
    assert "tests run on Linux alone" in examine(checks["system"]).says
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert (examine(checks["make"]).state, "normscope demo" in examine(checks["make"]).says) == ("absent", True)
    monkeypatch.setattr("normscope.compiling.why_not_compiled", lambda: "RuntimeError: no g++")
    assert (examine(checks["compiler"]).state, "runs eager" in examine(checks["compiler"]).says) == ("absent", True)
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "http://me:secret@proxy.example:3128"})
    assert examine(checks["proxy"]).says == "downloads go through proxy.example"
    monkeypatch.setattr("urllib.request.getproxies", dict)
    assert "HTTPS_PROXY" in examine(checks["proxy"]).says
    monkeypatch.setattr("sys.version_info", (3, 10, 12))
    assert (examine(checks["normscope"]).state, "3.11.4" in examine(checks["normscope"]).says) == ("fails", True)


def test_doctor_says_a_row_a_check_and_exits_1_where_one_fails(monkeypatch, capsys):
    def broken():
        raise OSError("no")

    checks = (Check("good", lambda: "fine"), Check("bad", broken))
    monkeypatch.setattr("normscope.installation.CHECKS", checks)
    status, out, _ = run(monkeypatch, capsys, "doctor")
    assert status == 1
    assert [line.split() for line in out.splitlines()] == [
        ["works", "good", "fine"],
        ["fails", "bad", "OSError:", "no"],
    ]
    monkeypatch.setattr("normscope.installation.CHECKS", checks[:1])
    status, out, _ = run(monkeypatch, capsys, "doctor", "--json")
    assert (status, json.loads(out)["checks"][0]["state"]) == (0, "works")
