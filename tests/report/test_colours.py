"""The colours of a page can be told apart, by people with every kind of colour vision."""

from __future__ import annotations

import itertools
import re
from importlib import resources

import numpy as np
import pytest

from fuser.report.charts import KINDS, kind_class

MIN_DIFFERENCE = 10.0
"""Of two colours of kinds, as CIEDE2000 has it; 1 is what a trained eye sees side by side."""
VISIONS = {
    "usual": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                            [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
"""Machado, Oliveira and Fernandes (2009), severity 1: what is seen of linear red, green, blue."""
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                   [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
WHITE = TO_XYZ.sum(axis=1)
NAMES = (*KINDS, "other")

Colour = np.ndarray
"""Linear red, green, blue."""


def palettes() -> dict[str, dict[str, Colour]]:
    """The colours of the page by name, in light and in dark."""
    css = resources.files("fuser.report").joinpath("page.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    return {"light": colours(light), "dark": colours(dark)}


def colours(rules: str) -> dict[str, Colour]:
    found = re.findall(r"--([a-z]+): (#[0-9a-f]{3,6});", rules)
    return {name: linear(text) for name, text in found}


def linear(text: str) -> Colour:
    digits = "".join(2 * digit for digit in text[1:]) if len(text) == 4 else text[1:]
    value = np.array([int(digits[at : at + 2], 16) for at in (0, 2, 4)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: Colour, other: Colour) -> float:
    """As WCAG has it."""
    low, high = sorted(float(TO_XYZ[1] @ colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(colour: Colour) -> np.ndarray:
    ratio = TO_XYZ @ np.clip(colour, 0, 1) / WHITE
    x, y, z = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def ciede2000(one: np.ndarray, other: np.ndarray) -> float:
    """The difference of two colours in CIELAB."""
    mean = (np.hypot(*one[1:]) + np.hypot(*other[1:])) / 2
    stretch = 1.5 - 0.5 * np.sqrt(mean**7 / (mean**7 + 25**7))
    (l1, c1, h1), (l2, c2, h2) = (
        (light, np.hypot(a * stretch, b), np.degrees(np.arctan2(b, a * stretch)) % 360)
        for light, a, b in (one, other)
    )  # fmt: skip
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    hue = h1 + h2 if c1 * c2 == 0 else (h1 + turn / 2) % 360
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    waves = ((-0.17, 1, -30), (0.24, 2, 0), (0.32, 3, 6), (-0.20, 4, -63))
    t = 1 + sum(size * np.cos(np.radians(k * hue + shift)) for size, k, shift in waves)
    sl = 1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2)
    dl, dc = (l2 - l1) / sl, (c2 - c1) / (1 + 0.045 * chroma)
    dh = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * chroma * t)
    angle = 60 * np.exp(-(((hue - 275) / 25) ** 2))
    rotation = -2 * np.sqrt(chroma**7 / (chroma**7 + 25**7)) * np.sin(np.radians(angle))
    return float(np.sqrt(dl**2 + dc**2 + dh**2 + rotation * dc * dh))


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 2.5, 0.0), (50.0, 0.0, -2.5), 4.3065),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((22.7233, 20.0904, -46.6940), (23.0331, 14.9730, -42.5619), 2.0373),
        ((90.8027, -2.0831, 1.4410), (91.1528, -1.6435, 0.0447), 1.4441),
    ],
)
def test_the_difference_is_that_of_the_published_pairs(
    one: tuple[float, ...], other: tuple[float, ...], wanted: float
) -> None:
    """Pairs of Sharma, Wu and Dalal (2005)."""
    assert ciede2000(np.array(one), np.array(other)) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_kinds_are_told_apart(scheme: str, vision: str) -> None:
    found = palettes()[scheme]
    seen = {name: lab(VISIONS[vision] @ found[name]) for name in NAMES}
    for one, other in itertools.combinations(NAMES, 2):
        assert ciede2000(seen[one], seen[other]) >= MIN_DIFFERENCE, (one, other)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_stand_out_from_what_they_are_on(scheme: str) -> None:
    found = palettes()[scheme]
    for back in ("back", "raised"):
        for name in NAMES:
            assert contrast(found[name], found[back]) >= 3, (name, back)
        for name in ("text", "quiet", "link", "good", "bad"):
            assert contrast(found[name], found[back]) >= 4.5, (name, back)


def test_every_kind_has_a_class() -> None:
    css = resources.files("fuser.report").joinpath("page.css").read_text()
    for name in NAMES:
        assert f".k-{name} {{ --own: var(--{name}); }}" in css
    assert [kind_class(kind) for kind in ("conv", "sort", "")] == ["k-conv", "k-other", "k-idle"]
