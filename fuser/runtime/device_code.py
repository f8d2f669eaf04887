"""Loading PTX into the driver, and tensor maps: what a launch needs besides addresses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fuser.backend.module import CompiledKernel, TensorMap
from fuser.dtypes import BY_NAME
from fuser.errors import CompileError
from fuser.runtime import driver

LOG_BYTES = 1 << 16

_MAP_TYPES = {
    "f64": "FLOAT64",
    "f32": "FLOAT32",
    "f16": "FLOAT16",
    "bf16": "BFLOAT16",
    "i64": "INT64",
    "i32": "INT32",
    "u64": "UINT64",
    "u32": "UINT32",
    "i16": "UINT16",
    "u16": "UINT16",
    "i8": "UINT8",
    "u8": "UINT8",
    "bool": "UINT8",
}


@dataclass
class Module:
    """A loaded module. facts: registers, local_bytes (spills), warnings (ptxas's C75xx), log;
    fewer_blocks: whether it was loaded for fewer blocks of a multiprocessor than was wanted."""

    handle: Any
    facts: dict[str, Any]
    _functions: dict[str, Any] = field(default_factory=dict)

    def function(self, kernel: CompiledKernel) -> Any:
        """The kernel's function, allowed the shared memory it asks for."""
        if kernel.entry not in self._functions:
            cu = driver.api()
            function = driver.call("cuModuleGetFunction", self.handle, kernel.entry.encode())
            attribute = cu.CUfunction_attribute
            most = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            if kernel.shared_bytes > 48 << 10:
                driver.call("cuFuncSetAttribute", function, most, kernel.shared_bytes)
            registers = attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
            local = attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
            self.facts["registers"] = int(driver.call("cuFuncGetAttribute", registers, function))
            self.facts["local_bytes"] = int(driver.call("cuFuncGetAttribute", local, function))
            self._functions[kernel.entry] = function
        return self._functions[kernel.entry]


def load_modules(kernels: Sequence[CompiledKernel]) -> dict[bytes, Module]:
    """Load every distinct code into the current context: the driver compiles PTX to machine code
    here, one module at a time whatever the threads, and keeps it in a cache of its own.
    Raises CompileError with the driver's words."""
    loaded: dict[bytes, Module] = {}
    try:
        for kernel in kernels:
            if kernel.code not in loaded:
                loaded[kernel.code] = _load(kernel)
    except BaseException:
        for module in loaded.values():
            driver.api().cuModuleUnload(module.handle)
        raise
    return loaded


def _load(kernel: CompiledKernel) -> Module:
    """A kernel that is wanted to run in several blocks at once, and spills for it, is loaded again
    for fewer of them."""
    module = _load_code(kernel, kernel.code)
    code: bytes | None = kernel.code if kernel.facts.get("blocks_wanted") else None
    while code is not None and _spills(module, kernel):
        code = with_fewer_blocks(code)
        if code is not None:
            driver.api().cuModuleUnload(module.handle)
            module = _load_code(kernel, code)
            module.facts["fewer_blocks"] = True
    return module


def _spills(module: Module, kernel: CompiledKernel) -> bool:
    module.function(kernel)
    return bool(module.facts["local_bytes"])


def with_fewer_blocks(code: bytes) -> bytes | None:
    """PTX that asks for three quarters of the blocks of a multiprocessor, or None."""
    found = _BLOCKS.search(code)
    if found is None or int(found[1]) < 2:
        return None
    return _BLOCKS.sub(b".minnctapersm %d" % (int(found[1]) * 3 // 4), code)


def _load_code(kernel: CompiledKernel, code: bytes) -> Module:
    cu = driver.api()
    information, errors = bytearray(LOG_BYTES), bytearray(LOG_BYTES)
    option = cu.CUjit_option
    options: dict[Any, Any] = {
        option.CU_JIT_INFO_LOG_BUFFER: information,
        option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: LOG_BYTES,
        option.CU_JIT_ERROR_LOG_BUFFER: errors,
        option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: LOG_BYTES,
        option.CU_JIT_LOG_VERBOSE: 1,
    }
    status, handle = cu.cuModuleLoadDataEx(
        code + b"\0", len(options), list(options), list(options.values())
    )
    if int(status):
        words = _text(errors) or _text(information) or "no message"
        raise CompileError(
            f"the driver refuses the code of kernel {kernel.name}: {status.name}: "
            + words.splitlines()[0],
            where=kernel.name,
        )
    return Module(handle, read_log(_text(information)))


def _text(log: bytearray) -> str:
    return bytes(log).split(b"\0")[0].decode(errors="replace").strip()


def read_log(log: str) -> dict[str, Any]:
    """Facts from ptxas's verbose log: warnings are its C75xx codes (serialised wgmma)."""
    facts: dict[str, Any] = {"log": log, "warnings": sorted(set(re.findall(r"\bC75\d\d\b", log)))}
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    if spills:
        facts["spill_bytes"] = sum(map(int, spills))
    return facts


_BLOCKS = re.compile(rb"\.minnctapersm (\d+)")

CORNERS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}
"""By rank: corners of the bounding box of a walk are from minus this on, and less than this."""


def map_arguments(record: TensorMap, address: int) -> dict[str, Any]:
    """The arguments of cuTensorMapEncodeTiled, or of cuTensorMapEncodeIm2col where the record has
    steps, as plain data. Raises CompileError for what the hardware cannot describe."""
    size = BY_NAME[record.dtype].bytes
    start = address + record.offset * size
    strides = tuple(stride * size for stride in record.strides)
    rank = len(record.shape)
    problem = ""
    if not 1 <= rank <= 5 or len(strides) != rank - 1:
        problem = f"rank {rank}"
    elif start % 16 or any(stride % 16 or not 0 < stride < 1 << 40 for stride in strides):
        problem = "a start or stride that is no multiple of 16 bytes"
    elif record.swizzle and record.box[0] * size > record.swizzle:
        problem = f"a box row of {record.box[0] * size} bytes under a {record.swizzle} byte swizzle"
    elif record.steps:
        problem = _problem_of_walk(record)
    elif len(record.box) != rank or any(not 0 < extent <= 256 for extent in record.box):
        problem = f"the box {record.box}"
    if problem:
        raise CompileError(f"no tensor map has {problem}", where=f"argument {record.argument}")
    return {
        "type": f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[record.dtype]}",
        "rank": rank,
        "address": start,
        "shape": record.shape,
        "strides": strides,
        "box": record.box,
        "corners": (record.lower, record.upper),
        "steps": (1, *record.steps, 1) if record.steps else (1,) * rank,
        "swizzle": "CU_TENSOR_MAP_SWIZZLE_" + (f"{record.swizzle}B" if record.swizzle else "NONE"),
    }


def _problem_of_walk(record: TensorMap) -> str:
    """What is wrong with a record that has steps; "" where nothing is."""
    rank = len(record.shape)
    inner = {len(record.lower), len(record.upper), len(record.steps)}
    if rank not in CORNERS or inner != {rank - 2} or len(record.box) != 2:
        return f"rank {rank}"
    if not (0 < record.box[0] <= 256 and 0 < record.box[1] <= 1024):
        return f"the box {record.box}"
    if not all(-CORNERS[rank] <= at < CORNERS[rank] for at in (*record.lower, *record.upper)):
        return f"the corners {record.lower} and {record.upper}"
    spans = (
        extent - 1 + above - below
        for extent, below, above in zip(record.shape[1:-1], record.lower, record.upper, strict=True)
    )
    if any(span < 0 for span in spans) or not all(1 <= step <= 8 for step in record.steps):
        return f"steps of {record.steps} from {record.lower} to {record.upper}"
    return ""


def tensor_map(record: TensorMap, address: int) -> Any:
    """The encoded descriptor of a view of the buffer at `address`."""
    cu, plain = driver.api(), map_arguments(record, address)
    where = (
        getattr(cu.CUtensorMapDataType, plain["type"]),
        plain["rank"],
        plain["address"],
        [cu.cuuint64_t(extent) for extent in plain["shape"]],
        [cu.cuuint64_t(stride) for stride in plain["strides"]],
    )
    how = (
        [cu.cuuint32_t(step) for step in plain["steps"]],
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cu.CUtensorMapSwizzle, plain["swizzle"]),
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if record.steps:
        lower, upper = map(list, plain["corners"])
        return driver.call("cuTensorMapEncodeIm2col", *where, lower, upper, *plain["box"], *how)
    box = [cu.cuuint32_t(extent) for extent in plain["box"]]
    return driver.call("cuTensorMapEncodeTiled", *where, box, *how)
