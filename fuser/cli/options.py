"""Options that several commands share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuser.errors import UsageError

if TYPE_CHECKING:
    from fuser.pipeline.devices import Device

PRECISIONS = ("model", "bf16", "int8w")


def parse_dims(items: Sequence[str], option: str = "--dim") -> dict[str, int]:
    """Sizes by name, of NAME=N. option: what the caller calls it, for messages."""
    dims: dict[str, int] = {}
    for item in items:
        name, _, size = item.partition("=")
        if not (name and size.isdecimal()):
            raise UsageError(
                f"{option} {item}: {_wrong_dim(item)}", hint=_dim_example(item, option)
            )
        dims[name] = int(size)
    return dims


def _wrong_dim(item: str) -> str:
    """What is wrong about text that is not NAME=N."""
    name, equals, size = item.partition("=")
    if not equals:
        return "a dim needs a name and a size with = between them"
    if not name:
        return "there is no name before the ="
    return (
        f"{size!r} is no size, which is a whole number" if size else "there is no size after the ="
    )


def _dim_example(item: str, option: str) -> str:
    """The option as it was probably meant."""
    if item.count("=") > 1 and "," in item:
        return "one dim an option: " + " ".join(f"{option} {part}" for part in item.split(","))
    name = re.match(r"[^\W\d][^\s=:]*", item)
    size = re.search(r"[0-9]+", item[name.end() :] if name else item)
    example = f"{option} {name[0] if name else 'batch'}={size[0] if size else 8}"
    ranges = "; a range is for --open of fuser compile" if ".." in item else ""
    return f"for example {example}{ranges}"


def dims_of_options(items: Sequence[str]) -> list[dict[str, int]]:
    """NAME=N,NAME=N of each `--warm`."""
    return [parse_dims(item.split(","), "--warm") for item in items]


class DeviceName(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A device, as fuser.compile takes it."""

    name = "device"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        from fuser.pipeline.devices import parse_device

        try:
            parse_device(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return str(value)


device = click.option(
    "--device", type=DeviceName(), default="auto", show_default=True, metavar="auto|cpu|cuda[:N]",
    help="Where to run; auto takes a GPU if there is one.",
)  # fmt: skip


class Devices(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A number of devices, or the name of a device configuration."""

    name = "devices"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        return int(value) if str(value).isdecimal() else str(value)


devices = click.option(
    "--devices", type=Devices(), metavar="N",
    help="Divide the model over N devices, or as its configuration of that name says.",
)  # fmt: skip
_TARGETS = (
    "Compile for sm_75, sm_80, sm_90a, avx2, avx512 (or cpu-avx2, cpu-avx512), ...,"
    " which need not be here."
)
target = click.option("--target", metavar="NAME", help=_TARGETS)
targets = click.option("--target", "target", metavar="NAME,...", help=_TARGETS)


def chosen(device: Device, target: str | None) -> Device:
    """What `--device` and `--target` mean together. Raises UsageError."""
    from fuser.base.target import TARGETS
    from fuser.errors import nearest

    if target is None:
        return device
    if device != "auto":
        raise UsageError("--device and --target are two devices", hint="give one of them")
    name = target.lower().removeprefix("cpu-")
    found = TARGETS.get(name)
    if found is None:
        hint = nearest(name, TARGETS, "one of")
        raise UsageError(f"there is no target {target!r}", hint=hint)
    return found


inputs = click.option(
    "-i", "--input", "inputs", multiple=True, metavar="FEED",
    help="NAME=F.npy, F.npz or a folder of input_*.pb; else random.",
)  # fmt: skip
dim = click.option(
    "--dim",
    "dim",
    multiple=True,
    metavar="NAME=N",
    help="Fix a symbolic dim; else 1 for a batch, about 128 for others.",
)


def _talk(context: click.Context, parameter: click.Parameter, count: int) -> int:
    from fuser.base.config import start_logs

    start_logs(("compile", "kernels")[:count])
    return count


def _load_kernels(
    context: click.Context, parameter: click.Parameter, files: tuple[Path, ...]
) -> tuple[Path, ...]:
    import runpy

    for number, file in enumerate(files):
        runpy.run_path(str(file), run_name=f"fuser_kernels_{number}")
    return files


kernels = click.option(
    "--kernels", multiple=True, metavar="FILE.py", expose_value=False, callback=_load_kernels,
    is_eager=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Python file that registers kernels for operators (fuser.register_kernel).",
)  # fmt: skip
measure = click.option(
    "--measure/--no-measure", default=True, show_default=True,
    help="Also run the plan without fusion, in turns, to tell what fusion saves in time.",
)  # fmt: skip
verbose = click.option(
    "-v", "--verbose", count=True, callback=_talk, expose_value=False,
    help="Tell the steps of compiling; -vv: each kernel.",
)  # fmt: skip
verbose_lists = click.option(
    "-v", "--verbose", count=True, callback=_talk,
    help="Lists in full, and the steps of compiling; -vv: each kernel.",
)  # fmt: skip
_LIMITS = (
    ("seconds", "Give up reading and compiling after this; 0: never. Default 1800."),
    ("bytes", "Most memory a plan may take; default: all there is."),
    ("nodes", "Most nodes of a graph, loops and functions written out. Default 100000."),
    ("kernel_seconds", "Split what takes longer to compile as one kernel; 0: never. Default 10."),
)


def limits(command: Callable[..., int]) -> Callable[..., int]:
    """Options for what a model may ask for; the command runs within them."""

    @functools.wraps(command)
    def run_within(**options: Any) -> int:
        from dataclasses import replace

        from fuser.base.config import Config, within

        given = {name: options.pop(f"max_{name}") for name, _ in _LIMITS}
        chosen = {name: value for name, value in given.items() if value is not None}
        chosen["data_folders"] = options.pop("data_folder")
        with within(replace(Config.from_environment().limits, **chosen)):
            return command(**options)

    for name, text in reversed(_LIMITS):
        option = click.option(
            f"--max-{name.replace('_', '-')}", type=click.IntRange(min=0), metavar="N", help=text
        )
        run_within = option(run_within)
    folder = click.option(
        "--data-folder", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
        help="Where links beside the model may lead, for its external data.",
    )  # fmt: skip
    return folder(run_within)


class NodePair(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Two names of nodes with a comma between them."""

    name = "pair"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        one, comma, other = value.partition(",")
        if not (comma and one and other) or "," in other or one == other:
            self.fail(f"{value!r} is no pair of nodes A,B", param, ctx)
        return one, other


def fusion(command: Callable[..., int]) -> Callable[..., int]:
    """Options for what fuses; the command gets them as `fusion`."""

    @functools.wraps(command)
    def run_with(**options: Any) -> int:
        from fuser.pipeline.fusion import Fusing, Fusion

        names = ("no_fusion", "pin", "forbid", "fold_norms")
        off, pin, forbid, norms = (options.pop(name) for name in names)
        if off and (pin or forbid or norms):
            raise UsageError("--no-fusion leaves nothing to pin, to forbid or to fold")
        chosen: Fusing = Fusion(pin, forbid, norms) if pin or forbid or norms else not off
        return command(fusion=chosen, **options)

    for option in (
        click.option("--fold-norms", is_flag=True,
                     help="On a GPU, matmuls apply the norm of their operand themselves."),
        click.option("--forbid", multiple=True, type=NodePair(), metavar="A,B",
                     help="Two nodes that no kernel computes both of."),
        click.option("--pin", multiple=True, type=NodePair(), metavar="A,B",
                     help="Two nodes that one kernel must compute; an error if none can."),
        click.option("--no-fusion", is_flag=True, help="One kernel for every operator."),
    ):  # fmt: skip
        run_with = option(run_with)
    return run_with


def numerics(command: Callable[..., int]) -> Callable[..., int]:
    """Options for which rewrites may change numbers; the command runs within them."""

    @functools.wraps(command)
    def run_using(numerics: Any, batch_invariant: bool, **options: Any) -> int:
        from fuser.graph.numerics import using

        with using(numerics, batch_invariant):
            return command(**options)

    invariant = click.option(
        "--batch-invariant", is_flag=True,
        help="A row's bits do not depend on how many rows there are.",
    )  # fmt: skip
    return click.option(
        "--numerics", type=click.Choice(["model", "fast", "strict"]), default="model",
        show_default=True, help="Which rewrites may change numbers (docs/numerics.md).",
    )(invariant(run_using))  # fmt: skip


host = click.option(
    "--host", type=click.Choice(["error", "allow"]), default="error", show_default=True,
    help="Run operators that no kernel can express on the host, and say which.",
)  # fmt: skip
precision = click.option(
    "--precision", type=click.Choice(PRECISIONS), default="model", show_default=True,
    help="What a CPU may round: operands of matmuls to bfloat16, or weights to 8 bits.",
)  # fmt: skip
