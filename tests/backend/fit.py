"""Recompute the polynomial coefficients of fuser/backend/math.py (needs mpmath; not a test).

    python -m tests.backend.fit

Each line is a minimax fit by the Remez exchange: `f` is approximated by a sum of powers so that
the greatest weighted error over the interval is least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mpmath as mp

mp.mp.dps = 40
Real = Callable[[mp.mpf], mp.mpf]


def remez(
    f: Real, weight: Real, powers: Sequence[int], low: float, high: float
) -> tuple[list[mp.mpf], float]:
    """(coefficients of the powers, greatest |weight * error|)."""
    count = len(powers)
    a, b = mp.mpf(low), mp.mpf(high)
    points = [
        (a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * count + 2))
        for i in range(count + 1)
    ]
    grid = [(a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * i / 600) for i in range(601)]
    grid = [x for x in grid if x != 0]
    values = [(x, f(x), weight(x)) for x in grid]
    best: tuple[list[mp.mpf], mp.mpf] = ([], mp.inf)
    for _ in range(12):
        system = mp.matrix(count + 1, count + 1)
        right = mp.matrix(count + 1, 1)
        for row, x in enumerate(points):
            for column, power in enumerate(powers):
                system[row, column] = x**power
            system[row, count] = (-1) ** row / weight(x)
            right[row] = f(x)
        solution = mp.lu_solve(system, right)
        coefficients = [solution[i] for i in range(count)]
        errors = [
            (w * (sum(c * x**p for c, p in zip(coefficients, powers, strict=True)) - y), x)
            for x, y, w in values
        ]
        worst = max(abs(e) for e, _ in errors)
        if worst < best[1]:
            best = (coefficients, worst)
        extrema: list[tuple[mp.mpf, mp.mpf]] = []
        for error, x in errors:
            if extrema and (extrema[-1][0] > 0) == (error > 0):
                if abs(error) > abs(extrema[-1][0]):
                    extrema[-1] = (error, x)
            else:
                extrema.append((error, x))
        while len(extrema) > count + 1:
            extrema.pop(0 if abs(extrema[0][0]) < abs(extrema[-1][0]) else -1)
        if len(extrema) < count + 1:
            break
        points = [x for _, x in extrema]
        if worst < abs(solution[count]) * mp.mpf("1.001"):
            break
    return best[0], float(best[1])


def show(name: str, f: Real, weight: Real, powers: Sequence[int], low: float, high: float) -> None:
    coefficients, error = remez(f, weight, powers, low, high)
    print(f"{name} = (  # error 2^{float(mp.log(error, 2)):.1f} on [{low:g}, {high:g}]")
    for coefficient in coefficients:
        print(f"    {float(coefficient)!r},")
    print(")")


def _log_rest(f: mp.mpf) -> mp.mpf:
    """(log(1 + f) - f + f**2 / 2) / f**3"""
    if abs(f) < 1e-6:
        return mp.mpf(1) / 3 - f / 4
    return (mp.log1p(f) - f + f * f / 2) / f**3


def _atanh_rest(z: mp.mpf) -> mp.mpf:
    """With s = sqrt(z): (2 atanh(s) - 2 s) / s**3"""
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) - 2 * s) / s**3 if z > 1e-12 else mp.mpf(2) / 3


def _odd_rest(g: Real, first: mp.mpf | float) -> Real:
    """With x = sqrt(z): (g(x) - x) / x**3, for an odd g = x + ..."""

    def rest(z: mp.mpf) -> mp.mpf:
        x = mp.sqrt(z)
        return (g(x) - x) / x**3 if z > 1e-14 else mp.mpf(first)

    return rest


def _show_lookup(erf_rest: Real) -> None:
    """ERF_LOOKUP_F32: a polynomial for each interval around a multiple of 1/4, by powers."""
    one, half = (lambda x: mp.mpf(1)), 0.125
    odd, worst = remez(erf_rest, one, range(3), 0, half**2)
    rows = [[mp.mpf(0), odd[0], mp.mpf(0), odd[1], mp.mpf(0), odd[2]]]
    for i in range(1, 16):
        around = lambda d, i=i: mp.erf(mp.mpf(i) / 4 + d)  # noqa: E731
        row, error = remez(around, one, range(6), -half, half)
        if i == 15:  # what is clamped to 3.87 gives 1, for a third of a unit in the last place more
            rise = mp.mpf("3.4e-8") / mp.mpf("0.245") ** 4
            row = [c + rise * mp.binomial(4, p) * mp.mpf(half) ** (4 - p) if p < 5 else c
                   for p, c in enumerate(row)]  # fmt: skip
        rows.append(row)
        worst = max(worst, error)
    print(f"ERF_LOOKUP_F32 = (  # error 2^{float(mp.log(worst, 2)):.1f}")
    for power in range(6):
        numbers = [f"{float(row[power]):.10g}" for row in rows]
        lines = [", ".join(numbers[at : at + 4]) for at in range(0, 16, 4)]
        print("    (" + ",\n     ".join(lines) + "),")
    print(")  # fmt: skip\n")


def main() -> None:
    half = float(mp.log(2) / 2) * 1.001
    one = lambda x: mp.mpf(1)  # noqa: E731
    show("EXP_F32", mp.exp, lambda x: mp.exp(-x), range(7), -half, half)
    show("EXP_F64", mp.exp, lambda x: mp.exp(-x), range(12), -half, half)
    root = float(mp.sqrt(2))
    show(
        "LOG_F32",
        _log_rest,
        lambda f: abs(f * f) + mp.mpf("1e-6"),
        range(8),
        root / 2 - 1,
        root - 1,
    )
    edge = ((root - 1) / (root + 1)) ** 2 * 1.001
    show("LOG_F64", _atanh_rest, lambda z: z + mp.mpf("1e-9"), range(7), 0, edge)
    after = lambda z: (_atanh_rest(z) - mp.mpf(2) / 3) / z  # noqa: E731
    show("LOG_TAIL_F64", after, lambda z: z, range(8), 0, edge)
    show("TANH_F32", _odd_rest(mp.tanh, -1 / 3), lambda z: z + mp.mpf("1e-5"), range(5), 0, 0.4)
    show("TANH_F64", _odd_rest(mp.tanh, -1 / 3), lambda z: z + mp.mpf("1e-5"), range(11), 0, 0.3025)
    sinh_rest = _odd_rest(mp.sinh, 1 / 6)
    show("SINH_F64", sinh_rest, lambda z: z + mp.mpf("1e-5"), range(7), 0, 1.0)
    scale = 2 / mp.sqrt(mp.pi)

    def erf_rest(z: mp.mpf) -> mp.mpf:
        x = mp.sqrt(z)
        return mp.erf(x) / x if z > 1e-20 else scale

    show("ERF_F32", erf_rest, one, range(7), 0, 0.93**2)
    show("ERFC_F32", lambda t: mp.log(mp.erfc(t)), lambda t: mp.erfc(t), range(8), 0.92, 3.95)
    _show_lookup(erf_rest)
    show("ERF_F64", erf_rest, one, range(13), 0, 1.0)

    def scaled(q: mp.mpf) -> mp.mpf:
        x = 2 * (1 + q) / (1 - q)
        return mp.erfc(x) * mp.exp(x * x) * (1 + 2 * x)

    show("ERFC_F64", scaled, one, range(17), (1 - 2) / 3 - 0.001, (6.0 - 2) / 8 + 0.001)
    quarter = float(mp.pi / 4) ** 2 * 1.001
    show("SIN_F64", _odd_rest(mp.sin, -1 / 6), lambda z: z + mp.mpf("1e-5"), range(7), 0, quarter)

    def cos_rest(z: mp.mpf) -> mp.mpf:
        x = mp.sqrt(z)
        return (mp.cos(x) - 1 + z / 2) / z**2 if z > 1e-8 else mp.mpf(1) / 24 - z / 720

    show("COS_F64", cos_rest, lambda z: z * z + mp.mpf("1e-5"), range(7), 0, quarter)
    eighth = float(mp.tan(mp.pi / 8)) ** 2 * 1.001
    show("ATAN_F64", _odd_rest(mp.atan, -1 / 3), lambda z: z + mp.mpf("1e-5"), range(11), 0, eighth)
    show("ASIN_F64", _odd_rest(mp.asin, 1 / 6), lambda z: z + mp.mpf("1e-5"), range(12), 0, 0.25)


if __name__ == "__main__":
    main()
