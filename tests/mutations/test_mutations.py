"""Every fault still has its place in the source, and a few are found as the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations.faults import FAULTS, QUICK, Fault
from tests.mutations.trial import ROOT, search


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_applies(fault: Fault) -> None:
    path = ROOT / "fuser" / fault.file
    text = path.read_text("utf-8")
    compile(fault.apply(text), str(path), "exec")
    assert fault.apply(text) != text


def test_names_are_distinct() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30
    assert set(QUICK) <= {fault.name for fault in FAULTS}


@pytest.mark.parametrize("name", QUICK)
def test_fault_is_found(name: str, tmp_path: Path) -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    assert search(fault, tmp_path, 0, 300).by != "nothing"
