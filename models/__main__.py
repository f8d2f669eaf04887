"""Write a model to a file: python -m models bert --layers 2 --hidden 64 --heads 4 -o bert.onnx.

Each model is a subcommand whose options are the keywords of its builder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, get_type_hints

import click
import numpy as np
import onnx

from fuser.graph.units import counted, operations
from fuser.runtime.terminal import echo, table
from models import MODELS, example_feeds, save
from models.generate import command as generate
from models.minilm import SENTENCES, encode


def _option(name: str, hint: Any, default: Any) -> click.Option:
    if hint is bool:
        return click.Option([f"--{name.replace('_', '-')}"], is_flag=True)
    shown = "symbolic" if name in ("batch", "sequence") else default is not None
    if name == "dtype":
        kind: Any = click.Choice(["float32", "float16", "bfloat16"])
    else:
        kind = int
    flag = f"--{name.replace('_', '-')}"
    return click.Option([flag, name], type=kind, default=default, show_default=shown)


def _feeds(name: str, model: onnx.ModelProto) -> dict[str, Any]:
    return encode(SENTENCES) if name == "minilm" else example_feeds(model)


def _write(
    name: str, output: Path | None, feeds: Path | None, **options: int | str | bool | None
) -> None:
    model = MODELS[name](**options)
    path = output or Path(f"{name}.onnx")
    save(model, path)
    weights = sum(
        prod(tensor.dims)
        for tensor in model.graph.initializer
        if tensor.data_type not in (onnx.TensorProto.INT64, onnx.TensorProto.BOOL)
    )
    size = f"{counted(len(model.graph.node), 'node')}, {operations(weights)} parameters"
    rows = [("model", f"{path}, {size}")]
    if feeds is not None:
        arrays: dict[str, Any] = _feeds(name, model)
        np.savez(feeds, **arrays)
        rows.append(("feeds", f"{feeds}: {', '.join(arrays)}"))
    echo(table(rows, labels=True, paint=True))


def _command(name: str, builder: Callable[..., onnx.ModelProto]) -> click.Command:
    function, summary = builder, inspect.getdoc(builder)
    if isinstance(builder, partial):
        function = builder.func
        fixed = ", ".join(f"{key}={value}" for key, value in builder.keywords.items())
        summary = f"{function.__name__} with {fixed}.\n\n{inspect.getdoc(function)}"
    hints = get_type_hints(function)
    options: list[click.Parameter] = [
        _option(key, hints[key], parameter.default)
        for key, parameter in inspect.signature(builder).parameters.items()
    ]
    file = click.Path(dir_okay=False, path_type=Path)
    options.append(click.Option(["-o", "--output"], type=file, help="NAME.onnx by default."))
    options.append(click.Option(["--feeds"], type=file, help="Also write example inputs (.npz)."))
    return click.Command(
        name,
        params=options,
        callback=partial(_write, name),
        help=summary,
    )


main = click.Group(
    "models",
    commands={name: _command(name, builder) for name, builder in MODELS.items()}
    | {"generate": generate},
    help="Write a model with seeded weights to an ONNX file, or generate tokens with one.",
)

if __name__ == "__main__":
    main()
