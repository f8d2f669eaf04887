"""Whoever cannot see colours well, or uses no mouse or no screen, can use the page of a report."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import pytest

from fuser.cli.main import run
from fuser.report.charts import KINDS
from fuser.report.page import LIMIT, page
from fuser.report.record import Record
from models import TINY, build, save
from tests.report.test_colours import Colour, contrast, linear, palettes

VOID = ("meta", "link", "br", "img", "input", "hr")
OWN = tuple(f"own:{kind}" for kind in (*KINDS, "other", "idle"))
"""What `--own` is, of marks of each kind."""


def style() -> str:
    return resources.files("fuser.report").joinpath("page.css").read_text()


def script() -> str:
    return resources.files("fuser.report").joinpath("page.js").read_text()


@dataclass
class Element:
    name: str
    attributes: dict[str, str | None]
    parent: Element | None = None
    inside: list[Element] = field(default_factory=list)
    own: str = ""

    @property
    def text(self) -> str:
        return self.own + "".join(one.text for one in self.inside)

    @property
    def above(self) -> Iterator[Element]:
        one = self.parent
        while one is not None:
            yield one
            one = one.parent

    def __getitem__(self, name: str) -> str | None:
        return self.attributes.get(name)

    def all(self, *names: str) -> Iterator[Element]:
        for one in self.inside:
            if one.name in names or not names:
                yield one
            yield from one.all(*names)


class Tree(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = self.at = Element("", {})
        self.feed(text)
        assert self.at is self.root, f"<{self.at.name}> is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, dict(attrs), self.at)
        self.at.inside.append(made)
        if tag not in VOID:
            self.at = made

    def handle_endtag(self, tag: str) -> None:
        assert self.at.name == tag and self.at.parent is not None
        self.at = self.at.parent

    def handle_data(self, data: str) -> None:
        self.at.own += data


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Pages: measured, compared with another report, and of a target that is not here."""
    folder = tmp_path_factory.mktemp("access")
    save(build("bert", **{**TINY["bert"], "layers": 2}), folder / "bert.onnx")
    save(build("conv_block", **TINY["conv_block"]), folder / "conv_block.onnx")
    found = {}
    for name, *more in (
        ("bert", "--device", "cpu", "--dim", "sequence=8", "--iterations", "2"),
        ("conv_block", "--target", "sm_90a", "--iterations", "0"),
    ):
        file = folder / f"{name}.html"
        assert run(["report", str(folder / f"{name}.onnx"), *more, "--html", str(file)]) == 0
        found[name] = file.read_text()
    (folder / "short").mkdir()
    kept = folder / "report.json"
    args = ["--device", "cpu", "--dim", "sequence=8", "--iterations", "1", "--report", str(kept)]
    assert run(["profile", str(folder / "bert.onnx"), "--no-counters", *args]) == 0
    record = Record.read(kept)
    found["compared"] = page(record, record)
    return found


@pytest.fixture(params=["bert", "conv_block", "compared"])
def root(pages: dict[str, str], request: pytest.FixtureRequest) -> Element:
    return Tree(pages[request.param]).root


# Contrast -----------------------------------------------------------------------------------------

TEXTS = {
    # what a rule gives for text, and what that stands on: colours from below, with their opacity
    "text": [["back"], ["raised"], *(["back", f"{own}@.bar"] for own in OWN),
             *(["back", f"{own}@svg a:hover .bar"] for own in OWN),
             *(["back", f"{own}@.drawing .region"] for own in OWN),
             *(["back", f"{own}@.drawing a:hover .region"] for own in OWN)],
    "quiet": [["back"], ["raised"], *(["back", f"{own}@.drawing .region"] for own in OWN),
              *(["back", f"{own}@.drawing a:hover .region"] for own in OWN)],
    "link": [["back"], ["raised"]],
    "good": [["back"], ["raised"]],
    "bad": [["back"], ["raised"]],
}  # fmt: skip
MARKS = {
    # what is drawn and carries a meaning
    "focus": [["back"], ["raised"], *(["back", f"{own}@.drawing .region"] for own in OWN)],
    "quiet@.drawing .flow": [["back"]],
    "quiet": [["back"]],
    "link": [["back"]],
    "text": [["back"]],
    **{own: [["back"]] for own in OWN if own != "own:idle"},
}
"""`own:idle`, of the time that no kernel takes, has a line of the colour quiet around it."""


def opacity(selector: str) -> float:
    """What a rule of the style says, for fills or strokes."""
    for names, rules in re.findall(r"([^{}]*)\{([^{}]*)\}", style()):
        if selector in [name.strip() for name in names.split(",")] or (
            selector == ".bar" and names.strip() == "svg .bar"
        ):
            if found := re.search(r"(?:fill|stroke)-opacity: (\.\d+)", rules):
                return float(found[1])
    raise AssertionError(f"no rule {selector} with an opacity")


def gamma(colour: Colour) -> Colour:
    """Of linear red, green, blue what a screen mixes."""
    return (colour > 0.0031308) * (1.055 * colour.clip(1e-9) ** (1 / 2.4) - 0.055) + (
        colour <= 0.0031308
    ) * (12.92 * colour)


def ungamma(colour: Colour) -> Colour:
    return linear("#" + "".join(f"{round(float(part) * 255):02x}" for part in colour))


def mixed(layers: list[str], palette: dict[str, Colour]) -> Colour:
    """What colours one over the other give."""
    found: Colour | None = None
    for layer in layers:
        name, _, selector = layer.partition("@")
        name = name.removeprefix("own:").replace("idle", "line")
        over, share = gamma(palette[name]), opacity(selector) if selector else 1.0
        found = over if found is None else share * over + (1 - share) * found
    assert found is not None
    return ungamma(found)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("pairs", "least"), [(TEXTS, 4.5), (MARKS, 3.0)], ids=["text", "marks"])
def test_contrast(scheme: str, pairs: dict[str, list[list[str]]], least: float) -> None:
    """WCAG AA, which asks 4.5 of text and 3 of what is drawn."""
    palette = palettes()[scheme]
    bad = []
    for front, backs in pairs.items():
        for back in backs:
            ratio = contrast(mixed([*back, front], palette), mixed(back, palette))
            if ratio < least:
                bad.append(f"{front} on {back[-1]}: {ratio:.2f}")
    assert not bad, bad


def test_marks_that_are_tints_have_an_edge() -> None:
    """Or a band of their colour: of themselves they hardly stand out."""
    for names, rules in re.findall(r"([^{}]*)\{([^{}]*)\}", style()):
        if found := re.search(r"fill-opacity: (\.\d+)", rules):
            named = {name.strip() for name in names.split(",")}
            bands = {"svg .bar", ".drawing a:hover .region", ".drawing a.chosen .region"}
            assert float(found[1]) > 0.6 or named <= bands or "stroke: var(" in rules, names


def test_mixing() -> None:
    palette = palettes()["light"]
    assert contrast(mixed(["back"], palette), palette["back"]) == pytest.approx(1, abs=0.01)
    assert contrast(linear("#767676"), linear("#ffffff")) == pytest.approx(4.54, abs=0.01)
    grey = ungamma(gamma(linear("#808080")))
    assert contrast(grey, linear("#808080")) == pytest.approx(1, abs=0.01)


def test_every_colour_of_text_is_checked() -> None:
    """A rule that gives text another colour needs a pair in TEXTS."""
    for names, rules in re.findall(r"([^{}]*)\{([^{}]*)\}", style()):
        for value in re.findall(r"(?<![-\w])color: ([^;]+);", rules):
            assert value == "inherit" or re.fullmatch(r"var\(--(\w+)\)", value), (names, value)
            assert value == "inherit" or value[6:-1] in TEXTS, (names, value)
        if re.search(r"\btext\b|\.foot|\.head", names):
            for value in re.findall(r"(?<![-\w])fill: var\(--(\w+)\);", rules):
                assert value in TEXTS, (names, value)


# Keyboard -----------------------------------------------------------------------------------------


def test_what_can_be_clicked_takes_the_keyboard(root: Element) -> None:
    for one in root.all():
        assert not [name for name in one.attributes if name.startswith("on")], one.attributes
        index = one["tabindex"]
        assert index in (None, "0", "-1"), "an order of its own"
        if index == "0" and one.name not in ("pre", "a", "button"):
            assert one["role"] and one["aria-label"], one
    assert all(one["href"] for one in root.all("a"))
    # Drawings need not be walked through: the tables hold the same links.
    reached = {one["href"] for one in root.all("a") if one["tabindex"] != "-1"}
    passed = {one["href"] for one in root.all("a") if one["tabindex"] == "-1"}
    assert passed and passed <= reached


def test_the_script_listens_to_clicks_on_buttons_and_links_alone() -> None:
    heard = re.findall(r"(\w+)\.addEventListener\(\"(?:click|mousedown|pointerdown)\"", script())
    assert set(heard) == {"document", "button"}
    (at,) = re.finditer(
        r'document\.addEventListener\("click", \(event\) => \{(.*?)\n\}', script(), re.DOTALL
    )
    assert "closest('a[href" in at[1], "a click on anything else"
    made = re.findall(r'const button = (?:element|document\.createElement)\("(\w+)"', script())
    assert made and set(made) == {"button"}


def test_focus_is_seen() -> None:
    assert re.search(r":focus-visible \{ outline: 2px solid var\(--focus\)", style())
    hidden = re.findall(r"([^{}]*)\{[^{}]*outline: (?:none|0)[^{}]*\}", style())
    without = {name.strip() for names in hidden for name in names.split(",")}
    # Regions have a line of their own; a kernel's title is not reached by Tab.
    assert without == {".drawing a:focus", ".kernel:focus", ".kernel h3:focus"}
    assert ".drawing a:focus-visible .region { stroke: var(--focus)" in style()


# Labels and structure -----------------------------------------------------------------------------


def test_the_document_has_a_language_a_title_and_a_width(root: Element) -> None:
    (top,) = root.all("html")
    (title,) = [one for one in root.all("title") if all(x.name != "svg" for x in one.above)]
    assert top["lang"] == "en" and title.text.strip()
    assert "width=device-width" in str(
        [one["content"] for one in root.all("meta") if one["name"] == "viewport"]
    )
    assert "user-scalable" not in str([one["content"] for one in root.all("meta")])
    assert len(list(root.all("main"))) == len(list(root.all("h1"))) == 1
    first = next(one for one in root.all("a"))
    assert first["class"] == "skip" and first["href"] in ids(root)


def ids(root: Element) -> set[str]:
    return {f"#{one['id']}" for one in root.all() if one["id"]}


def test_drawings_regions_and_controls_have_names(root: Element) -> None:
    drawings = list(root.all("svg", "img"))
    assert len(drawings) > 2
    for one in drawings:
        assert one["aria-label"] and one["role"] in ("group", "img")
        assert one.inside[0].name == "title" and one.inside[0].text == one["aria-label"]
    for one in root.all("nav"):
        assert one["aria-label"]
    for one in root.all("section"):
        assert f"#{one['aria-labelledby']}" in ids(root)
    for one in root.all("a", "button", "summary", "th", "caption"):
        assert one.text.strip() or one["aria-label"] or one.name == "th", one.attributes
    for one in root.all("input", "select", "textarea"):
        assert one["aria-label"]
    for one in root.all("th"):
        assert one["scope"] in ("col", "row")
    for one in root.all("table"):
        assert [each.name for each in one.inside] == ["caption", "thead", "tbody"]
    for inner, outer in (("li", ("ul", "ol")), ("dt", ("dl", "div")), ("dd", ("dl", "div"))):
        assert all(one.parent and one.parent.name in outer for one in root.all(inner))
    for one in root.all("ul", "ol"):
        assert one.inside and {each.name for each in one.inside} == {"li"}
    created = re.findall(r'element\("(?:input|output|button)", [^,]+, (\{[^}]*\})', script())
    assert created and all("aria-" in text for text in created)


def test_headings_leave_no_level_out(root: Element) -> None:
    levels = [int(one.name[1]) for one in root.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_colour_is_never_all_that_tells(root: Element) -> None:
    """A kind of kernels has its colour's name beside it, a mark in a drawing its own words."""
    for one in root.all("i"):
        assert one["aria-hidden"] == "true" and one.parent and one.parent.text.strip()
    for one in root.all("span"):
        if one["class"] in ("better", "worse"):
            assert one.text.strip()[0] in "+-"


def test_pages_are_small_and_ask_for_nothing(pages: dict[str, str]) -> None:
    for text in pages.values():
        assert len(text.encode()) <= LIMIT
        assert not re.search(r"https?:|url\(|@import|\b(?:src|srcset|poster|action)=", text)
        assert "default-src &#x27;none&#x27;" in text


def test_what_is_wrong_is_found() -> None:
    def tree(text: str) -> Any:
        return Tree(text).root

    with pytest.raises(AssertionError):
        test_headings_leave_no_level_out(tree("<h1>a</h1><h3>b</h3>"))
    with pytest.raises(AssertionError):
        test_what_can_be_clicked_takes_the_keyboard(tree('<a href="#a" tabindex="3">x</a>'))
    with pytest.raises(AssertionError):
        test_what_can_be_clicked_takes_the_keyboard(tree('<p onclick="x()">x</p>'))
    with pytest.raises(AssertionError):
        Tree("<p><b></p>")
