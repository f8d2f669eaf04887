"""The emitters' tests once more, with every tile program compiled to native code."""

from __future__ import annotations

import pytest

from tests import interpreted
from tests.backend.cpu import native
from tests.tilegen_emit.test_attention import *  # noqa: F403
from tests.tilegen_emit.test_contraction import *  # noqa: F403
from tests.tilegen_emit.test_conv import *  # noqa: F403
from tests.tilegen_emit.test_data_dependent import *  # noqa: F403
from tests.tilegen_emit.test_map import *  # noqa: F403
from tests.tilegen_emit.test_models import *  # noqa: F403
from tests.tilegen_emit.test_random import *  # noqa: F403
from tests.tilegen_emit.test_reduce import *  # noqa: F403
from tests.tilegen_emit.test_winograd import *  # noqa: F403


@pytest.fixture(autouse=True)
def _natively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted, "run", native.run)
