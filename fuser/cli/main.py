"""The command line, a file a command. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from fuser import __version__
from fuser.cli import (
    bench,
    cache,
    compile,
    doctor,
    dump,
    explain,
    inspect,
    options,
    profile,
    report,
    serve,
    shard,
)
from fuser.cli import run as running
from fuser.errors import FuserError

NOTE = (
    "On Linux another `fuser` (of psmisc) may come first on the PATH;"
    " `fuserc` is the same command as this, and `python -m fuser` always works."
)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 ok, 1 mismatch, 2 usage, 3 invalid model,
    4 unsupported, 5 device, 6 memory or another limit, 70 internal."""
    try:
        with _notes_on_stderr():
            code = main.main(args=arguments, prog_name="fuser", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        what = _one_line(error.format_message()).rstrip(".")
        click.echo(f"error: {what}; see fuser --help", err=True)
        return error.exit_code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except FuserError as error:
        click.echo(f"error: {_one_line(str(error))}", err=True)
        return error.exit_code
    except MemoryError:
        click.echo("error: out of memory", err=True)
        return 6
    except Exception as error:  # a defect: one line, the traceback on request
        if "--debug" in (arguments or sys.argv):
            raise
        what = _one_line(f"{type(error).__name__}: {error}")
        click.echo(f"internal error: {what} (fuser --debug ... shows where)", err=True)
        return 70


@contextmanager
def _notes_on_stderr() -> Iterator[None]:
    """Warnings of the library, such as a cache folder that cannot be written, as lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("note: %(message)s"))
    logger = logging.getLogger("fuser")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _one_line(text: str) -> str:
    """Text of a model may be part of it: no control characters, and not without end."""
    line = "; ".join(line.strip() for line in text.splitlines() if line.strip())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= 3000 else f"{line[:2000]} ... {line[-900:]}"


@click.group(epilog=NOTE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fuser")
@options.verbose
@click.option("--debug", is_flag=True, help="Show the traceback of an internal error.")
def main(debug: bool) -> None:
    """Compile ONNX models to few fused kernels, and run them on the CPU or an NVIDIA GPU."""


main.add_command(running.run_command)
main.add_command(profile.profile_command)
main.add_command(bench.bench_command)
main.add_command(report.report_command)
main.add_command(explain.explain_command)
main.add_command(dump.dump_command)
main.add_command(compile.compile_command)
main.add_command(shard.shard_command)
main.add_command(inspect.inspect_command)
main.add_command(doctor.doctor_command)
main.add_command(serve.serve_command)
main.add_command(cache.cache_command)
