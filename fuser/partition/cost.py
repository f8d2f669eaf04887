"""What things cost on a Target: bytes at the memory's rate, operations at the units', launches.

A roofline, nothing finer: it decides between fusing and not fusing, where the gap is mostly large.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fuser.base.target import Target
from fuser.graph.ir import Node, Value
from fuser.graph.sizes import by_example, size_hint
from fuser.graph.work import flops, operand_dtype
from fuser.partition.nodes import ANCHORS, CREATE, DECODE, REDUCE, VIEW

WEIGHT: dict[str, int] = {
    "div": 4, "sqrt": 4, "rsqrt": 4, "reciprocal": 4, "mod": 6, "fmod": 6,
    "exp": 8, "exp2": 8, "log": 10, "log2": 12, "sin": 14, "cos": 14, "tan": 20,
    "tanh": 12, "erf": 14, "pow": 20,
    "sinh": 16, "cosh": 16, "asin": 16, "acos": 16, "atan": 16,
    "asinh": 20, "acosh": 20, "atanh": 20, "gather": 2, "pad": 1,
}  # fmt: skip
"""Operations per element of a primitive, in units of an addition; 1 where not listed."""


MOST_CODE = 2048
"""Code of one kernel (`code`), a bound on how long it takes to compile: some 4,000 instructions a
vector, which LLVM takes about a second for. Reading and writing a value between two such kernels is
nothing beside what they compute."""
REDUCTION_CODE = 16
"""Of a reduction: a loop of its own."""

_COUNTED = ANCHORS | REDUCE
"""What `flops` tells the work of, too."""

RAMP = {"cpu": 3e-6, "cuda": 1e-6}
"""What a kernel takes beside its launch before and after it is busy: the first loads and the last
stores on a GPU, waking and joining the threads on a CPU."""


def weight(node: Node) -> int:
    """Operations per result element."""
    if node.op in CREATE | VIEW | DECODE:
        return 0
    if node.op == "concat":
        return 3 * (len(node.inputs) - 1)  # a bound, a load and a select for each further operand
    return WEIGHT.get(node.op, 1)


def code(node: Node) -> int:
    """What a node adds to the code of its kernel, in units of an addition."""
    return REDUCTION_CODE if node.op in REDUCE else weight(node)


def total_flops(nodes: Iterable[Node]) -> int:
    """`flops` of a kernel: of its nodes, each once, those that other kernels compute, too,
    included. However a kernel computes them (Winograd, padding, once for each block) is not. Of
    open sizes, at the example sizes."""
    return size_hint(sum(map(flops, nodes)))


@by_example
def work(node: Node) -> int:
    """Operations of a node in units of an addition: `flops`, but maps by their weight."""
    if node.op in _COUNTED:
        return flops(node)
    return node.output.type.size * weight(node)


def rate(target: Target, node: Node) -> float:
    """Operations per second for a node: tensor cores or FMA for matmuls, plain ones otherwise."""
    if node.op in ("dot_general", "conv"):
        half = operand_dtype(node).bits < 32
        # half of the peak is what a good kernel of middling size gets
        return (target.flops_f16 if half else target.flops_f32) * 0.5
    return map_rate(target)


def map_rate(target: Target) -> float:
    """Plain operations per second: no multiply-add pairs, and addresses to compute beside them."""
    return target.flops_f32 * 0.25


@by_example
def seconds(target: Target, nodes: Iterable[Node], traffic: int) -> float:
    """Time of one kernel that computes the nodes and moves `traffic` bytes."""
    return kernel_seconds(target, work_seconds(target, nodes), traffic)


def kernel_seconds(target: Target, work: float, traffic: int) -> float:
    """Time of one kernel whose operations take `work` seconds and that moves `traffic` bytes."""
    ramp = RAMP[target.name] if target.launch_cost else 0.0
    return max(work, traffic / target.bandwidth) + target.launch_cost + ramp


def without_launches(target: Target) -> Target:
    """A target on which a kernel boundary costs nothing but bytes. All costs are in proportion to
    the rows then, so that which of two ways is cheaper does not depend on how many there are."""
    return replace(target, launch_cost=0.0)


@by_example
def work_seconds(target: Target, nodes: Iterable[Node]) -> float:
    """Time of the operations alone."""
    return sum(work(node) / rate(target, node) for node in nodes)


@by_example
def traffic_seconds(target: Target, values: Iterable[Value]) -> float:
    """Time to move the values once."""
    return sum(value.type.bytes for value in values) / target.bandwidth
