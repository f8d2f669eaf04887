"""Plans run where there is neither compiler nor LLVM: in a process that cannot import them, and in
an environment that holds the distribution fuser-runtime and what it needs, nothing else."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import fuser
from fuser.cli.main import run
from fuser.runtime.jit import links_itself
from models import TINY, build, save
from scripts import runtime_wheel

pytestmark = pytest.mark.skipif(not links_itself(), reason="LLVM links on this machine")

MOST_ROOM = 100_000_000
"""Bytes that the runtime set stays below on a disk, for the CPU."""

ABSENT = """
import sys

class Absent:
    names = {"llvmlite", "onnx", "networkx", "click", "platformdirs", "torch", "cuda"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Absent())
"""
RUN = """
import sys
import numpy as np
import fuser

file, feeds, results = sys.argv[1:4]
with fuser.load(file, threads=2) as plan:
    outputs = plan.run(dict(np.load(feeds)))
    plan.random_feeds()
    np.savez(results, **outputs)
    plan.save(results + ".plan")
    plan.report().to_dict()
    print(len(plan.report().to_dict()), plan)
"""

SMALL = {"bert": TINY["bert"], "gpt2": TINY["gpt2"], "resnet50": TINY["resnet50"]}
WHOLE: Mapping[str, Mapping[str, int]] = {
    "minilm": {"batch": 1, "sequence": 32},
    "resnet50": {"batch": 1},
    "gpt2": {"batch": 1, "sequence": 32},
}
Child = Callable[..., "subprocess.CompletedProcess[str]"]


class Saved:
    """A plan file with feeds, and what this process computes for them. model: of models/, or an
    ONNX file."""

    def __init__(self, model: str, sizes: Mapping[str, int], folder: Path) -> None:
        given = Path(model) if model.endswith(".onnx") else build(model, **sizes)
        plan, name = fuser.compile(given, device="cpu", threads=2), Path(model).stem
        self.feeds = plan.random_feeds()
        self.want = plan.run(self.feeds)
        self.files = (folder / f"{name}.plan", folder / f"{name}.npz", folder / f"{name}.out.npz")
        plan.save(self.files[0])
        np.savez(self.files[1], **self.feeds)  # type: ignore[arg-type]

    def check(self, child: Child) -> None:
        """What this process compiled, a child runs and saves again, and this process runs that."""
        done = child(RUN, *map(str, self.files))
        assert done.returncode == 0, done.stderr[-2000:]
        with np.load(self.files[2]) as found:
            assert set(found) == set(self.want)
            for key, array in self.want.items():
                assert found[key].tobytes() == array.tobytes()
        again = fuser.Plan.load(f"{self.files[2]}.plan").run(self.feeds)
        assert all(again[key].tobytes() == array.tobytes() for key, array in self.want.items())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    folder = tmp_path_factory.mktemp("plans")
    return functools.cache(lambda name: Saved(name, SMALL[name], folder))


def without(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process that cannot import what the runtime set has not."""
    command = [sys.executable, "-c", ABSENT + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages of an environment with the runtime set: the wheel as it is built, NumPy and
    ml_dtypes as they are installed here."""
    pytest.importorskip("setuptools", "77")
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    tree = runtime_wheel.stage(tmp_path_factory.mktemp("tree"))
    code = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=tree, check=True, capture_output=True
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in ("numpy", "ml_dtypes"):
        for file in importlib.metadata.files(name) or ():
            source, target = Path(str(file.locate())), site / file
            if source.is_file() and ".." not in file.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
    return site


def inside(packages: Path) -> Child:
    """A process of that environment, which sees nothing else."""
    python = packages.parents[2] / "bin" / "python"

    def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-I", "-c", code, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd="/")

    return run


@pytest.mark.parametrize("name", SMALL)
def test_equal_bits_without_a_compiler(name: str, saved: Callable[[str], Saved]) -> None:
    saved(name).check(without)


@pytest.mark.parametrize("name", SMALL)
def test_equal_bits_in_the_runtime_set(
    name: str, saved: Callable[[str], Saved], packages: Path
) -> None:
    saved(name).check(inside(packages))


def test_weights_that_stay_in_the_model(packages: Path, tmp_path: Path) -> None:
    model = tmp_path / "mlp.onnx"
    save(build("mlp", inputs=192, hidden=160, batch=3), model)
    made = Saved(str(model), {}, tmp_path)
    options = ["--weights", "reference", "--device", "cpu", "-o", str(made.files[0])]
    assert run(["compile", str(model), *options]) == 0
    made.check(inside(packages))
    made.check(without)


def test_open_sizes(packages: Path, tmp_path: Path) -> None:
    """A plan for ranges of sizes runs there, too, and loads no compiler."""
    code = """
import sys, numpy as np, fuser
plan = fuser.load(sys.argv[1], threads=2)
for rows in (1, 2, 5, 7):
    feeds = {"x": np.linspace(-1, 1, rows * 24, dtype=np.float32).reshape(rows, 24)}
    np.savez(sys.argv[2] + str(rows), **plan.run(feeds))
plan.save(sys.argv[2] + ".plan")
try:
    plan.run({"x": np.ones((0, 24), np.float32)})
except fuser.FuserError as error:
    assert "--open" in str(error), error
else:
    raise AssertionError("there are no kernels for no rows")
assert not [m for m in sys.modules if m.startswith(("fuser.partition", "fuser.tilegen.emit"))]
"""
    model = tmp_path / "mlp.onnx"
    save(build("mlp", **TINY["mlp"]), model)
    file = str(tmp_path / "mlp.plan")
    made = ["compile", str(model), "--open", "batch=1..8", "--device", "cpu", "-o", file]
    assert run(made) == 0
    want = fuser.compile(model, device="cpu", dynamic=True, threads=2)
    for number, child in enumerate((inside(packages), without)):
        done = child(code, file, str(tmp_path / f"out{number}"))
        assert done.returncode == 0, done.stderr[-2000:]
        for rows in (1, 2, 5, 7):
            feeds = {"x": np.linspace(-1, 1, rows * 24, dtype=np.float32).reshape(rows, 24)}
            with np.load(tmp_path / f"out{number}{rows}.npz") as found:
                assert found["y"].tobytes() == want.run(feeds)["y"].tobytes()
        again = fuser.DynamicPlan.load(tmp_path / f"out{number}.plan").run(feeds)
        assert again["y"].tobytes() == want.run(feeds)["y"].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_whole_models_in_the_runtime_set(name: str, packages: Path, tmp_path: Path) -> None:
    model = Saved(name, WHOLE[name], tmp_path)
    model.check(inside(packages))
    model.check(without)


def test_the_runtime_set(packages: Path, saved: Callable[[str], Saved]) -> None:
    """What it holds, how large it is, and what it says of the rest of fuser."""
    code = """
import importlib.metadata, json, sys, fuser
names = sorted(d.metadata["Name"] for d in importlib.metadata.distributions())
said = {}
for what in ("compile", "InferenceSession", "nothing"):
    try:
        getattr(fuser, what)
    except AttributeError as error:
        said[what] = str(error)
        if isinstance(error, fuser.FuserError):
            said["has"] = f"{hasattr(fuser, what)} FuserError"
kind = sys.argv[1]
try:
    fuser.load(kind)
except fuser.FuserError as error:
    said["load"] = f"{type(error).__name__}: {error}"
needs = importlib.metadata.requires("fuser-runtime")
print(json.dumps([names, said, fuser.__version__, needs]))
"""
    pretended = packages.parent / "traced.plan"
    pretended.write_bytes(b"FUSERT" + saved("bert").files[0].read_bytes()[6:])
    done = inside(packages)(code, str(pretended))
    assert done.returncode == 0, done.stderr[-2000:]
    names, said, version, needs = json.loads(done.stdout)
    assert names == ["fuser-runtime", "ml_dtypes", "numpy"]
    assert [need for need in needs if "extra" not in need] == ["ml_dtypes>=0.5", "numpy>=2"]
    assert version == fuser.__version__
    for what in ("compile", "InferenceSession"):
        assert "fuser-runtime" in said[what] and "fuser-compiler" in said[what]
        assert "pip uninstall fuser-runtime, then pip install fuser-compiler" in said[what]
    assert "fuser-compiler" not in said["nothing"]
    assert said["load"].startswith("CompilerAbsentError") and "fuser-compiler" in said["load"]
    assert said["has"] == "False FuserError"  # and yet an error of fuser
    room = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())
    assert room < MOST_ROOM
    own = sum(f.stat().st_size for f in (packages / "fuser").rglob("*.py"))
    whole = sum(f.stat().st_size for f in Path(fuser.__file__).parent.rglob("*.py"))
    assert own < whole / 4


def test_pip_builds_it(tmp_path: Path) -> None:
    """As `python scripts/runtime_wheel.py FOLDER` does, but for its index."""
    pytest.importorskip("pip")
    pytest.importorskip("setuptools", "77")
    wheel = runtime_wheel.build(tmp_path, "--no-build-isolation", "--no-index")
    assert wheel.name == f"fuser_runtime-{fuser.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    info = f"fuser_runtime-{fuser.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"fuser", info}
    assert "fuser/py.typed" in names and not any("tilegen/emit" in name for name in names)
