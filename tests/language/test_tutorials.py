"""The tutorials: right beside float64 at odd sizes, the same bits twice, on every device."""

from __future__ import annotations

import math
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.tutorial_modules import FOLDER, NAMES, load

load("01_vector_add")  # puts what the tutorials share where imports find it
import chart  # noqa: E402
import workbench  # noqa: E402

SIZES: dict[str, list[dict[str, Any]]] = {
    "01_vector_add": [{"n": 1}, {"n": 4095}, {"n": 12_345}],
    "02_fused_softmax": [
        {"rows": 1, "columns": 1},
        {"rows": 61, "columns": 129},
        {"rows": 7, "columns": 3001},
    ],
    "03_matmul": [
        {"m": 1, "n": 1, "k": 1},
        {"m": 65, "n": 130, "k": 33},
        {"m": 257, "n": 63, "k": 129, "activation": ""},
    ],
    "04_dropout": [
        {"n": 1, "p": 0.0},
        {"n": 4097, "p": 0.9, "seed": 0},
        {"n": 777, "p": 0.25, "seed": (1 << 40) + 3},
    ],
    "05_layer_norm": [
        {"rows": 1, "columns": 1},
        {"rows": 3, "columns": 1025},
        {"rows": 97, "columns": 129, "dtype": "float32"},
    ],
    "06_attention": [
        {"heads": 1, "tokens": 2, "d": 64},
        {"heads": 2, "tokens": 129, "d": 128},
        {"heads": 3, "tokens": 191, "d": 64, "dtype": "float32"},
    ],
    "07_external_functions": [{"n": 2}, {"n": 4097}],
    "08_grouped_matmul": [
        {"shapes": [(1, 1, 1)]},
        {"shapes": [(64, 64, 64), (32, 48, 16), (129, 16, 80)]},
        {"shapes": [(7, 5, 3)] * 9, "dtype": "float32"},
    ],
    "09_persistent_matmul": [
        {"m": 1, "n": 1, "k": 1},
        {"m": 65, "n": 130, "k": 33},
        {"m": 190, "n": 63, "k": 129, "dtype": "float32"},
    ],
}
"""Other sizes than those of a tutorial's own check."""
CASES = [(name, {}) for name in NAMES] + [(n, sizes) for n in NAMES for sizes in SIZES.get(n, [])]


def title(value: Any) -> str:
    if isinstance(value, dict):
        value = {key: len(x) if isinstance(x, list) else x for key, x in value.items()}
        return "-".join(f"{key}={item}" for key, item in value.items()) or "own"
    return str(value)


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleType]:
    return {name: load(name) for name in NAMES}


@pytest.mark.parametrize(("name", "sizes"), CASES, ids=title)
def test_on_the_cpu(name: str, sizes: dict[str, Any], modules: dict[str, ModuleType]) -> None:
    modules[name].check(device="cpu", **sizes)


@pytest.mark.cuda
@pytest.mark.parametrize(("name", "sizes"), CASES, ids=title)
def test_on_a_gpu(name: str, sizes: dict[str, Any], modules: dict[str, ModuleType]) -> None:
    modules[name].check(device="cuda", **sizes)


@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_right(name: str, modules: dict[str, ModuleType]) -> None:
    """Speed may depend on the table of configs, results may not."""
    module = modules[name]
    own = module.CONFIGS["cpu"]
    try:
        for config in own:
            module.CONFIGS["cpu"] = [config]
            module.check(device="cpu", **SIZES[name][-1])
    finally:
        module.CONFIGS["cpu"] = own


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_says_what_it_is(name: str, modules: dict[str, ModuleType]) -> None:
    module = modules[name]
    assert re.match(rf"Tutorial {int(name[:2])}: .*\.\n\n", module.__doc__ or "")
    assert set(module.CONFIGS) == {"cpu", "cuda"}
    assert SIZES[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_text_for_triton_names_no_fuser(name: str) -> None:
    """The benchmark loads the same text with Triton: only import lines may differ."""
    text = (FOLDER / f"{name}.py").read_text()
    changed = [line for line in text.splitlines() if "fuser" in line.replace("fuser.triton", "")]
    assert not [line for line in changed if "import" in line]
    assert {line for line in text.splitlines() if re.match(r"(import|from) fuser", line)} >= {
        "import fuser.triton as triton",
        "import fuser.triton.language as tl",
    }


# the workbench ------------------------------------------------------------------------------------


def test_a_wrong_element_is_found() -> None:
    right = np.random.default_rng(0).standard_normal(1000)
    workbench.assert_close(right.astype("float32"), right)
    wrong = right.astype("float32")
    wrong[17] += 1e-4
    with pytest.raises(AssertionError, match="off by"):
        workbench.assert_close(wrong, right)
    wrong[17] = math.nan
    with pytest.raises(AssertionError, match="off by"):
        workbench.assert_close(wrong, right)


def test_an_element_that_is_not_written_is_found() -> None:
    with pytest.raises(AssertionError, match="off by"):
        workbench.assert_close(workbench.empty((3,)), np.zeros(3))


def test_a_run_with_other_bits_is_found() -> None:
    out = np.zeros(3)

    def run() -> None:
        out[1] += 1

    with pytest.raises(AssertionError, match="other bits"):
        workbench.assert_repeats(run, out)
    workbench.assert_repeats(lambda: None, out)


# charts -------------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def points_of(svg: str) -> list[list[tuple[float, float]]]:
    lines = ET.fromstring(svg).iter(f"{SVG}polyline")
    return [
        [
            (float(x), float(y))
            for x, y in (pair.split(",") for pair in line.get("points", "").split())
        ]
        for line in lines
    ]


def test_a_chart_places_its_points() -> None:
    svg = chart.line_chart(
        "a < b", "elements", "GB/s", {"one": [(1, 0), (100, 10), (10, 5)], "two": [(10, 10)]}
    )
    one, two = points_of(svg)
    left, middle, right = one  # in the order of x
    assert left[0] == pytest.approx(chart.LEFT)
    assert right[0] == pytest.approx(chart.WIDTH - chart.RIGHT)
    assert middle[0] == pytest.approx((left[0] + right[0]) / 2)  # by the logarithm
    assert left[1] == pytest.approx(chart.HEIGHT - chart.BOTTOM)
    assert right[1] == pytest.approx(chart.TOP)
    assert middle[1] == pytest.approx((left[1] + right[1]) / 2)
    assert two == [(middle[0], right[1])]
    words = [text.text for text in ET.fromstring(svg).iter(f"{SVG}text")]
    assert {"a < b", "elements", "GB/s", "one", "two"} <= set(words)


def test_a_plain_axis_places_by_value() -> None:
    svg = chart.line_chart("t", "x", "y", {"a": [(0, 1), (30, 1), (40, 1)]}, logarithmic=False)
    left, middle, right = points_of(svg)[0]
    assert middle[0] - left[0] == pytest.approx(0.75 * (right[0] - left[0]), abs=0.1)


@pytest.mark.parametrize("most", [0.03, 1, 7, 99.9, 1234, 5e6])
def test_ticks_are_round_and_reach_the_top(most: float) -> None:
    ticks = chart.y_ticks(most)
    assert ticks[0] == 0 and ticks[-2] < most <= ticks[-1] * (1 + 1e-9)
    assert 3 <= len(ticks) <= 7
    step = ticks[1]
    assert float(f"{step:.1e}") == pytest.approx(step)


@pytest.mark.parametrize(
    "lines", [{}, {"a": []}, {"a": [(1, math.nan)]}, {"a": [(0, 1)]}, {"a": [(1, -1)]}]
)
def test_what_cannot_be_shown_is_refused(lines: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        chart.line_chart("t", "x", "y", lines)


def test_a_script_writes_its_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: dict[str, ModuleType]
) -> None:
    path = tmp_path / "plot.svg"
    monkeypatch.setattr(sys, "argv", ["01_vector_add.py", "--device", "cpu", "--plot", str(path)])
    monkeypatch.setattr(workbench, "milliseconds", lambda run, device: (run(), 1.0)[1])
    module = modules["01_vector_add"]
    workbench.main("01_vector_add.py", module.check, module.plot)
    assert len(points_of(path.read_text())) == 2


@pytest.mark.parametrize("name", [name for name in NAMES if name != "01_vector_add"])
def test_a_chart_without_pytorch_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: dict[str, ModuleType], name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "plot.svg"
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--device", "cpu", "--plot", str(path)])
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it fails
    with pytest.raises(SystemExit) as stop:
        workbench.main(f"{name}.py", lambda device: None, modules[name].plot)
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and f"{name}: right on cpu" in out
    assert err == (
        f"{name}.py: --plot measures beside PyTorch, which is not installed: pip install torch\n"
    )
    assert not path.exists()
