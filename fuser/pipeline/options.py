"""How a graph is compiled (`CompileOptions`), and what is told of where it came from (`Origin`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fuser.base.target import Target
from fuser.dtypes import DType
from fuser.pipeline.devices import Device, choose_target, parse_device

if TYPE_CHECKING:
    from fuser.partition.options import Options
    from fuser.pipeline.fusion import Fusing
    from fuser.pipeline.precision import Precision

Progress = Callable[[str], None]
"""Called with the name of each step as it begins."""


def quiet(step: str) -> None:
    """No progress."""


@dataclass(frozen=True)
class CompileOptions:
    """How to compile a graph.

    device: as for `fuser.compile`, or a target that need not be on this machine. ordinal: which
    GPU; 0 stands for the one that `device` names. threads: of a plan on a CPU; None is one a core.
    fusion, precision: as for `fuser.compile`. tune: whether to measure schedules, or only (False)
    to use those that are remembered; None: neither. state: pairs of an input and an output of its
    shape, of which the output is written into the input's memory where kernels can; the plan has no
    such output then, and runs change that input. consume: the graph is not used again, so its
    constants may go as they are packed. progress: called before each step.
    """

    device: Device = "auto"
    ordinal: int = 0
    threads: int | None = None
    fusion: Fusing = True
    precision: Precision = "model"
    tune: bool | None = False
    state: tuple[tuple[str, str], ...] = ()
    consume: bool = False
    progress: Progress = quiet

    @property
    def target(self) -> Target:
        """Raises DeviceError, UsageError."""
        return choose_target(self.device, self.threads)

    @property
    def gpu(self) -> int:
        """The number of the GPU."""
        return self.ordinal or parse_device(self.device)[1]

    @property
    def partitioning(self) -> Options:
        """What these choices mean to the partitioner."""
        from fuser.partition.options import Options  # plans from a file need no partitioner
        from fuser.pipeline.fusion import Fusion
        from fuser.pipeline.precision import rounding

        forced = self.fusion if isinstance(self.fusion, Fusion) else Fusion()
        rounded = rounding(self.precision, self.target)
        return Options(
            no_fusion=not self.fusion, forbid=forced.forbid, pin=forced.pin,
            operands=rounded.operands, narrow_weights=rounded.narrow_weights, state=self.state,
            fold_norms=forced.fold_norms,
        )  # fmt: skip

    def but(self, **changes: Any) -> CompileOptions:
        """These options with some changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Origin:
    """Where a graph came from, for messages and the report.

    dims: sizes of the source's symbolic dims. values: names of inputs whose values are constants of
    the graph. types: dtypes of the inputs and outputs whose bytes the graph holds as u8. started:
    when the work on it began (`time.perf_counter`); None is now.
    """

    name: str = ""
    dims: Mapping[str, int] = field(default_factory=dict)
    values: tuple[str, ...] = ()
    types: Mapping[str, DType] = field(default_factory=dict)
    started: float | None = None
