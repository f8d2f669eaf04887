"""A Sphinx extension: docstrings as plain text with `code`, and the functions of the language.

Docstrings here are paragraphs, blocks of code that are indented, and lists. reStructuredText would
take a star or an underscore in them for markup.
"""

from __future__ import annotations

import builtins
import inspect
import re
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import fuser.errors
import fuser.language
from fuser.language.registry import TABLE


def plain(text: str) -> str:
    """A paragraph as reStructuredText: `code` as literals, names of the API and pages of docs/ as
    links, nothing else as markup."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        raise ValueError(f"a ` has no partner in: {text}")
    out = ""
    for i, part in enumerate(parts):
        if i % 2:  # "\\ " ends markup beside a letter
            name = re.fullmatch(r"fuser(\.\w+)+|[A-Z]\w+(\.\w+)?", part)
            out += f"\\ :py:obj:`{part}`\\ " if name else f"\\ ``{part.strip()}``\\ "
        else:
            part = re.sub(r"([\\*|_<])", r"\\\1", part)
            part = re.sub(r"\b[A-Z]\w+Error\b", lambda m: _error(m[0]), part)
            out += re.sub(r"\bdocs/([\w/-]+)\.md\b", r":doc:`docs/\1.md </docs/\1>`", part)
    return out


def _error(name: str) -> str:
    return f":py:exc:`{name} <fuser.errors.{name}>`" if hasattr(fuser.errors, name) else name


def sentences(text: str, names: list[str]) -> list[str]:
    """A paragraph: parameters (`name: ...`, `one, two: ...`) as a list, errors by themselves."""
    name = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
    begins = rf"(?:^|(?<=[.;)] ))(?=(?:(?:{name}), )*(?:{name}): |Raises )"
    out: list[str] = []
    for piece in re.split(begins, " ".join(text.split())):
        found = re.match(rf"((?:(?:{name}), )*(?:{name})): (.*)", piece)
        if found:
            given = ", ".join(f"``{item}``" for item in found[1].split(", "))
            out.append(f"* {given}: {plain(found[2].strip().rstrip(';'))}")
        elif piece.strip():
            out += ["", plain(piece.strip()), ""]
    return [*out, ""]


def restructured(lines: list[str], names: list[str]) -> list[str]:
    """The lines of a docstring as reStructuredText. names: of the parameters."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        rows = block.splitlines()
        text = "\n".join(row for row in rows if not row.startswith("    "))
        code = [row for row in rows if row.startswith("    ")]
        if re.match(r"[*-] ", text):
            out += [f"* {plain(' '.join(i.split()))}" for i in re.split(r"(?m)^[*-] ", block)[1:]]
            out.append("")
            continue
        if text:
            out += sentences(text, names)
        if code:
            out += [".. code-block:: python", "", *code, ""]
    return out


def parameters(item: Any) -> list[str]:
    """The names of what a function or a class takes."""
    try:
        return list(inspect.signature(item).parameters)
    except (TypeError, ValueError):
        return []


def on_docstring(
    app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]
) -> None:
    """Sphinx's event: the lines are changed in place. Pages have words of their own for modules."""
    lines[:] = [] if what == "module" else restructured(lines, parameters(item))


class Builtins(SphinxDirective):
    """Functions of the block language: `.. builtins:: name...`."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        text: list[str] = []
        for name in " ".join(self.content).split():
            function = TABLE[name]
            lines = restructured(
                inspect.cleandoc(function.doc).splitlines(), parameters(function.call)
            )
            text += [f".. py:function:: fl.{name}{signature(function)}", ""]
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


def on_tree(app: Sphinx, tree: nodes.document) -> None:
    """Sphinx's event: a type like bytes is Python's, not the member of a class with that name."""
    for node in list(tree.findall(pending_xref)):
        if node.get("reftype") == "class" and hasattr(builtins, node["reftarget"]):
            node.replace_self(nodes.inline("", node["reftarget"]))


def setup(app: Sphinx) -> dict[str, bool]:
    fuser.language.__all__  # noqa: B018  loads the table of functions
    app.connect("autodoc-process-docstring", on_docstring)
    app.connect("doctree-read", on_tree)
    app.add_directive("builtins", Builtins)
    for language in ("tile", "tile-frame"):
        app.add_lexer(language, TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
