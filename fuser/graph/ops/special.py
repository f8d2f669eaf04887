"""The error function in float64, for which NumPy has no ufunc.

Source: the piecewise rational approximations of FreeBSD msun `s_erf.c` (Sun Microsystems, 1993),
error below 1 ulp there; here below 1e-15, since exp(-x*x) is not split into two factors.
"""

from __future__ import annotations

import numpy as np

from fuser.graph.ops.primitive import Array

# Lowest power first. erf(x) = x + x*P(x^2)/Q(x^2) for |x| < 0.84375.
_PP = (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
       -5.77027029648944159157e-03, -2.37630166566501626084e-05)  # fmt: skip
_QQ = (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
       1.32494738004321644526e-04, -3.96022827877536812320e-06)  # fmt: skip
# erf(x) = ERX + P(|x| - 1)/Q(|x| - 1) for 0.84375 <= |x| < 1.25.
_ERX = 8.45062911510467529297e-01
_PA = (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
       3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
       -2.16637559486879084300e-03)  # fmt: skip
_QA = (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
       1.26171219808761642112e-01, 1.36370839120290507362e-02,
       1.19844998467991074170e-02)  # fmt: skip
# erf(x) = 1 - exp(-x*x - 0.5625 + R(1/x^2)/S(1/x^2))/x for 1.25 <= |x| < 1/0.35, then < 6.
_RA = (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01,
       -6.23753324503260060396e+01, -1.62396669462573470355e+02, -1.84605092906711035994e+02,
       -8.12874355063065934246e+01, -9.81432934416914548592e+00)  # fmt: skip
_SA = (1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
       6.45387271733267880336e+02, 4.29008140027567833386e+02, 1.08635005541779435134e+02,
       6.57024977031928170135e+00, -6.04244152148580987438e-02)  # fmt: skip
_RB = (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01,
       -1.60636384855821916062e+02, -6.37566443368389627722e+02, -1.02509513161107724954e+03,
       -4.83519191608651397019e+02)  # fmt: skip
_SB = (1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
       3.19985821950859553908e+03, 2.55305040643316442583e+03, 4.74528541206955367215e+02,
       -2.24409524465858183362e+01)  # fmt: skip


def _rational(x: Array, numerator: tuple[float, ...], denominator: tuple[float, ...]) -> Array:
    top = np.full_like(x, numerator[-1])
    for coefficient in numerator[-2::-1]:
        top *= x
        top += coefficient
    bottom = np.full_like(x, denominator[-1])
    for coefficient in denominator[-2::-1]:
        bottom *= x
        bottom += coefficient
    return np.asarray(top / bottom)


def erf(x: Array) -> Array:
    """The error function of a float array, computed in float64, in the dtype of x."""
    wide = np.asarray(x, np.float64)
    magnitude = np.abs(wide)
    result = np.where(np.isnan(wide), np.nan, 1.0)
    small = magnitude < 0.84375
    part = magnitude[small]
    result[small] = part + part * _rational(part * part, _PP, _QQ)
    middle = (magnitude >= 0.84375) & (magnitude < 1.25)
    result[middle] = _ERX + _rational(magnitude[middle] - 1.0, _PA, _QA)
    for low, high, top, bottom in ((1.25, 1 / 0.35, _RA, _SA), (1 / 0.35, 6.0, _RB, _SB)):
        tail = (magnitude >= low) & (magnitude < high)
        part = magnitude[tail]
        square = part * part
        exponent = _rational(1.0 / square, top, bottom) - 0.5625 - square
        result[tail] = 1.0 - np.exp(exponent) / part
    return np.copysign(result, wide).astype(x.dtype)
