"""The package as people get it: the door, the wheel in an empty environment."""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import normscope

ROOT = Path(__file__).parent.parent


def test_the_door_opens_onto_every_name():
    for name in normscope.__all__:
        assert getattr(normscope, name) is not None
    for package in (normscope, normscope.curvature, normscope.monitor):
        assert dir(package) == sorted(package.__all__)


@pytest.mark.slow
def test_no_module_hides_a_function_of_the_door():
    """Importing a submodule sets it on the package: one called as a public function would take its place."""
    code = (
        "import pkgutil, importlib, normscope\n"
        "for m in pkgutil.walk_packages(normscope.__path__, 'normscope.'):\n"
        "    m.name.endswith(('__main__', 'noise_kernel')) or importlib.import_module(m.name)\n"
        "names = ('train', 'swap_norms', 'fold_norms', 'measure', 'sweep', 'reproduce')\n"
        "assert all(callable(getattr(normscope, name)) for name in names)\n"
        "for package in (normscope.curvature, normscope.monitor):\n"
        "    for name in package.__all__:\n"
        "        assert type(getattr(package, name)).__name__ != 'module', name\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'norm'"):
        _ = normscope.norm
    with pytest.raises(AttributeError, match="'normscope.monitor' has no attribute 'Monitors'"):
        _ = normscope.monitor.Monitors


def test_predicting_loads_little_of_what_measures():
    code = (
        "import sys, normscope; normscope.predict; loaded = set(sys.modules);"
        "unwanted = {'normscope.curvature.operators.network_products', 'normscope.monitor.monitor', 'pandas', 'scipy'};"
        "assert not unwanted & loaded"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr


def test_importing_takes_no_extra_and_no_torch():
    code = (
        "import sys, normscope; assert not {'torch', 'sklearn'} & set(sys.modules);"
        "import normscope.solve; assert 'torch' not in sys.modules;"
        "import normscope.norms, normscope.training, normscope.data, normscope.models, normscope.monitor.integrations,"
        "normscope.sweeping.cluster;"
        "extras = {'ray', 'lightning', 'tensorboard', 'wandb', 'transformers', 'accelerate'} & set(sys.modules);"
        "assert not extras, extras"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr


@pytest.mark.slow
def test_wheel_installs_into_an_empty_environment(tmp_path):
    """Builds the sdist and from it the wheel; installs it with its dependencies; uses it outside the repository."""
    built, home = tmp_path / "built", tmp_path / "env"
    subprocess.run([sys.executable, "-m", "build", "--outdir", built, ROOT], check=True, capture_output=True)
    ((sdist,), (wheel,)) = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(sdist) as packed, zipfile.ZipFile(wheel) as files:
        assert any(name.endswith("/CITATION.cff") for name in packed.getnames())
        source = ROOT / "src"
        tracked = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert {str(path.relative_to(source)) for path in tracked} <= set(files.namelist())
    venv.create(home, with_pip=True)
    pip = [home / "bin/python", "-m", "pip", "install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, wheel], check=True, capture_output=True, cwd=tmp_path)

    def output(*command):
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout

    python = [home / "bin/python", "-I", "-c"]
    assert output(home / "bin/normscope", "--version") == f"normscope {normscope.__version__}\n"
    lines = "import torch, normscope as ns\nprint(ns.norms.BatchNorm2d(3)(torch.randn(4, 3, 2, 2)).mean().abs() < 1e-6)"
    assert output(*python, lines) == "tensor(True)\n"
    assert str(home) in output(*python, "import normscope; print(normscope.__file__)")


@pytest.mark.slow
def test_known_models_at_a_small_size(tmp_path):
    command = [sys.executable, ROOT / "benchmarks/known_models.py", "--device", "cpu", "--tiny", "--seconds", "1"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests/prediction"), env.get("PYTHONPATH", "")])
    ran = subprocess.run([*command, "--out", tmp_path / "known.json"], env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    stored = json.loads((tmp_path / "known.json").read_text())
    assert stored["schema"] == 1
    assert "eta_star" in stored["models"]["ResNet-50"]["predict"]
    assert "Measure this network instead" in stored["models"]["ViT-B/16"]["predict"]["refused"]
    assert all(found["monitor"]["looks"] >= 1 for found in stored["models"].values())
