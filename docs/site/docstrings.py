"""A Sphinx extension: docstrings as plain text with `code`, and the functions of the language.

Docstrings here are paragraphs, blocks of code that are indented, and lists. reStructuredText would
take a star or an underscore in them for markup.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import fuser.language
from fuser.language.registry import TABLE


def plain(text: str) -> str:
    """A paragraph as reStructuredText: `code` as literals, nothing else as markup."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        raise ValueError(f"a ` has no partner in: {text}")
    out = ""
    for i, part in enumerate(parts):
        if i % 2:  # "\\ " ends markup beside a letter
            out += f"\\ ``{part.strip()}``\\ "
        else:
            out += re.sub(r"([\\*|_<])", r"\\\1", part)
    return out


def restructured(lines: list[str]) -> list[str]:
    """The lines of a docstring as reStructuredText."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        rows = block.splitlines()
        if not rows:
            continue
        if all(row.startswith("    ") for row in rows):
            out += [".. code-block:: python", "", *rows, ""]
        elif re.match(r"\s*[*-] ", rows[0]):
            for item in re.split(r"(?m)^\s*[*-] ", block)[1:]:
                out.append("* " + plain(" ".join(item.split())))
            out.append("")
        else:
            # Code that follows a line of text at once.
            text = [row for row in rows if not row.startswith("    ")]
            code = [row for row in rows if row.startswith("    ")]
            out += [plain(" ".join(" ".join(text).split())), ""]
            if code:
                out += [".. code-block:: python", "", *code, ""]
    return out


def on_docstring(
    app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]
) -> None:
    """Sphinx's event: the lines are changed in place. Pages have words of their own for modules."""
    lines[:] = [] if what == "module" else restructured(lines)


class Builtins(SphinxDirective):
    """Functions of the block language: `.. builtins:: name...`."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        text: list[str] = []
        for name in " ".join(self.content).split():
            function = TABLE[name]
            lines = restructured(inspect.cleandoc(function.doc).splitlines())
            text += [f".. py:function:: fuser.language.{name}{signature(function)}", ""]
            text += [f"   {line}" for line in lines]
            text.append("")
        return self.parse_text_to_nodes("\n".join(text))


def signature(function: Any) -> str:
    """What a function of the language takes, without the emitter and without types."""
    found = inspect.signature(function.call)
    empty = inspect.Parameter.empty
    given = [p.replace(annotation=empty) for p in list(found.parameters.values())[1:]]
    text = str(inspect.Signature(given))
    return text.replace("triton.language.", "")


def setup(app: Sphinx) -> dict[str, bool]:
    fuser.language.__all__  # noqa: B018  loads the table of functions
    app.connect("autodoc-process-docstring", on_docstring)
    app.add_directive("builtins", Builtins)
    for language in ("tile", "tile-frame"):
        app.add_lexer(language, TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
