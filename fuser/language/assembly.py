"""inline_asm_elementwise: instructions of a GPU on every element of tiles.

    tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)

The text is PTX, with constraints as LLVM has them. On a CPU there is nothing that could run it.
"""

from __future__ import annotations

from typing import Any

from fuser.language import shapes
from fuser.language.arithmetic import as_tensor
from fuser.language.emitter import Emitter
from fuser.language.registry import builtin, element_type, static_int
from fuser.language.tensors import unwrap

WORD = 32


@builtin("inline_asm_elementwise")
def inline_asm_elementwise(
    e: Emitter, asm: Any, constraints: Any, args: Any, dtype: Any, is_pure: Any, pack: Any
) -> Any:
    """PTX on each element of tiles of one shape, `pack` elements at a time: a tile of dtype, or one
    for each of a tuple of dtypes. Elements of less than 32 bits share 32-bit registers. GPUs."""
    if not e.options.get("gpu"):
        e.fail(
            "inline assembly is PTX, which a CPU does not run",
            "launch it on a GPU, or write it in the language",
        )
    text, rules = (str(unwrap(item)) for item in (asm, constraints))
    items = args if isinstance(args, tuple | list) else (args,)
    tiles = [as_tensor(e, unwrap(item)) for item in items]
    if not tiles:
        e.fail("inline assembly without operands", "give it a tile, whose shape the result has")
    if not unwrap(is_pure):
        e.fail(
            "inline assembly with is_pure=False",
            "an effect may be dropped or repeated here: what it does must be its results alone",
        )
    wanted = unwrap(dtype)
    several = isinstance(wanted, tuple | list)
    kinds = [element_type(e, item) for item in (wanted if several else (wanted,))]
    count = static_int(e, pack, "pack")
    for kind in (*(tile.dtype for tile in tiles), *kinds):
        per = min(count, WORD // kind.bits) if kind.bits < WORD else 1
        if kind.is_bool() or count < 1 or count % per:
            e.fail(
                f"inline assembly on packs of {count} elements of {kind}",
                "int1 is cast first, and a pack fills registers of 32 bits or is less than one",
            )
    shape: tuple[int, ...] = ()
    for tile in tiles:
        shape = shapes.common_shape(e, shape, tile.shape)
    values = [e.value_of(shapes.broadcast_to(e, tile, shape)) for tile in tiles]
    made = e.builder.assembly(text, rules, values, [kind.ir for kind in kinds], count)
    found = tuple(e.tensor(one, kind) for one, kind in zip(made, kinds, strict=True))
    return found if several else found[0]
