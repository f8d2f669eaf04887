"""`fuser serve`: models over the Open Inference Protocol."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuser.cli import options
from fuser.errors import UsageError

if TYPE_CHECKING:
    from fuser.pipeline.devices import Device
    from fuser.serve.server import Listening
    from fuser.serve.service import Service


@click.command("serve")
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL|PLAN...")
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address to listen on; 0.0.0.0 is every one of this machine.")  # fmt: skip
@click.option("--http-port", type=click.IntRange(-1, 65535), default=8000, show_default=True,
              help="0: any free port; -1: no HTTP.")  # fmt: skip
@click.option("--grpc-port", type=click.IntRange(-1, 65535), default=8001, show_default=True,
              help="0: any free port; -1: no gRPC.")  # fmt: skip
@click.option("--max-batch", type=click.IntRange(min=1), default=8, show_default=True,
              help="Most rows of a run that requests share; 1: they share none.")  # fmt: skip
@click.option("--wait-ms", type=click.FloatRange(min=0), default=0.0, show_default=True,
              help="How long an idle device lets a request wait for others.")  # fmt: skip
@click.option("--warm", multiple=True, metavar="NAME=N[,NAME=N]",
              help="Prepare these sizes of open dims before serving.")  # fmt: skip
@click.option("--max-waiting", type=click.IntRange(min=1), default=1024, show_default=True,
              help="Requests to a model that may wait; more get 503.")  # fmt: skip
@click.option("--max-request-bytes", type=click.IntRange(min=1), default=64 << 20,
              show_default=True, help="Of a request, unpacked; larger ones get 413.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0,
              show_default=True, help="Seconds to receive a request, or to answer.")  # fmt: skip
@click.option("--drain", type=click.FloatRange(min=0), default=30.0, show_default=True,
              help="Seconds to answer what was accepted before SIGTERM.")  # fmt: skip
@click.option("--access-log", is_flag=True,
              help="Tell of each request on the standard error stream.")  # fmt: skip
@click.option("--triton-repository", type=click.Path(path_type=Path), metavar="DIR",
              help="Write plans as models of NVIDIA Triton's Python backend, and end.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; one a core by default.")
@options.device
@options.dim
@options.verbose
def serve_command(
    models: tuple[str, ...], host: str, http_port: int, grpc_port: int, max_batch: int,
    wait_ms: float, warm: tuple[str, ...], max_waiting: int, max_request_bytes: int,
    timeout: float, drain: float, access_log: bool, triton_repository: Path | None,
    threads: int | None, device: Device, dim: tuple[str, ...],
) -> int:  # fmt: skip
    """Serve plan files and ONNX models over HTTP and gRPC until SIGTERM.

    The name of a model is that of its file, unless it is given. docs/serving.md.
    """
    import asyncio

    if triton_repository:
        return _write(triton_repository, models, str(device), max_batch)
    try:
        from fuser.serve import server
    except ModuleNotFoundError as error:
        raise UsageError(
            f"serving needs the package {error.name}",
            hint='pip install "fuser-compiler[serve]"; where fuser-runtime is installed,'
            ' "fuser-runtime[serve]"',
        ) from error
    from fuser.runtime.terminal import echo, notice, paragraphs
    from fuser.serve.opening import open_model
    from fuser.serve.service import Limits

    if http_port < 0 and grpc_port < 0:
        raise UsageError("neither HTTP nor gRPC is left to listen on")
    dims, sizes = options.parse_dims(dim), options.dims_of_options(warm)
    opened = []
    for item in models:
        name, path = _named(item)
        opened.append(open_model(
            path, name=name, device=str(device), threads=threads, dims=dims, most=max_batch,
            warm=sizes,
        ))  # fmt: skip
    address = server.Address(
        host, None if http_port < 0 else http_port, None if grpc_port < 0 else grpc_port
    )
    limits = Limits(max_request_bytes, timeout, max_waiting, wait_ms / 1e3, drain)

    def ready(service: Service, ports: Listening) -> None:
        for label, port in (("http", ports.http_port), ("grpc", ports.grpc_port)):
            if port is not None:
                click.echo(f"{label} {host}:{port}")
        for model in service.models:
            echo(paragraphs(f"model {model.name}: {model.summary()}"), err=True)

    log = functools.partial(click.echo, err=True) if access_log else None
    answered = asyncio.run(server.serve(opened, address, limits, ready=ready, access_log=log))
    if not answered:
        notice(f"note: some requests were not answered within {drain:g} s")
    return 0 if answered else 1


def _write(folder: Path, models: tuple[str, ...], device: str, max_batch: int) -> int:
    from fuser.serve.opening import is_plan, open_model
    from fuser.serve.triton_repository import write_repository

    for item in models:
        name, path = _named(item)
        if not is_plan(path):
            raise UsageError(f"{path} is no plan", hint="fuser compile MODEL -o PLAN makes one")
        model = open_model(path, name=name, device=device, most=max_batch)
        click.echo(f"{write_repository(folder, model, path)}")
    return 0


def _named(item: str) -> tuple[str, Path]:
    """`NAME=FILE` or a file. Raises UsageError."""
    name, equals, file = item.partition("=")
    if not equals or Path(item).exists():
        return "", Path(item)
    if not name or not file or "/" in name:
        raise UsageError(f"{item}: expected NAME=FILE")
    return name, Path(file)
