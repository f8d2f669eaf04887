"""`fuser cache`: what the kernel cache holds; clear it."""

from __future__ import annotations

import click

from fuser.errors import UsageError


@click.command("cache")
@click.argument("action", type=click.Choice(["info", "clear", "dir"]), default="info")
def cache_command(action: str) -> int:
    """Say what the kernel cache holds (info), empty it (clear) or print its folder (dir)."""
    from fuser.backend import failed_kernels
    from fuser.base.config import Config
    from fuser.graph.units import byte_size, counted
    from fuser.runtime.cache import KernelCache
    from fuser.runtime.terminal import echo, table

    config = Config.from_environment()
    cache = KernelCache(config.cache_dir, quiet=True)
    if action == "dir":
        click.echo(cache.folder)  # for scripts: as it is
        return 0
    failed = cache.folder / "failed"
    if action == "clear":
        if not cache.enabled:
            raise UsageError(cache.note)
        count, size = cache.size()
        cache.clear()
        echo(f"removed {counted(count, 'entry', 'entries')}, {byte_size(size)}")
        return 0
    count, size = cache.size()
    state = "on" if config.cache and cache.enabled else cache.note or "off (FUSER_CACHE=0)"
    rows = [
        ("folder", str(cache.folder)), ("state", state), ("entries", f"{count:,}"),
        ("size", f"{byte_size(size)} of {byte_size(cache.limit_bytes)}"),
        ("failed kernels", str(failed_kernels.count(failed))),
    ]  # fmt: skip
    echo(table(rows, labels=True, paint=True))
    return 0
