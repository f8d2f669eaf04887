"""`import triton` answered with fuser.triton in named packages, and in nobody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fuser.triton as triton
from fuser.errors import UsageError

KERNELS = """
import triton
import triton.language as tl
from triton.language import math as m
from triton.runtime.jit import JITFunction

@triton.jit
def double(x):
    at = tl.arange(0, 4)
    tl.store(x + at, 2 * tl.load(x + at))

def asked():
    import importlib.metadata
    import importlib.util as util
    from importlib import import_module
    return [
        import_module("triton"), import_module("triton.language"), import_module(__package__),
        util.find_spec("triton.language").name, util.find_spec("json").name,
        importlib.metadata.version("triton"), importlib.metadata.version("numpy"),
        importlib.machinery.ModuleSpec,
    ]

def late():
    from triton.compiler.errors import CompilationError
    import triton.testing
    return CompilationError, triton
"""
OTHER = """
try:
    import triton
except ImportError:
    triton = None
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("kernels_of_ours", KERNELS), ("kernels_of_others", OTHER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"from {name} import inner\n")
        (tmp_path / name / "inner.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in list(sys.modules):
        if name.partition(".")[0] in ("kernels_of_ours", "kernels_of_others"):
            del sys.modules[name]


def test_named_packages_find_ours(packages: Path) -> None:
    import numpy as np

    real = sys.modules.get("triton")
    with triton.imports("kernels_of_ours"):
        import kernels_of_others
        import kernels_of_ours
    inner = kernels_of_ours.inner
    assert inner.triton is triton and inner.tl is triton.language
    assert isinstance(inner.double, inner.JITFunction)
    x = np.arange(4, dtype=np.float32)
    inner.double[(1,)](x)
    assert x.tolist() == [0, 2, 4, 6]
    assert inner.late() == (triton.CompilationError, triton)  # imports of functions, later
    assert kernels_of_others.inner.triton is real
    assert sys.modules.get("triton") is real


def test_modules_that_a_package_loads_later_are_bound(packages: Path) -> None:
    (packages / "kernels_of_ours" / "lazy.py").write_text("import triton\n")
    with triton.imports("kernels_of_ours", "kernels_of_others"):
        import kernels_of_ours
    import kernels_of_others  # named, but not loaded inside
    import kernels_of_ours.lazy

    assert kernels_of_ours.lazy.triton is triton
    assert kernels_of_others.inner.triton is sys.modules.get("triton")


def test_code_that_a_package_writes_and_loads_is_bound(packages: Path) -> None:
    (packages / "kernels_of_ours" / "writer.py").write_text(
        "import importlib.util\n"
        "def load(path):\n"
        "    spec = importlib.util.spec_from_file_location('made_by_ours', path)\n"
        "    module = importlib.util.module_from_spec(spec)\n"
        "    spec.loader.exec_module(module)\n"
        "    return module\n"
    )
    (packages / "made.py").write_text("import triton\n")
    with triton.imports("kernels_of_ours"):
        import kernels_of_ours.writer
    assert kernels_of_ours.writer.load(packages / "made.py").triton is triton


def test_importlib_answers_them_as_their_imports(packages: Path) -> None:
    import importlib.machinery

    import numpy as np

    with triton.imports("kernels_of_ours"):
        import kernels_of_ours
    assert kernels_of_ours.inner.asked() == [
        triton, triton.language, kernels_of_ours, "fuser.triton.language", "json",
        triton.__version__, np.__version__, importlib.machinery.ModuleSpec,
    ]  # fmt: skip


def test_a_package_that_is_loaded_already_is_refused(packages: Path) -> None:
    import kernels_of_others  # noqa: F401

    with pytest.raises(UsageError, match="already"), triton.imports("kernels_of_others"):
        pass
    with pytest.raises(UsageError, match="top-level"), triton.imports("kernels_of_ours.inner"):
        pass
    with triton.imports("kernels_of_ours"):
        import kernels_of_ours  # noqa: F401
    with triton.imports("kernels_of_ours"):  # it is bound already
        pass


def test_a_missing_module_is_missing(packages: Path) -> None:
    (packages / "kernels_of_ours" / "inner.py").write_text("import triton.no_such_module")
    missing = pytest.raises(ModuleNotFoundError, match="no_such_module")
    with missing, triton.imports("kernels_of_ours"):
        import kernels_of_ours  # noqa: F401


def test_a_script_is_run_with_ours(packages: Path) -> None:
    script = packages / "script.py"
    script.write_text(
        "import sys, triton, kernels_of_ours, kernels_of_others\n"
        "assert kernels_of_ours.inner.triton is triton\n"
        "assert kernels_of_others.inner.triton is not triton\n"
        "print(triton.__name__, __name__, sys.argv[1:])\n"
    )
    command = [sys.executable, "-m", "fuser.triton", "--packages", "kernels_of_ours", str(script)]
    done = subprocess.run([*command, "a", "-b"], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "fuser.triton __main__ ['a', '-b']", done.stderr
    wrong = subprocess.run([*command[:3], "--nothing"], capture_output=True, text=True, check=False)
    assert wrong.returncode and "unknown option --nothing" in wrong.stderr


def test_kernels_are_declared_without_the_compiler() -> None:
    script = (
        "import sys, fuser, fuser.language as fl\n"
        "import fuser.triton as triton, fuser.triton.language as tl\n"
        "@fuser.kernel\n"
        "def one(x, BLOCK: fl.constexpr): x[fl.arange(0, BLOCK)] = fl.zeros((BLOCK,), fl.int32)\n"
        "@triton.autotune([triton.Config({'BLOCK': 8})], key=['n'])\n"
        "@triton.jit\n"
        "def two(x, n: tl.int32, BLOCK: tl.constexpr): tl.store(x + tl.arange(0, BLOCK), n)\n"
        "rooms = {name.rpartition('.')[0] or name for name in sys.modules}\n"
        "heavy = {'llvmlite', 'fuser.tilegen', 'fuser.backend', 'fuser.runtime'} & rooms\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


WALK = """
import importlib, pkgutil, sys

from fuser.triton.imports import everywhere
import fuser.triton

def attributes():
    names = [m.name for m in pkgutil.walk_packages(fuser.triton.__path__, "fuser.triton.")]
    found = {}
    for name in names:
        package, _, last = name.rpartition(".")
        found[name] = getattr(importlib.import_module(package), last, None)
    return found

before = attributes()
everywhere()
for name in before:
    if not name.endswith("__main__"):
        assert importlib.import_module(name.removeprefix("fuser.")) is sys.modules[name], name
after = attributes()
for name, held in before.items():
    assert held is None or held is after[name], (name, held, after[name])
assert sys.modules["triton"].runtime.driver.active is not None
"""


def test_everywhere_leaves_objects_that_hide_modules() -> None:
    """`runtime.driver` is an object in Triton, whoever imports the module of that name."""
    done = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
