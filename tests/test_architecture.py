"""The arrows of docs/architecture.md: every import of the source, lazy and type-checking ones included."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "normscope"
# A package imports itself and packages to its right; every package may import what is in OPEN, and modules of the root.
ORDER = """
cli report papers diagnosis comparison tuning monitor sweeping solve bounds curvature prediction stability
norms isolation theory
""".split()  # noqa: SIM905
OPEN = {"models", "data", "losses", "loss_kinds"}
SECTIONS = "The result's `_sections` names its section itself; `reporting.py` is to be the one file that reaches up."
# (importing, imported): the reason why the arrow does not hold yet. This list may only shrink.
EXCEPTIONS = {
    ("results", "report"): "A result's `.report()`: the one upward reach that stays.",
    ("bounds", "report"): SECTIONS,
    ("curvature", "report"): SECTIONS,
    ("diagnosis", "report"): SECTIONS,
    ("monitor", "report"): SECTIONS,
    ("prediction", "report"): SECTIONS,
    ("sweeping", "report"): SECTIONS,
    ("training", "report"): SECTIONS,
    ("tuning", "report"): SECTIONS,
}
# Tests of what a package does as a whole, or of several of its modules at once; by folder of tests.
ACROSS = {
    "curvature": """cost derivatives first_guess from_initialisation hostile kept_outputs limits loss_fit measure
        measure_cli peers probe products second_derivatives second_moments stability stored_races warm_starts wide""",
    "diagnosis": "rules_judgements",
    "isolation": "calls hostile_modules turns untouched",
    "monitor": """against_twins awkward bit_exact bit_exact_processes bit_exact_ways closed_forms layers planted
        verdicts""",
    "norms": "transforms",
    "papers": "mean_field_runs",
    "prediction": """against_measure graphs order_parameters places post_activation stored_eigenvalues
        written_otherwise""",
    "solve": "estimators",
    "theory": "figure_1 mean_field_errata",
}
# What a package that only reads results has no use for.
COMPUTES = {"torch", "scipy", "sklearn", "theory", "prediction", "isolation", "norms", "stability", "models", "data"}


@cache
def imports() -> dict[tuple[str, str], list[str]]:
    """(importing folder or root module, imported module): the places, for every import statement of the source."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE)
        importing = "/".join(place.parts[:-1]) or place.stem
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{place}: a relative import"
                door = node.module == "normscope"
                names = [f"normscope.{alias.name}" for alias in node.names] if door else [node.module]
            for name in names:
                found.setdefault((importing, name), []).append(f"{place}:{node.lineno}")
    return found


def arrows() -> dict[tuple[str, str], list[str]]:
    """(importing, imported) packages or modules of the root: the places. The public door imports everything."""
    found: dict[tuple[str, str], list[str]] = {}
    for (importing, name), places in imports().items():
        arrow = importing.split("/")[0], name.removeprefix("normscope.").split(".")[0]
        inside = arrow[0] in (arrow[1], "__init__", "__main__")
        if name.startswith("normscope.") and not inside and arrow not in EXCEPTIONS:
            found.setdefault(arrow, []).extend(places)
    return found


def test_arrows_point_to_the_right():
    found = {arrow: places for arrow, places in arrows().items() if set(arrow) <= set(ORDER)}
    assert {a: places for a, places in found.items() if ORDER.index(a[0]) > ORDER.index(a[1])} == {}
    assert ("monitor", "curvature") in found


def test_there_is_no_cycle_between_packages():
    found = arrows()
    tuple(TopologicalSorter({one: {b for a, b in found if a == one} for one, _ in found}).static_order())


def test_nobody_imports_the_command_line():
    assert [pair for pair in arrows() if pair[1] == "cli"] == []


def test_the_lowest_packages_import_nothing_above_them():
    for (importing, imported), places in arrows().items():
        if importing in ("isolation", "norms", "theory"):
            assert imported not in {*ORDER[:-3], *OPEN}, places
    above = [
        places
        for (importing, name), places in imports().items()
        if importing == "curvature/eigensolvers"
        and name.startswith(tuple(f"normscope.{package}" for package in [*ORDER, *OPEN]))
        and not name.startswith("normscope.curvature.eigensolvers")
        and (importing, "/".join(name.split(".")[1:3])) not in EXCEPTIONS
    ]
    assert above == []


def test_report_computes_nothing():
    for (importing, name), places in imports().items():
        imported = name.removeprefix("normscope.").split(".")[0]
        if importing.split("/")[0] == "report" and ("report", imported) not in EXCEPTIONS:
            assert imported not in COMPUTES, places


def test_every_exception_is_still_needed():
    pairs = {
        pair
        for importing, name in imports()
        for depth in (1, 2)
        for imported in [name.removeprefix("normscope.").split(".")]
        for pair in [("/".join(importing.split("/")[:depth]), "/".join(imported[:depth]))]
    }
    assert set(EXCEPTIONS) - pairs == set()


def test_predict_loads_no_curvature():
    code = """
import sys, torch, normscope as ns
ns.predict(torch.nn.Linear(3, 1), (3,), "half_mse").verdict(0.1)
print([name for name in sys.modules if name.startswith(("normscope.curvature", "normscope.monitor"))])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout.strip() == "[]"


def test_the_map_names_files_that_exist_and_stays_a_map():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    tops = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    for name in set(re.findall(r"(?<![\w/.-])([a-z_]+(?:/\w+)+\.py)", text)):
        below = SOURCE if name.split("/")[0] in tops else ROOT
        assert (below / name).exists(), f"docs/architecture.md names {name}"


def test_tests_mirror_the_source():
    """tests/<package>/test_<module>.py, with what is tested behind it: test_<module>_<subject>.py."""
    tests = Path(__file__).parent
    strangers = []
    for path in sorted(tests.glob("*/test_*.py")):
        package = path.parent.name
        if package == "attack":
            continue
        files = (SOURCE / package).rglob("*.py")
        modules = {package, *(file.stem.lstrip("_") for file in files)}
        modules |= {f"{package}_{module}" for module in modules}
        name = path.stem.removeprefix("test_")
        known = any(f"{name}_".startswith(f"{module}_") for module in modules)
        if not known and name not in ACROSS.get(package, "").split():
            strangers.append(f"{package}/{path.name}")
    assert strangers == []


def test_names_of_test_files_differ():
    """pytest imports a test file by its name alone, so that two of one name stop each other."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
