"""A random PyTorch program by one of the entry points, against eager PyTorch."""

from __future__ import annotations

import argparse
import random
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

import fuser
from fuser.errors import FuserError, UnsupportedError
from fuser.frontends.torch.backend import backend as fuser_backend
from tests.fuzzing.draw import Drawing
from tests.fuzzing.freedom import HALVES, Freedom, run
from tests.fuzzing.jobs import REFUSED, RIGHT, SKIPPED, TRACE, Finding, save
from tests.fuzzing.judge import EPSILON, Seen, Verdict, judged
from tests.fuzzing.program import NAME, Array, Input, Program, literal, signature
from tests.fuzzing.shrink import shrunk
from tests.random_torch.operators import DTYPES, MOVES

ENTRY_POINTS = {"module": 5, "compile": 3, "dynamic": 3, "always dynamic": 1, "train": 4}
"""Entry points and how often: fuser.compile of a module; torch.compile without gradients, with
other sizes at the second call, with open sizes from the first, and with a backward pass."""
SIZES = (0, 1, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 13, 16, 17, 33, 65)
LAYOUTS = ("{0}",) * 6 + ("{0}.mT.contiguous().mT", "torch.stack([{0}, {0}], -1)[..., 0]",
                          "torch.cat([{0}, {0}])[{0}.shape[0]:]")  # fmt: skip
TRIALS, MORE_TRIALS = 3, 30
ATTENTION = re.compile(r"attention\((\w+), (\w+), (\w+)(, is_causal=True)?\)")
NORMAL = re.compile(r"torch\.special\.ndtr\((\w+)\)")
LEAVES = "fuser leaves "
DEFECT = "a defect of fuser"


class PyTorch:
    """The library's side of `tests.fuzzing.freedom`."""

    names = {"torch": torch, "nan": float("nan"), "inf": float("inf")}  # noqa: RUF012

    def dtype(self, value: Any) -> str | None:
        return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else None

    def wide(self, value: Any) -> Array:
        return np.asarray(value.detach().double().numpy())

    def stored(self, value: Any, wide: Array) -> Any:
        with suppress(RuntimeError):  # elements that share their memory
            value.data.copy_(torch.from_numpy(np.array(wide)))
        return value

    def shifted(self, value: Any, change: Array) -> Any:
        return value + torch.from_numpy(np.array(change)).to(value.dtype)


LIBRARY = PyTorch()


def draw(seed: int, entry: str = "") -> tuple[str, Program]:
    """The entry point and the program of a seed."""
    source = random.Random(seed)
    entry = entry or source.choices(list(ENTRY_POINTS), list(ENTRY_POINTS.values()))[0]
    dtypes = tuple(name for name in DTYPES if "float" in name) if entry == "train" else DTYPES
    d = Drawing(source, LIBRARY, dtypes)
    d.special = d.special and entry != "train"
    batch, other = source.sample((2, 3, 4, 5, 6, 7, 9, 11, 13), 2)
    shapes: list[tuple[int, ...]] = []
    inputs: list[Input] = []
    for place in range(source.randint(1, 3)):
        if shapes and source.random() < 0.7:
            base = source.choice(shapes)
            shape = tuple(1 if source.random() < 0.12 else n for n in base)
            shape = shape[1:] if shape and source.random() < 0.15 else shape
        else:
            rank = source.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
            shape = tuple(source.choice(SIZES[:13] if rank > 2 else SIZES) for _ in range(rank))
            while np.prod(shape) > 1200:
                shape = shape[1:]
            if "dynamic" in entry and shape and (not shapes or source.random() < 0.6):
                shape = (batch, *shape[1:])
        shapes.append(shape)
        dtype = inputs[0].dtype if inputs and source.random() < 0.6 else source.choice(dtypes)
        second = None
        if "dynamic" in entry:
            wide = tuple(other if n == batch else n for n in shape)
            second = d.array(dtype, wide)
        layout = source.choice(LAYOUTS)
        inputs.append(Input(f"x{place}", d.array(dtype, shape), dtype, layout, second))
    for given in inputs:  # a layout that the shape has not
        try:
            make(given, given.array)
        except (RuntimeError, IndexError):
            inputs[inputs.index(given)] = Input(
                given.name, given.array, given.dtype, other=given.other
            )
    d.begin(inputs, leaf if entry == "train" else make)
    wanted = source.choice((1, 2, 3, 3, 4, 5, 6, 8))
    moves, weights = list(MOVES), list(MOVES.values())
    with torch.set_grad_enabled(entry == "train"):
        for _ in range(6 * wanted):
            if len(d.statements) >= wanted:
                break
            try:
                source.choices(moves, weights)[0](d)
            except (LookupError, ValueError, TypeError):
                continue
    return entry, d.program()


def make(given: Input, array: Array) -> Any:
    plain = torch.from_numpy(np.array(array)).to(getattr(torch, given.dtype))
    return eval(given.layout.format("x"), {"x": plain, "torch": torch})


def leaf(given: Input, array: Array) -> Any:
    value = make(given, array).detach()
    return value.requires_grad_() if value.is_floating_point() else value


# what can be seen ---------------------------------------------------------------------------------


def snapshot(label: str, value: Any, strides: bool = False) -> Seen:
    if not isinstance(value, torch.Tensor):
        return Seen(label, np.asarray(value), type(value).__name__)
    dtype = str(LIBRARY.dtype(value))
    plain = value.detach()
    array = LIBRARY.wide(plain).copy() if dtype in EPSILON else plain.numpy().copy()
    return Seen(label, array, dtype, strides_of(plain) if strides else None)


def strides_of(value: Any) -> tuple[int, ...] | None:
    """Those that say where elements are."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return None
    return tuple(s if n > 1 else 0 for s, n in zip(value.stride(), value.shape, strict=True))


def observed(results: Sequence[Any], values: Sequence[Any], entry: str) -> list[Seen]:
    """Results, what became of the inputs, gradients; then the same after each result was filled
    with a number of its own, which shows what shares memory."""
    compiled = entry != "module"
    found = [snapshot(f"result {n}", y, compiled) for n, y in enumerate(results)]
    found += [snapshot(f"input {n}", x) for n, x in enumerate(values)]
    if entry == "train":
        found += gradients(results, values)
    if not compiled:
        return found
    with torch.no_grad():
        for number, y in enumerate(results):
            try:
                y.detach().fill_(number + 5 if y.dtype != torch.bool else number % 2 == 0)
            except RuntimeError:  # elements that share their memory
                continue
    found += [snapshot(f"result {n} written", y) for n, y in enumerate(results)]
    found += [snapshot(f"input {n} written", x) for n, x in enumerate(values)]
    return found


def gradients(results: Sequence[Any], values: Sequence[Any]) -> list[Seen]:
    """Of a weighted sum of the results."""
    ends = [y for y in results if y.requires_grad]
    starts = [x for x in values if x.requires_grad]
    if not ends:
        return []
    rng = np.random.default_rng(1)
    weights = [torch.tensor(rng.integers(1, 8, y.shape) / 4.0, dtype=y.dtype) for y in ends]
    grads = torch.autograd.grad(ends, starts, weights, allow_unused=True)
    return [
        snapshot(f"gradient {n}", torch.zeros_like(x) if g is None else g)
        for n, (x, g) in enumerate(zip(starts, grads, strict=True))
    ]


# evaluations --------------------------------------------------------------------------------------


def calls(program: Program, entry: str) -> list[list[Array]]:
    """The arrays of each call."""
    first = [given.array for given in program.inputs]
    second = [x.array if x.other is None else x.other for x in program.inputs]
    return [first, second, first] if "dynamic" in entry else [first]


def operands(program: Program, arrays: Sequence[Array], entry: str) -> list[Any]:
    build = leaf if entry == "train" else make
    return [build(given, array) for given, array in zip(program.inputs, arrays, strict=True)]


def evaluated(
    program: Program, arrays: Sequence[Array], entry: str, freedom: Freedom | None = None,
    double: bool = False, rewrite: Callable[[str], str] = str,
) -> list[Seen]:  # fmt: skip
    """What eager PyTorch gives, perhaps with the freedom of statements, in float64, or of other
    lines that mean the same."""
    values = operands(program, arrays, entry)
    library = LIBRARY
    if freedom is not None and entry == "train":
        given, library = rewrite, PyTorch()
        rewrite = lambda line: used_apart(given(line))  # noqa: E731
        library.names = {**LIBRARY.names, "used": partial(used, freedom=freedom)}
    if double:
        values = [
            x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
            for x in values
        ]
        rewrite = doubled

    def notice(value: Any) -> None:
        if freedom is not None and isinstance(value, torch.Tensor) and value.requires_grad:
            hook = partial(moved, freedom=freedom)
            value.register_hook(hook)  # type: ignore[no-untyped-call]

    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64 if double else default)  # of whole numbers, too
        with torch.set_grad_enabled(entry == "train"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for value in values:
                notice(value)
            scope = run(program, library, values, freedom, rewrite, notice)
            return observed([scope[name] for name in program.outputs], values, entry)
    finally:
        torch.set_default_dtype(default)


def used_apart(line: str) -> str:
    """A line that reads each operand as a value of its own: what its gradient adds up is moved term
    by term, so that a sum in which terms cancel may be off by units of the terms."""
    target, bound, text = line.partition(" = ")
    if not bound or not NAME.fullmatch(target):  # a change in place
        return line
    return f"{target} = {NAME.sub(lambda name: f'used({name.group()})', text)}"


def used(value: Any, freedom: Freedom) -> Any:
    """A value as one operand of a line."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    apart = value.view_as(value)
    apart.register_hook(partial(moved, freedom=freedom))  # type: ignore[no-untyped-call]
    return apart


def declared(program: Program, arrays: Sequence[Array], entry: str) -> dict[str, Any]:
    """Results, by label, as PyTorch's tensors without values are. Their dtypes and strides are what
    torch.compile promises: kernels that run may give others (`pow` of booleans, the strides of
    `floor_divide`)."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode() as mode, torch.set_grad_enabled(entry == "train"):
            values = [mode.from_tensor(x) for x in operands(program, arrays, entry)]
            scope = run(program, LIBRARY, values)
    except Exception:  # a shape that depends on values
        return {}
    return {f"result {n}": scope[name] for n, name in enumerate(program.outputs)}


def as_declared(eager: Seen, told: Any, found: Seen) -> Seen:
    """What eager gave, in the dtype and the strides that were found if those are declared."""
    if not isinstance(told, torch.Tensor):
        return eager
    if found.dtype == LIBRARY.dtype(told) != eager.dtype:
        eager = replace(eager, array=eager.array.astype(found.array.dtype), dtype=found.dtype)
    return replace(eager, strides=found.strides) if strides_of(told) == found.strides else eager


def moved(gradient: Any, freedom: Freedom) -> Any:
    """A gradient a few units off."""
    dtype = str(LIBRARY.dtype(gradient))
    units = (1.5 if dtype in HALVES else 6.0) * freedom.wider
    random = torch.tensor(freedom.rng.uniform(-1, 1, gradient.shape))
    wide = gradient.detach().double() * (1 + random * units * EPSILON[dtype])
    return wide.to(gradient.dtype)


def doubled(line: str) -> str:
    """A line in float64; what is rounded on purpose stays so."""
    line = re.sub(r"\.to\(torch\.(b?float(16|32))\)", r".to(torch.\1).double()", accurate(line))
    return re.sub(r"dtype=torch\.b?float(16|32)", "dtype=torch.float64", line)


def otherwise(line: str) -> str:
    """A line by the other of PyTorch's two ways for attention: a kernel for operands of four dims,
    matmuls and a softmax for others. In gradients they subtract `sum(out * grad)` and
    `sum(p * dp)`, which are one number but for its rounding."""
    q, k, v = (rf"\{n}[None].contiguous()" for n in (1, 2, 3))
    return accurate(ATTENTION.sub(rf"attention({q}, {k}, {v}\4)[0]", line))


def accurate(line: str) -> str:
    """A line without the normal distribution of eager, of whose tail 1 + erf(x) leaves nothing."""
    return NORMAL.sub(r"(torch.erfc(\1 * -(0.5**0.5)) * 0.5)", line)


class Module(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *values: Any) -> Any:
        return self.function(*values)


def compiled(
    program: Program, entry: str, backend: Any = fuser_backend
) -> tuple[list[list[Seen]], list[str]]:
    """What is seen after each call, and why graphs were left to PyTorch."""
    function = program.function(LIBRARY.names)
    torch._dynamo.reset()
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if entry == "module":
            run_it: Any = None
        else:
            dynamic = True if entry == "always dynamic" else None
            run_it = torch.compile(function, backend=backend, dynamic=dynamic)
        with torch.set_grad_enabled(entry == "train"):
            for arrays in calls(program, entry):
                values = operands(program, arrays, entry)
                if run_it is None:
                    run_it = fuser.compile(
                        Module(function), example_inputs=tuple(values), device="cpu"
                    )
                found.append(observed(run_it(*values), values, entry))
    texts = [str(item.message) for item in caught]
    return found, [text.removeprefix(LEAVES) for text in texts if text.startswith(LEAVES)]


def traced(module: Any, inputs: Any) -> Any:
    """The trace that fuser would read, run by PyTorch."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    from fuser.frontends.torch.decompositions import decompositions

    def compiler(graph: Any, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    made = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions())
    return made(module, inputs)


# verdicts -----------------------------------------------------------------------------------------


def verdict(program: Program, entry: str, found: Sequence[Sequence[Seen]]) -> Verdict | None:
    """What is wrong with what was seen."""
    for number, arrays in enumerate(calls(program, entry)):
        wrong = _verdict(program, entry, arrays, found[number])
        if wrong is not None:
            return Verdict(wrong.kind, f"call {number}: {wrong.what}")
    return None


def _verdict(
    program: Program, entry: str, arrays: Sequence[Array], found: Sequence[Seen]
) -> Verdict | None:
    eager = evaluated(program, arrays, entry)
    exact: list[Seen] | None
    try:
        exact = evaluated(program, arrays, entry, double=True)
        if [x.array.shape for x in exact] != [x.array.shape for x in eager]:
            exact = None
    except Exception:
        exact = None
    lenient = has_halves(program, arrays, entry)
    slack = 4.0 if entry == "train" else 0.0
    wrong: Verdict | None = None
    for trials in (TRIALS, MORE_TRIALS):
        others = [
            evaluated(
                program,
                arrays,
                entry,
                Freedom(LIBRARY, n, 1.0 + n % 2, n % 4 == 1),
                rewrite=otherwise if n % 2 else str,
            )
            for n in range(trials)
        ]
        wrong = judged(found, eager, others, exact, slack)
        if wrong is None or (lenient and wrong.kind == "bits"):
            return None
    if wrong is not None and wrong.kind in ("strides", "dtype"):
        told = declared(program, arrays, entry)
        eager = [as_declared(x, told.get(x.label), y) for x, y in zip(eager, found, strict=True)]
        wrong = judged(found, eager, others, exact, slack)
    return wrong


def has_halves(program: Program, arrays: Sequence[Array], entry: str) -> bool:
    """Whether values of 16 bits are among what is computed."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scope = run(program, LIBRARY, operands(program, arrays, ""))
    return any(half in program.text() for half in HALVES) or any(
        LIBRARY.dtype(value) in HALVES for value in scope.values()
    )


def kind_of(program: Program, entry: str) -> tuple[str, str]:
    """(kind, reason) of a program."""
    try:
        for arrays in calls(program, entry)[:2]:
            evaluated(program, arrays, entry)
    except Exception as error:  # none that PyTorch runs: made small too far
        return SKIPPED, str(error)[:100]
    try:
        found, left = compiled(program, entry)
    except UnsupportedError as error:
        return REFUSED, plain(str(error))
    except FuserError as error:
        return f"error {type(error).__name__}", str(error)[:600]
    except Exception as error:
        if not (_exports(program) if entry == "module" else _trace_is_right(program, entry)):
            return TRACE, plain(str(error))
        return f"raw {type(error).__name__}", str(error)[:600]
    wrong = verdict(program, entry, found)
    if wrong is not None:
        if entry != "module" and not _trace_is_right(program, entry):
            return TRACE, wrong.what
        return wrong.kind, wrong.what + "".join(f" [after {reason[:200]}]" for reason in left[:1])
    defects = [reason for reason in left if DEFECT in reason]
    if defects:
        found_kind = re.search(r"report (\w+):", defects[0])
        return f"defect {found_kind.group(1) if found_kind else ''}", defects[0][:600]
    return (REFUSED, plain(left[0])) if left else (RIGHT, "")


def _trace_is_right(program: Program, entry: str) -> bool:
    try:
        found, _ = compiled(program, entry, traced)
        return verdict(program, entry, found) is None
    except Exception:
        return False


def _exports(program: Program) -> bool:
    """Whether torch.export takes the program."""
    values = operands(program, [given.array for given in program.inputs], "module")
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            module = Module(program.function(LIBRARY.names))
            torch.export.export(module, tuple(values), strict=False).run_decompositions()
    except Exception:
        return False
    return True


def plain(text: str) -> str:
    """A reason without what differs from program to program."""
    text = text.strip().split("\n")[0].split(" (at ")[0].split("; torch.compile runs")[0]
    text = text.split("; this")[0]
    text = re.sub(r"\b(bool|[iuf]\d+|bf16)\[[^\]]*\]", "tensor", text)
    return re.sub(r"(?<![\w.])-?\d+(, -?\d+)*", "n", text)[:160]


def values_of(program: Program) -> Mapping[str, Input]:
    """What a program computes, as inputs."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scope = run(
            program, LIBRARY, operands(program, [x.array for x in program.inputs], "module")
        )
    if any(given.other is not None for given in program.inputs):
        return {}
    found = {}
    for statement in program.statements:
        value = scope[statement.target]
        if isinstance(value, torch.Tensor):
            seen = snapshot("", value)
            found[statement.target] = Input(statement.target, seen.array, seen.dtype)
    return found


def script(program: Program, entry: str, what: str) -> str:
    """A program that shows what fuser does."""
    names = ", ".join(given.name for given in program.inputs)
    grad = ".detach().requires_grad_()" if entry == "train" else ""
    told = what.replace("\n", " ").replace('"""', "'''")
    lines = [f'"""{entry}: {told}"""', "import torch, fuser",
             "nan, inf = float('nan'), float('inf')",
             program.text()]  # fmt: skip
    for number, arrays in enumerate(calls(program, entry)[:2]):
        lines.append(f"def inputs_{number}():")
        for given, array in zip(program.inputs, arrays, strict=True):
            tensor = f"torch.tensor({literal(array)}, dtype=torch.{given.dtype})"
            tensor += f".reshape({tuple(array.shape)})"
            if given.layout != "{0}":
                lines.append(f"    {given.name} = {tensor}")
                tensor = given.layout.format(given.name)
            last = grad if "float" in given.dtype else ""
            lines.append(f"    {given.name} = {tensor}{last}")
        lines.append(f"    return ({names},)")
    if entry == "module":
        lines += ["class M(torch.nn.Module):", "    def forward(self, *a): return f(*a)",
                  "c = fuser.compile(M(), example_inputs=inputs_0(), device='cpu')"]  # fmt: skip
    else:
        dynamic = ", dynamic=True" if entry == "always dynamic" else ""
        lines.append(f"c = torch.compile(f, backend='fuser'{dynamic})")
    second = "inputs_1" if "dynamic" in entry else "inputs_0"
    exactly = ", rtol=0, atol=0" if what.startswith("bits") else ""
    lines += [
        "def same(a, b, **more):",
        "    try: torch.testing.assert_close(a, b, equal_nan=True, **more); return True",
        "    except AssertionError as error: print(error); return False",
        "bad = 0",
        f"for make in (inputs_0, {second}, inputs_0):",
    ]
    if entry == "train":
        lines += [
            "    seen = []", "    for g in (f, c):", "        a = make(); y = g(*a)",
            "        ends = [r for r in y if r.requires_grad]",
            "        if ends: torch.autograd.backward(ends, [torch.ones_like(r) for r in ends])",
            "        print('eager' if g is f else 'fuser', y, [x.grad for x in a])",
            "        seen.append(([r.detach().clone() for r in y], [x.grad for x in a]))",
            "        strides = [r.stride() for r in y]",
            "        for r in y: r.detach().fill_(1)",
            "        seen[-1] += (strides, [x.detach().clone() for x in a])",
            "    bad += seen[0][2] != seen[1][2] or not all(",
            "        same(seen[1][n], seen[0][n]) for n in (0, 1, 3))",
        ]  # fmt: skip
    else:
        lines += [
            "    with torch.no_grad():", "        a, b = make(), make(); w, y = f(*a), c(*b)",
            "    print('eager', w, [r.stride() for r in w], a)",
            "    print('fuser', y, [r.stride() for r in y], b)",
            f"    bad += not same(list(y), list(w){exactly})",
            f"    bad += not same(list(b), list(a){exactly})",
        ]  # fmt: skip
        if entry != "module":
            lines += [
                "    bad += [r.stride() for r in w] != [r.stride() for r in y]",
                "    for g in (w, y):",
                "        for n, r in enumerate(g):",
                "            if all(r.stride()): r.fill_(n % 2)",
                "    bad += not same([*y, *b], [*w, *a])",
            ]
    lines.append("raise SystemExit(bool(bad))")
    return "\n".join(lines)


def check(seed: int, options: argparse.Namespace) -> list[Finding]:
    """The finding of a program; what fails is made small."""
    entry, program = draw(seed, getattr(options, "entry", ""))
    if not program.statements:
        return [Finding(SKIPPED)]
    kind, reason = kind_of(program, entry)
    finding = Finding(kind, reason)
    if not finding.failed or kind in options.left_out:
        return [finding]
    if not options.whole:
        program = shrunk(program, lambda trial: kind_of(trial, entry)[0] == kind, values_of)
        reason = kind_of(program, entry)[1]
    text = script(program, entry, f"{kind}: {reason}")
    save(options, "torch", kind, seed, text)
    return [Finding(kind, f"{entry}: {reason}", text, f"{entry}: {signature(program)}")]
