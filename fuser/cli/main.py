"""The command line, a file a command. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

import click

from fuser import __version__
from fuser.cli import options
from fuser.errors import CompilerAbsentError, FuserError

COMMANDS = (
    "bench", "cache", "compile", "doctor", "dump", "explain", "inspect", "profile", "report", "run",
    "serve", "shard",
)  # fmt: skip
"""Each is `fuser/cli/<name>.py` with a `<name>_command`; fuser-runtime has `serve` alone."""

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
        _say(f"error: {what}; see fuser --help")
        return error.exit_code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except FuserError as error:
        _say(f"error: {_one_line(str(error))}")
        return error.exit_code
    except MemoryError:
        click.echo("error: out of memory", err=True)
        return 6
    except Exception as error:  # a defect: one line, the traceback on request
        if "--debug" in (arguments or sys.argv):
            raise
        what = _one_line(f"{type(error).__name__}: {error}")
        _say(f"internal error: {what} (fuser --debug ... shows where)")
        return 70


def _say(text: str) -> None:
    from fuser.runtime.terminal import notice

    notice(text)


class _Notes(logging.Handler):
    """Prints records to what stderr is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        _say(f"note: {record.getMessage()}")


@contextmanager
def _notes_on_stderr() -> Iterator[None]:
    """Warnings of the library, such as a cache folder that cannot be written, as lines."""
    handler = _Notes()
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


class Commands(click.Group):
    """The commands of which the module is there, each loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if find_spec(f"fuser.cli.{name}") is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.list_commands(ctx):
            raise CompilerAbsentError(
                f"fuser {cmd_name} is a command of the compiler",
                instead="fuser serve PLAN, and in Python fuser.load(PLAN).run(feeds), run plans",
            )
        found = getattr(import_module(f"fuser.cli.{cmd_name}"), f"{cmd_name}_command")
        assert isinstance(found, click.Command)
        return found


@click.group(cls=Commands, epilog=NOTE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fuser")
@options.verbose
@click.option("--debug", is_flag=True, help="Show the traceback of an internal error.")
def main(debug: bool) -> None:
    """Compile ONNX models to few fused kernels, and run them on the CPU or an NVIDIA GPU."""
