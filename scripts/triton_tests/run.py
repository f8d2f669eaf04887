"""Start pytest in a checkout of Triton, with `import triton` answered by fuser.triton."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEFAULT = (
    "language/test_core.py", "language/test_block_pointer.py", "language/test_standard.py",
    "language/test_random.py", "language/test_tuple.py", "language/test_annotations.py",
    "language/test_conversions.py", "language/test_compile_errors.py", "language/test_decorator.py",
    "language/test_tensor_descriptor.py", "language/test_libdevice.py", "language/test_module.py",
    "language/test_mxfp.py",
    "language/test_subprocess.py", "runtime/test_autotuner.py", "runtime/test_launch.py",
    "runtime/test_subproc.py", "runtime/test_cache.py", "runtime/test_driver.py", "test_debug.py",
    "test_knobs.py",
)  # fmt: skip
BRIDGE = """from fuser_bridge import install

install()
"""


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, "\nusage: triton-tests CHECKOUT [pytest arguments]", file=sys.stderr)
        return 2
    checkout = Path(arguments[0]).resolve()
    unit = checkout / "python" / "test" / "unit"
    if not unit.is_dir():
        print(f"error: there is no {unit}; name a checkout of Triton", file=sys.stderr)
        return 2
    rest = arguments[1:]
    if not any(item.split("=")[0] == "--device" for item in rest):
        rest = ["--device", "cpu", *rest]
    if not any(item.split("::")[0].endswith(".py") for item in rest):
        rest += [item for item in DEFAULT if (unit / item).exists()]
    rest = [_placed(item, unit) for item in rest]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "triton"
        package.mkdir()
        (package / "__init__.py").write_text(BRIDGE)
        paths = [
            folder,
            str(HERE),
            str(HERE.parent),
            str(HERE.parent.parent),
            os.environ.get("PYTHONPATH", ""),
        ]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "TRITON_TESTS_CHECKOUT": str(checkout),
        }
        command = [
            sys.executable, "-m", "pytest", "-p", "triton_plugin", "-p", "no:cacheprovider",
            "-o", "addopts=", f"--rootdir={checkout / 'python' / 'test'}", "-q",
            "--tb=short", "-W", "ignore", "--continue-on-collection-errors", *rest,
        ]  # fmt: skip
        return subprocess.run(command, env=environment).returncode


def _placed(item: str, unit: Path) -> str:
    """A path below the unit tests as a full one."""
    path, colons, name = item.partition("::")
    found = unit / path
    return f"{found}{colons}{name}" if path.endswith(".py") and found.exists() else item


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
