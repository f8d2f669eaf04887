"""Numbers with units, as every command, page, message and repr prints them.

Bytes and times have three significant digits and SI prefixes, counts have thousands separators.
Data (JSON, CSV) holds plain numbers instead.
"""

from __future__ import annotations

from collections.abc import Sequence

_BYTES = ((1, "B"), (10**3, "kB"), (10**6, "MB"), (10**9, "GB"), (10**12, "TB"))
_SECONDS = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
_COUNTS = ((1, ""), (10**3, "k"), (10**6, "M"), (10**9, "G"), (10**12, "T"))


def byte_size(count: float) -> str:
    """Bytes: 393 -> "393 B", 1_500_000 -> "1.50 MB"."""
    return f"{count:.0f} B" if abs(count) < 999.5 else _scaled(count, _BYTES)


def duration(seconds: float, tick: bool = False) -> str:
    """Seconds: 3.5e-6 -> "3.50 µs", 0.012 -> "12.0 ms". tick: without trailing zeros, for a number
    of an axis."""
    return _scaled(seconds, _SECONDS, tick)


def microseconds(us: float, tick: bool = False) -> str:
    """`duration` of a time in microseconds: 1234.5 -> "1.23 ms"."""
    return duration(us / 1e6, tick)


def milliseconds(ms: float) -> str:
    """`duration` of a time in milliseconds: 0.25 -> "250 µs"."""
    return duration(ms / 1e3)


def operations(count: float, unit: str = "", tick: bool = False) -> str:
    """A great number, such as of operations: 2_500_000 -> "2.50 M", with the unit "FLOP/s"
    "2.50 MFLOP/s". tick: as in `duration`."""
    if abs(count) < 999.5:
        return f"{count:.3g} {unit}".rstrip()
    return _scaled(count, [(size, prefix + unit) for size, prefix in _COUNTS], tick)


def counted(count: int, noun: str, plural: str = "") -> str:
    """1, "kernel" -> "1 kernel"; 1234, "kernel" -> "1,234 kernels". plural: where it is not the
    noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def _scaled(value: float, units: Sequence[tuple[float, str]], tick: bool = False) -> str:
    """In the greatest unit of which there is one after rounding, else in the first."""
    if not value:
        return f"0 {units[0][1]}"
    size, unit = next(
        ((size, unit) for size, unit in reversed(units) if abs(value) >= 0.9995 * size), units[0]
    )
    return f"{_three_digits(value / size, tick)} {unit}"


def _three_digits(value: float, tick: bool) -> str:
    """0.35 -> "0.350", 1.5 -> "1.50", 1234.5 -> "1,234"."""
    places = next((n for n, least in ((2, 9.995), (1, 99.95)) if abs(value) < least), 0)
    if abs(value) < 0.9995:
        places = 3
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if tick and places else text
