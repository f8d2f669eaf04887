"""device_print and device_assert: what a launch prints and raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.errors import DeviceAssertionError, LanguageError
from tests.language.launching import DEVICES, launch


@fuser.kernel
def printing(x, N: fl.constexpr, HEX: fl.constexpr):
    data = fl.load(x + fl.arange(0, N))
    fl.device_print("x", data, hex=HEX)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "numbers", "texts"),
    [
        (np.int32, [7, -3], ["7", "-3"]), (np.uint8, [200, 3], ["200", "3"]),
        (np.float32, [1.5, -2], ["1.500000", "-2.000000"]), (bool, [True, False], ["1", "0"]),
        (np.float16, [0.25, 3], ["0.250000", "3.000000"]), (np.uint64, [2**64 - 1, 5],
                                                           ["18446744073709551615", "5"]),
    ],
)  # fmt: skip
def test_a_line_for_each_element(
    dtype: Any, numbers: Any, texts: list[str], device: str, capsys: Any
) -> None:
    launch(printing, device, np.array(numbers * 8, dtype), N=16, HEX=False)
    want = [f"pid (0, 0, 0) idx ({n:2}) x: {texts[n % 2]}" for n in range(16)]
    assert capsys.readouterr().out.splitlines() == want


def test_hexadecimal_has_all_digits(capsys: Any) -> None:
    launch(printing, "cpu", np.array([255, -1], np.int16), N=2, HEX=True)
    assert capsys.readouterr().out.splitlines() == [
        "pid (0, 0, 0) idx (0) x: 0x00ff", "pid (0, 0, 0) idx (1) x: 0xffff",
    ]  # fmt: skip


@fuser.kernel
def several(x, M: fl.constexpr, N: fl.constexpr):
    at = fl.arange(0, M)[:, None] * N + fl.arange(0, N)[None, :]
    if fl.program_id(1) == 1:
        fl.device_print("tiles ", fl.load(x + at), fl.program_id(0))
    for k in range(3):
        if fl.program_id(0) == k:
            print("round", k)
    fl.device_print("done")


def test_values_of_some_programs(capsys: Any) -> None:
    launch(several, "cpu", np.arange(24, dtype=np.int32), grid=(2, 2), M=2, N=12)
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("pid (1, 1, 0) idx (1,  3) tiles: (operand 0) 15") == 1
    assert lines.count("pid (1, 1, 0) idx () tiles: (operand 1) 1") == 1
    assert sum("tiles" in line for line in lines) == 2 * 25
    assert sorted(line for line in lines if "round" in line) == [
        f"pid ({k}, {y}, 0) idx () round: {k}" for k in range(2) for y in range(2)
    ]
    assert sum(line.endswith(") done") for line in lines) == 4


@fuser.kernel
def flood_of(x, N: fl.constexpr):
    fl.device_print("", fl.arange(0, N) + fl.program_id(0))


def test_what_is_too_much_is_counted(capsys: Any) -> None:
    x = np.zeros(1, np.float32)
    launch(flood_of, "cpu", x, grid=(40,), N=32768)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 31 * 32768 + 1 and lines[-1].startswith("9 more of")


@fuser.kernel
def asserting(x, n, N: fl.constexpr, MASKED: fl.constexpr):
    at = fl.program_id(0) * N + fl.arange(0, N)
    inside = at < n
    data = fl.load(x + at, inside, other=-1)
    if MASKED:
        fl.device_assert(data >= 0, "no negative numbers", mask=inside)
    else:
        assert data >= 0, "no negative numbers"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("check", [False, True])
def test_a_failed_assertion_says_where(check: bool, device: str) -> None:
    x = np.arange(100, dtype=np.int32)
    launch(asserting, device, x, 100, grid=(4,), N=32, MASKED=True, debug=True, check=check)
    x[70] = -5
    launch(asserting, device, x, 100, grid=(4,), N=32, MASKED=True)  # without debug
    with pytest.raises(DeviceAssertionError, match="no negative numbers") as caught:
        launch(asserting, device, x, 100, grid=(4,), N=32, MASKED=True, debug=True, check=check)
    assert "program (2, 0, 0)" in str(caught.value)
    assert caught.value.where.startswith(__file__)
    assert "fl.device_assert(data >= 0" in str(caught.value)


def test_assert_is_device_assert() -> None:
    x = np.arange(64, dtype=np.int32)
    launch(asserting, "cpu", x, 64, grid=(2,), N=32, MASKED=False, debug=True)
    with pytest.raises(DeviceAssertionError):
        launch(asserting, "cpu", x, 63, grid=(2,), N=32, MASKED=False, debug=True)


@fuser.kernel
def shouting(x):
    fl.device_print("größe", fl.load(x))


def test_prefixes_are_ascii() -> None:
    with pytest.raises(LanguageError, match="ascii"):
        shouting[(1,)](np.zeros(1, np.float32))


def test_numbers_that_are_stored_together(capsys: Any) -> None:
    """Constants next to each other become one aligned store: the report's memory is aligned."""

    @fuser.kernel
    def kernel():
        fl.device_print("", fl.program_id(0))

    for _ in range(4):
        held = np.zeros(3)  # memory moves
        kernel[(1,)]()
        assert capsys.readouterr().out == "pid (0, 0, 0) idx (): 0\n" and held.size
