"""The packages whose own tests scripts/package-tests runs: a record for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Package:
    """Paths are below the checkout.

    imports: top-level packages whose `import triton` is answered; so is that of the tests.
    tests: folders or files that are run where no other path is named.
    sources: folders with the package, for the import path.
    environment: variables; cpu_environment: those of a run on the CPU, such as a device switch.
    left_out: (pattern of test ids, reason); cpu_left_out: of a run on the CPU.
    """

    imports: tuple[str, ...]
    tests: tuple[str, ...]
    sources: tuple[str, ...] = (".",)
    environment: Mapping[str, str] = field(default_factory=dict)
    cpu_environment: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[tuple[str, str], ...] = ()
    cpu_left_out: tuple[tuple[str, str], ...] = ()


PACKAGES: Mapping[str, Package] = {
    "bitsandbytes": Package(
        ("bitsandbytes",), ("tests",), cpu_environment={"BNB_TEST_DEVICE": "cpu"}
    ),
    "conch": Package(("conch",), ("tests",)),
    "cut-cross-entropy": Package(("cut_cross_entropy",), ("tests",)),
    "fla-core": Package(("fla",), ("tests/ops", "tests/modules")),
    "flag-gems": Package(("flag_gems",), ("tests",), sources=("src",)),
    "helion": Package(("helion",), ("test",)),
    "liger-kernel": Package(("liger_kernel",), ("test/transformers",), sources=("src",)),
    "mlstm-kernels": Package(("mlstm_kernels",), ("tests/torch",)),
    "torchao": Package(("torchao",), ("test",)),
}
