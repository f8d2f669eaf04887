"""Run a command and say how long it takes: python scripts/with_progress.py NAME COMMAND...

A terminal shows the name and the time while the command runs. What the command prints follows when
it has ended; its exit code is this one's.
"""

from __future__ import annotations

import subprocess
import sys

from fuser.report.progress import Progress


def main(name: str, *command: str) -> int:
    with Progress(delay=0.0) as progress:
        progress.step(name)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    sys.stderr.buffer.write(done.stdout)
    sys.stderr.flush()
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
