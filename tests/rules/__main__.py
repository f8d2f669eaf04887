"""Write the tables of docs/numerics.md: python -m tests.rules"""

from __future__ import annotations

from tests.rules.document import PAGE, written

if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
