"""Code that asks for more blocks of a multiprocessor than its registers allow."""

from __future__ import annotations

from fuser.runtime.device_code import with_fewer_blocks


def test_fewer_blocks_are_asked_for_until_one_is_left() -> None:
    code: bytes | None = b".visible .entry k()\n.maxntid 128\n.minnctapersm 8\n{ ret; }"
    asked = []
    while (code := with_fewer_blocks(code)) is not None:
        asked.append(int(code.split(b".minnctapersm ")[1].split()[0]))
        assert code.startswith(b".visible .entry k()\n.maxntid 128\n") and code.endswith(b"ret; }")
    assert asked == [6, 4, 3, 2, 1]


def test_code_without_a_bound_stays() -> None:
    assert with_fewer_blocks(b".visible .entry k()\n{ ret; }") is None
