"""The C header of a program that is an object: what it takes, and how it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

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
    text = _TEXT
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(f"${word}", words[word])
    return text


def _list(specs: Sequence[TensorSpec]) -> str:
    return "\n".join(f"     {i}  {_comment(spec.name)}: {spec}" for i, spec in enumerate(specs))


def _macro(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name).upper()


def _comment(text: str) -> str:
    """Names of a model are anything: they must not end a comment."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("*/", "* /")
