"""The page at `/`: the models, what they take and give, and how to ask them. It has no script and
asks for nothing else."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable
from urllib.parse import quote

from fuser import __version__
from fuser.serve.models import Model
from fuser.serve.tensors import Tensor

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content-Security-Policy of the page."""
MOST_VALUES = 32
"""Values of an input that an example for a shell holds; larger inputs have one in Python."""
MOST_MODELS = 200
_HOST = re.compile(r"[A-Za-z0-9.:_-]+|\[[0-9a-fA-F:.]+\](:\d+)?")
"""A host name that needs no quotes in a command."""

_STYLE = """
:root { color-scheme: light dark; --quiet: #535b66; --line: #d5dae0; --raised: #f5f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --quiet: #a4adb8; --line: #363d46; --raised: #1d2127; }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 0 1rem; }
p, caption { color: var(--quiet); } caption { text-align: left; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; }
tr { border-bottom: 1px solid var(--line); }
pre { background: var(--raised); padding: .6rem .8rem; overflow-x: auto; font-size: 14px; }
section { border-top: 1px solid var(--line); margin-top: 1.5rem; }
"""


def index_page(models: Iterable[Model], host: str) -> str:
    """The page as HTML. host: what a client called this server, with its port."""
    where = f"http://{host if _HOST.fullmatch(host) else 'localhost:8000'}"
    shown = list(models)
    body = "".join(_section(model, where) for model in shown[:MOST_MODELS])
    more = len(shown) - MOST_MODELS
    rest = f"<p>{more} more are not shown.</p>" if more > 0 else ""
    counted = f"{len(shown)} model{'s' * (len(shown) != 1)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>fuser: {counted}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{counted}</h1><p>fuser {_text(__version__)} answers by the Open Inference Protocol,"
        ' over HTTP and gRPC. <a href="/v2">Server</a> · <a href="/v2/health/ready">ready</a> ·'
        f' <a href="/metrics">metrics</a></p>{body}{rest}</body></html>\n'
    )


def _section(model: Model, where: str) -> str:
    name = _text(model.name)
    path = f"/v2/models/{quote(model.name, safe='')}"
    parts = [f'<section><h2 id="{name}">{name}</h2>',
             f"<p>Platform {_text(model.platform)}."
             f' <a href="{path}">Metadata</a></p>',
             _table("Inputs", model.inputs), _table("Outputs", model.outputs)]  # fmt: skip
    url = f"{where}{path}/infer"
    if sum(math.prod(_example(tensor)) for tensor in model.inputs) <= MOST_VALUES:
        parts.append(f"<p>In a shell:</p><pre>{_text(_curl(model, url))}</pre>")
    parts.append(f"<p>In Python:</p><pre>{_text(_python(model, url))}</pre></section>")
    return "".join(parts)


def _table(caption: str, tensors: Iterable[Tensor]) -> str:
    rows = "".join(
        f"<tr><td>{_text(tensor.name)}</td><td>{tensor.datatype}</td><td>{_shape(tensor)}</td></tr>"
        for tensor in tensors
    )
    head = "<tr><th>name</th><th>datatype</th><th>shape</th></tr>"
    return f"<table><caption>{caption}</caption><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _shape(tensor: Tensor) -> str:
    return ", ".join("any" if size < 0 else str(size) for size in tensor.shape) or "a scalar"


def _example(tensor: Tensor) -> list[int]:
    """Its shape with 1 for open sizes."""
    return [1 if size < 0 else size for size in tensor.shape]


def _curl(model: Model, url: str) -> str:
    inputs = [
        {
            "name": tensor.name, "datatype": tensor.datatype, "shape": _example(tensor),
            "data": [tensor.datatype == "BOOL" or 0] * math.prod(_example(tensor)),
        }
        for tensor in model.inputs
    ]  # fmt: skip
    body = json.dumps({"inputs": inputs}).replace("'", "\\u0027")  # it stands in quotes of a shell
    return f"curl '{url}' -d '{body}'"


def _python(model: Model, url: str) -> str:
    lines = ["import json, urllib.request", "import numpy as np", "", "arrays = {"]
    for tensor in model.inputs:
        dtype = "float32" if tensor.datatype == "BF16" else tensor.dtype.name
        lines.append(f"    {tensor.name!r}: np.zeros({tuple(_example(tensor))}, {dtype!r}),")
    types = {tensor.name: tensor.datatype for tensor in model.inputs}
    return "\n".join([
        *lines, "}", f"datatypes = {types!r}",
        "inputs = [",
        '    {"name": name, "datatype": datatypes[name], "shape": x.shape,'
        ' "data": x.ravel().tolist()}',
        "    for name, x in arrays.items()",
        "]",
        'body = json.dumps({"inputs": inputs}).encode()',
        f"with urllib.request.urlopen({url!r}, body) as answer:",
        '    print(json.load(answer)["outputs"])',
    ])  # fmt: skip


def _text(text: str) -> str:
    """Names of a model may be part of it."""
    return html.escape("".join(x if x.isprintable() or x == "\n" else "?" for x in text))
