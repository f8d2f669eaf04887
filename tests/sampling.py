"""Which cases of a whole run are a sample: the suite takes ten minutes of two cores, not thirty.

Of a file in SHARES, one parametrised case in so many runs where the whole suite runs, always the
same ones. Whoever names a file or uses -k has all its cases: `scripts/test tests` runs everything.
Cases for a GPU are never left out.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

SHARES = {
    "array_api/test_drawn.py": 2,
    "backend/cpu/test_atomics.py": 2,
    "backend/cpu/test_dot.py": 2,
    "backend/cpu/test_edges.py": 3,
    "backend/cpu/test_emitted.py": 8,
    "backend/cpu/test_maps.py": 2,
    "backend/cpu/test_programs.py": 2,
    "backend/cpu/test_units.py": 3,
    "backend/cpu/test_user_kernels.py": 6,
    "backend/cpu/test_user_tiles.py": 2,
    "backend/nvptx/test_decoded_weights.py": 3,
    "backend/nvptx/test_im2col.py": 2,
    "backend/nvptx/test_language.py": 3,
    "backend/nvptx/test_open_sizes.py": 4,
    "backend/nvptx/test_ptx.py": 6,
    "backend/nvptx/test_ptx_models.py": 2,
    "backend/nvptx/test_random.py": 2,
    "backend/nvptx/test_row_order.py": 5,
    "backend/nvptx/test_simulate.py": 2,
    "backend/nvptx/test_simulated_models.py": 3,
    "backend/nvptx/test_simulated_plans.py": 2,
    "backend/nvptx/test_targets.py": 3,
    "equivalence/graphs/test_graphs.py": 3,
    "equivalence/kernels/test_equivalence.py": 2,
    "frontends/numpy/test_composed_functions.py": 2,
    "frontends/numpy/test_functions.py": 2,
    "frontends/onnx/test_contrib.py": 2,
    "frontends/torch/test_compared_gradients.py": 6,
    "frontends/torch/test_left_operators.py": 6,
    "frontends/torch/test_random_numbers.py": 6,
    "frontends/torch/test_torch.py": 8,
    "frontends/torch/test_torch_calls.py": 2,
    "frontends/torch/test_torch_dynamic.py": 5,
    "frontends/torch/test_torch_ends.py": 2,
    "frontends/torch/test_torch_numbers.py": 6,
    "frontends/torch/test_torch_operators.py": 2,
    "frontends/torch/test_torch_resampling.py": 3,
    "frontends/torch/test_torch_scans.py": 4,
    "frontends/torch/test_torch_scatters.py": 4,
    "frontends/torch/test_torch_searching.py": 3,
    "frontends/torch/test_torch_views.py": 8,
    "frontends/torch/test_training.py": 8,
    "frontends/torch/test_window_gradients.py": 2,
    "kernel_calls/test_torch.py": 2,
    "graph/test_reference_models.py": 3,
    "language/test_libdevice.py": 3,
    "language/test_sorting.py": 2,
    "language/test_tutorials.py": 6,
    "malformed/test_corpus.py": 6,
    "malformed/test_malformed.py": 2,
    "opinfo/test_opinfo.py": 3,
    "partition/test_models.py": 2,
    "random_graphs/test_found.py": 2,
    "random_graphs/test_random_graphs.py": 8,
    "random_torch/test_random_torch.py": 4,
    "sharding/test_models.py": 3,
    "test_batch_invariant.py": 8,
    "test_dynamic.py": 3,
    "test_growth.py": 2,
    "test_models.py": 12,
    "test_packed_weights.py": 2,
    "test_quantised_blocks.py": 2,
    "test_random_models.py": 2,
    "test_state_layouts.py": 3,
    "tilegen/test_coverage.py": 2,
    "tilegen_emit/test_attention.py": 2,
    "tilegen_emit/test_conv.py": 2,
    "triton/test_liger.py": 3,
    "zoo/test_rewritten.py": 3,
    "zoo/test_zoo.py": 4,
}
"""Files whose cases take more than eight processor seconds together."""

FOLDER = Path(__file__).parent


@functools.cache
def share_of(path: Path) -> int:
    """Of a test file's parametrised cases, one in so many runs."""
    return SHARES.get(path.relative_to(FOLDER).as_posix(), 1)


def is_whole_run(config: pytest.Config) -> bool:
    """Whether neither files nor -k choose among the tests."""
    given = [str(argument).partition("::")[0] for argument in config.invocation_params.args]
    return not config.getoption("keyword") and not any(Path(name).exists() for name in given)


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The cases that a whole run leaves out; of each test function at least one stays."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        sampled = hasattr(item, "callspec") and share_of(item.path) > 1
        if sampled and not item.get_closest_marker("cuda"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    found = []
    for cases in functions.values():
        share = share_of(cases[0].path)
        left = [item for item in cases if zlib.crc32(item.nodeid.encode()) % share]
        found += left[len(left) == len(cases) :]
    return found
