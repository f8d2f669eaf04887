"""C headers: of a program that is an object, how it is called; of one for a GPU, what to launch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import fuser
from fuser.runtime.program import Program, TensorSpec


class Sizes(Protocol):
    """Bytes of memory: `fuser.pipeline.objects.Layout`."""

    @property
    def weights(self) -> int: ...
    @property
    def shared(self) -> int: ...
    @property
    def scratch(self) -> int: ...


_TEXT = """/* $NAME: written by fuser $VERSION. Code for $TARGET.
$DIMS
   Inputs:
$INPUTS
   Outputs:
$OUTPUTS

   All are row-major. Outputs, weights and workspace are aligned to $UPPER_ALIGNMENT bytes, inputs
   as their items. Outputs share memory with nothing else. Runs at the same time need a workspace
   each; the weights serve them all. Nothing is checked. */
#ifndef FUSER_$UPPER_H
#define FUSER_$UPPER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define $UPPER_FEATURES "$FEATURES" /* of the processor */
#define $UPPER_ALIGNMENT 64
#define $UPPER_WEIGHTS_BYTES INT64_C($WEIGHTS)
#define $UPPER_WORKSPACE_BYTES(threads) (INT64_C($SHARED) + (int64_t)(threads) * INT64_C($SCRATCH))
#define $UPPER_INPUTS $COUNT_INPUTS
#define $UPPER_OUTPUTS $COUNT_OUTPUTS
$NUMBERS

typedef struct {
    const char *name;
    const char *dtype; /* NumPy's name */
    const int64_t *shape;
    int64_t rank;
    int64_t bytes;
} $NAME_tensor;

extern const $NAME_tensor $NAME_inputs[];
extern const $NAME_tensor $NAME_outputs[];
$EMBEDDED
/* A part of a run: chunk is one of those that spread was asked for, thread is below `threads` of
   the run, and of no other part that runs at the same time. */
typedef void $NAME_task(void *state, int64_t chunk, int64_t thread);

/* Calls task(state, chunk, thread) once for each 0 <= chunk < chunks, in any order and on any
   threads, and returns when all are done. */
typedef void $NAME_spread(void *user, $NAME_task *task, void *state, int64_t chunks);

/* One run. spread: NULL for a run on the calling thread alone; `threads` is 1 then. */
void $NAME_run(const void *const *inputs, void *const *outputs, const void *weights,
               void *workspace, int64_t threads, $NAME_spread *spread, void *user);

#ifdef __cplusplus
}
#endif
#endif
"""


def header(
    program: Program, symbol: str, sizes: Sizes, embedded: bool, dims: Mapping[str, int]
) -> str:
    """The text. symbol: what its names begin with."""
    fixed = ", ".join(f"{name} = {size}" for name, size in dims.items())
    numbers = [
        f"#define {symbol.upper()}_{kind}_{_macro(spec.name)} {number}"
        for kind, specs in (("INPUT", program.inputs), ("OUTPUT", program.outputs))
        for number, spec in enumerate(specs)
    ]
    words = {
        "NAME": symbol, "UPPER_": f"{symbol.upper()}_", "VERSION": fuser.__version__,
        "TARGET": _comment(program.target.arch), "FEATURES": program.target.features,
        "DIMS": f"   Sizes of its dims: {_comment(fixed)}.\n" if fixed else "",
        "INPUTS": _list(program.inputs), "OUTPUTS": _list(program.outputs),
        "COUNT_INPUTS": str(len(program.inputs)), "COUNT_OUTPUTS": str(len(program.outputs)),
        "WEIGHTS": str(sizes.weights), "SHARED": str(sizes.shared), "SCRATCH": str(sizes.scratch),
        "NUMBERS": "\n".join(dict.fromkeys(numbers)),
        "EMBEDDED": f"extern const unsigned char {symbol}_weights[];\n" if embedded else "",
    }  # fmt: skip
    return _filled(_TEXT, words)


def _list(specs: Sequence[TensorSpec]) -> str:
    return "\n".join(f"     {i}  {_comment(spec.name)}: {spec}" for i, spec in enumerate(specs))


def _macro(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name).upper()


def _comment(text: str) -> str:
    """Names of a model are anything: they must not end a comment."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("*/", "* /")


_GPU_TEXT = """/* $NAME: written by fuser $VERSION. The steps of a run on a GPU ($TARGET), in order.

   Weights and workspace are memory of the GPU, aligned to 256 bytes; inputs and outputs to 16. */
#ifndef FUSER_$UPPER_H
#define FUSER_$UPPER_H

#include <stdint.h>

#define $UPPER_WEIGHTS "$NAME.weights"
#define $UPPER_WEIGHTS_BYTES INT64_C($WEIGHTS)
#define $UPPER_WORKSPACE_BYTES INT64_C($WORKSPACE)
#define $UPPER_INPUTS $COUNT_INPUTS
#define $UPPER_OUTPUTS $COUNT_OUTPUTS
#define $UPPER_STEPS $COUNT_STEPS

/* Of the places of memory: 'i' and 'o': the at-th input and output; 'c' and 'w': bytes from the
   start of the weights and of the workspace. */
typedef struct { char space; int64_t at; } $NAME_place;

/* What cuTensorMapEncodeTiled takes, or cuTensorMapEncodeIm2col; enumerations are the driver's. */
typedef struct {
    int argument, type, rank, swizzle, im2col;
    int64_t start;
    uint64_t shape[5], strides[5];
    uint32_t box[5], steps[5];
    int lower[3], upper[3];
} $NAME_map;

/* 'l': a launch, whose parameters are the pointers, the maps by value, then the sizes. 'z': bytes
   at places[0] are made zero. 'c': bytes are copied from places[0] to places[1]. */
typedef struct {
    char kind;
    const char *file, *entry;
    unsigned grid[3], block, shared, cluster;
    int overlap; /* may begin while the launch before it ends */
    int place_count, map_count, size_count;
    const $NAME_place *places;
    const $NAME_map *maps;
    const int64_t *sizes;
    int64_t bytes;
} $NAME_step;

typedef struct { const char *name, *dtype; int64_t bytes; } $NAME_tensor;

static const $NAME_tensor $NAME_inputs[] = {
$INPUTS
};
static const $NAME_tensor $NAME_outputs[] = {
$OUTPUTS
};
$TABLES
static const $NAME_step $NAME_steps[] = {
$STEPS
};

#endif
"""
_SPACES = {"input": "i", "output": "o", "weights": "c", "workspace": "w"}


def gpu_header(record: Mapping[str, Any], symbol: str) -> str:
    """The manifest of `fuser.pipeline.gpu_objects` as tables of C."""
    tables, steps = [], []
    for number, step in enumerate(record["steps"]):
        places = step.get("arguments") or [step[key] for key in ("from", "to") if key in step]
        maps, sizes = step.get("maps", []), step.get("sizes", [])
        names = []
        for kind, items in (
            ("place", [f"{{'{_SPACES[space]}', {at}}}" for space, at in places]),
            ("map", [_map_text(item) for item in maps]),
            ("size", [str(size) for size in sizes]),
        ):
            name = f"{symbol}_{kind}s_{number}"
            type = "int64_t" if kind == "size" else f"{symbol}_{kind}"
            if items:
                tables.append(f"static const {type} {name}[] = {{{', '.join(items)}}};")
            names.append(name if items else "0")
        x, y, z = step.get("grid", (0, 0, 0))
        fields = [
            f"'{step['step'][0]}'", _string(step.get("file", "")), _string(step.get("entry", "")),
            f"{{{x}, {y}, {z}}}", step.get("block", 0), step.get("shared", 0),
            step.get("cluster", 1), int(step.get("overlap", False)), len(places), len(maps),
            len(sizes), *names, step.get("bytes", 0),
        ]  # fmt: skip
        steps.append(f"    {{{', '.join(map(str, fields))}}},")
    words = {
        "NAME": symbol, "UPPER_": f"{symbol.upper()}_", "VERSION": record["fuser"],
        "TARGET": _comment(record["target"]), "WEIGHTS": str(record["weights"]["bytes"]),
        "WORKSPACE": str(record["workspace"]), "COUNT_STEPS": str(len(steps)),
        "COUNT_INPUTS": str(len(record["inputs"])), "COUNT_OUTPUTS": str(len(record["outputs"])),
        "TABLES": "\n".join(tables), "STEPS": "\n".join(steps) or "    {0}",
        "INPUTS": _tensors(record["inputs"]), "OUTPUTS": _tensors(record["outputs"]),
    }  # fmt: skip
    return _filled(_GPU_TEXT, words)


def _map_text(item: Mapping[str, Any]) -> str:
    rank = len(item["shape"])
    heads = (item["argument"], item["type"], rank, item["swizzle"], int(item["im2col"]))
    lists = (item[key] or [0] for key in ("shape", "strides", "box", "steps", "lower", "upper"))
    return ", ".join(
        [
            "{" + ", ".join(map(str, heads)), str(item["start"]),
            *(f"{{{', '.join(map(str, numbers))}}}" for numbers in lists),
        ]
    ) + "}"  # fmt: skip


def _tensors(specs: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        f"    {{{_string(spec['name'])}, {_string(spec['dtype'])}, {spec['bytes']}}},"
        for spec in specs
    ]
    return "\n".join(rows) or "    {0, 0, 0},"


def _string(text: str) -> str:
    """A literal of C: names of a model are anything."""
    plain = {byte for byte in range(32, 127)} - set(b'"\\?')
    return '"' + "".join(
        chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()
    ) + '"'  # fmt: skip


def _filled(text: str, words: Mapping[str, str]) -> str:
    """A text with its words, the longest first; what they stand for is not searched again."""
    pattern = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.sub(rf"\$({pattern})", lambda found: words[found[1]], text)
