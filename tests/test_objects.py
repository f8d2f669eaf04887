"""Models as objects: the example in C is built with the system's compiler and has Python's bits."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fuser
from fuser.backend.elf import read_object
from fuser.backend.elf_merge import Part, merge
from fuser.base.target import TARGETS
from fuser.cli.main import run
from fuser.dtypes import f32
from fuser.pipeline.c_header import gpu_header, header
from fuser.pipeline.gpu_objects import manifest
from fuser.pipeline.objects import lay_out
from fuser.runtime.program import BufferRef, Copy, Program, TensorSpec
from models import TINY, build
from tests.runtime.handmade import assemble_object

ROOT = Path(__file__).parents[1]
COMPILER = shutil.which("cc")
needs_cc = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler (cc)")
STRICT = ("-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-pthread", "-std=c11")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bert.onnx"
    onnx.save(build("bert", **TINY["bert"]), path)
    return path


def emit(model: Path, folder: Path, *options: str) -> Path:
    sizes = ("--dim", "batch=3", "--dim", "sequence=7")
    command = ("compile", model, "--device", "cpu", "--emit", "object", "-o", folder, *sizes)
    assert run([*map(str, command), *options]) == 0
    return folder


def feeds(model: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs, and the outputs that Python gets."""
    plan = fuser.compile(model, device="cpu", dims={"batch": 3, "sequence": 7})
    given = plan.random_feeds(5)
    return given, plan.run(given)


def link(folder: Path, source: Path, *objects: Path) -> Path:
    program = folder / "program"
    command = [str(COMPILER), *STRICT, f"-I{folder}", source, *objects, "-lm", "-o", program]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def cosines(rows: np.ndarray) -> list[float]:
    """As the example has them, in order."""

    def dot(a: np.ndarray, b: np.ndarray) -> float:
        total = 0.0
        for x, y in zip(a.astype(float).tolist(), b.astype(float).tolist(), strict=True):
            total += x * y
        return total

    first = rows[0]
    return [
        dot(first, row) / (math.sqrt(dot(first, first)) * math.sqrt(dot(row, row)))
        for row in rows[1:]
    ]


@needs_cc
@pytest.mark.parametrize("threads", [1, 2])
def test_the_example_has_the_bits_of_python(bert: Path, tmp_path: Path, threads: int) -> None:
    folder = emit(bert, tmp_path / "out", "--name", "model")
    program = link(folder, ROOT / "examples/c/embed.c", folder / "model.o")
    given, want = feeds(bert)
    for name, array in given.items():
        (tmp_path / name).write_bytes(array.tobytes())
    files = [folder / "model.weights", tmp_path / "result", *(tmp_path / name for name in given)]
    done = subprocess.run(
        [str(program), *map(str, files)],
        capture_output=True, text=True, env={"THREADS": str(threads)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = list(want.values())[-1]
    assert (tmp_path / "result").read_bytes() == rows.tobytes()
    assert list(map(float, done.stdout.split())) == cosines(rows)


@needs_cc
def test_two_models_in_one_program(bert: Path, tmp_path: Path) -> None:
    """Names of kernels do not meet; embedded weights need no file; a header is C++ and C."""
    emit(bert, tmp_path, "--name", "one", "--embed")
    emit(bert, tmp_path, "--name", "2-two", "--embed")
    given, want = feeds(bert)
    arrays = [_as_c(f"in{i}", array) for i, array in enumerate(given.values())]
    (tmp_path / "data.h").write_text("".join(arrays))
    names = ", ".join(f"in{i}" for i in range(len(given)))
    (tmp_path / "main.c").write_text(f"""
        #include <stdio.h>
        #include <stdlib.h>
        #include "one.h"
        #include "m_2_two.h"
        #include "data.h"
        #define RUN(name, NAME) do {{ \\
            void *out[NAME##_OUTPUTS]; \\
            for (int i = 0; i < NAME##_OUTPUTS; i++) \\
                out[i] = aligned_alloc(64, (size_t)(name##_outputs[i].bytes + 63) / 64 * 64); \\
            void *work = aligned_alloc(64, (size_t)NAME##_WORKSPACE_BYTES(1)); \\
            name##_run(inputs, out, name##_weights, work, 1, NULL, NULL); \\
            for (int i = 0; i < NAME##_OUTPUTS; i++) \\
                fwrite(out[i], 1, (size_t)name##_outputs[i].bytes, stdout); \\
        }} while (0)
        int main(void) {{
            const void *inputs[] = {{{names}}};
            RUN(one, ONE);
            RUN(m_2_two, M_2_TWO);
            return 0;
        }}""")
    program = link(tmp_path, tmp_path / "main.c", tmp_path / "one.o", tmp_path / "m_2_two.o")
    done = subprocess.run([str(program)], capture_output=True)
    assert done.stdout == 2 * b"".join(array.tobytes() for array in want.values())


def _as_c(name: str, array: np.ndarray) -> str:
    items = ",".join(map(str, array.tobytes()))
    return f"static const _Alignas(64) unsigned char {name}[] = {{{items}}};\n"


@needs_cc
def test_objects_need_memory_functions_alone(bert: Path, tmp_path: Path) -> None:
    folder = emit(bert, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["bert.h", "bert.o", "bert.weights"]
    held = read_object((folder / "bert.o").read_bytes())
    wanted = {symbol.name for symbol in held.symbols if symbol.section is None and symbol.name}
    assert wanted <= {"memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"}
    seen = {symbol.name for symbol in held.symbols if symbol.section and symbol.is_global}
    assert seen == {"bert_run", "bert_inputs", "bert_outputs"}


def test_names_meet_once() -> None:
    """What one object defines and another wants; two definitions, and none, are errors."""
    add = "define i64 @add(i64 %a, i64 %b) { %c = add i64 %a, %b ret i64 %c }"
    use = """declare i64 @plus(i64, i64)
        define i64 @twice(i64 %a) { %b = call i64 @plus(i64 %a, i64 %a) ret i64 %b }"""
    names: Mapping[str, str] = {"add": "plus"}
    parts = [Part(assemble_object(add), names), Part(assemble_object(use), {})]
    held = read_object(b"".join(bytes(piece) for piece in merge(parts, ["twice"], {})))
    places = {symbol.name: symbol for symbol in held.symbols if symbol.name}
    assert places["twice"].is_global and not places["plus"].is_global
    assert {held.symbols[r.symbol].name for r in held.relocations} >= {"plus"}
    with pytest.raises(ValueError, match="'plus' is defined twice"):
        merge([*parts, parts[0]], ["twice"], {})
    with pytest.raises(ValueError, match="defines 'other'"):
        merge(parts, ["other"], {})


def test_what_has_no_objects(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compile", str(bert), "--emit", "object", "-o", str(tmp_path)]
    assert run([*command, "--target", "neon"]) == 4
    assert run([*command, "--target", "cpu-avx2,avx512"]) == 2
    assert run(["compile", str(bert), "--embed", "-o", str(tmp_path / "plan")]) == 2
    assert "objects are written for x86-64" in capsys.readouterr().err


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The objects of a small model for Hopper, whose matmul reads by tensor maps."""
    folder = tmp_path_factory.mktemp("gpu")
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float16[n, 512] x, float16[512, 512] w) => (float16[n, 512] y) {
            p = MatMul (x, w) y = Softmax (p)
        }"""
    onnx.save(onnx.parser.parse_model(text), folder / "matmul.onnx")
    command = ("compile", folder / "matmul.onnx", "--emit", "object", "--target", "sm_90a")
    sizes = ("--name", "model", "--dim", "n=1024", "-o", folder)
    assert run(list(map(str, (*command, *sizes)))) == 0
    return folder


def test_the_manifest_of_a_gpu_fits_its_files(gpu: Path) -> None:
    """Each step's parameters are those of its PTX, and all its places are in memory."""
    record = json.loads((gpu / "model.json").read_text())
    assert (record["manifest"], record["target"]) == (1, "sm_90a")
    assert record["dims"] == {"n": 1024}
    assert (gpu / "model.weights").stat().st_size == record["weights"]["bytes"]
    room = {
        "input": len(record["inputs"]), "output": len(record["outputs"]),
        "weights": record["weights"]["bytes"], "workspace": record["workspace"],
    }  # fmt: skip
    launches = [step for step in record["steps"] if step["step"] == "launch"]
    assert launches and any(step["maps"] for step in launches)
    for step in launches:
        text = (gpu / step["file"]).read_text()
        found = re.search(rf"\.entry {re.escape(step['entry'])}\s*\((.*?)\)", text, re.S)
        assert found is not None
        count = len(step["arguments"]) + len(step["maps"]) + len(step["sizes"])
        assert found[1].count(".param") == count
        assert all(0 <= at < room[space] for space, at in step["arguments"])
        assert all(0 <= item["argument"] < len(step["arguments"]) for item in step["maps"])
        assert step["block"] % 32 == 0 and min(step["grid"]) > 0


HEADERS = sorted(Path("/usr/local").glob("cuda*/include/cuda.h"))


def told(record: dict[str, Any]) -> list[str]:
    """What the stand-in driver says of each launch. Memory is allocated for the weights, values
    between kernels, inputs, outputs, in this order."""
    base = {"weights": 0, "workspace": 1}

    def place(space: str, at: int, start: int = 0) -> str:
        if space in base:
            return f"{base[space]}+{at + start}"
        return f"{2 + at + (len(record['inputs']) if space == 'output' else 0)}+{start}"

    lines = []
    for step in record["steps"]:
        if step["step"] != "launch":
            continue
        grid = "x".join(map(str, step["grid"]))
        words = [step["entry"], grid, step["block"], step["shared"], step["cluster"]]
        words += [int(step["overlap"]), *(place(*at) for at in step["arguments"])]
        for item in step["maps"]:
            words.append("@" + place(*step["arguments"][item["argument"]], item["start"]))
        lines.append(" ".join(map(str, (*words, *step["sizes"]))))
    return lines


@needs_cc
@pytest.mark.skipif(not HEADERS, reason="there is no cuda.h: the CUDA toolkit is not installed")
def test_the_example_for_a_gpu_follows_the_manifest(gpu: Path, tmp_path: Path) -> None:
    """With a driver that runs nothing: every kernel is found in its file and gets its arguments."""
    record = json.loads((gpu / "model.json").read_text())
    include = (f"-I{gpu}", f"-I{HEADERS[-1].parent}")
    sources = (str(ROOT / "examples/c/gpu.c"), str(ROOT / "tests/stand_in_driver.c"))
    command = [str(COMPILER), *STRICT, *include, *sources, "-o", str(tmp_path / "gpu")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = [tmp_path / item["name"] for item in record["inputs"]]
    for file, item in zip(files, record["inputs"], strict=True):
        file.write_bytes(bytes(item["bytes"]))
    command = [str(tmp_path / "gpu"), str(gpu), str(tmp_path / "y"), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(told(record)) == 2
    assert done.stdout.splitlines() == told(record)
    assert (tmp_path / "y").read_bytes() == b"\7" * record["outputs"][-1]["bytes"]
    files[0].write_bytes(b"too short")
    assert subprocess.run(command, capture_output=True).returncode == 1


@needs_cc
@pytest.mark.cuda
@pytest.mark.skipif(not HEADERS, reason="there is no cuda.h: the CUDA toolkit is not installed")
def test_the_example_for_a_gpu_has_the_bits_of_python(gpu: Path, tmp_path: Path) -> None:
    model = gpu / "matmul.onnx"
    with fuser.compile(model, device="cuda", dims={"n": 1024}) as plan:
        if plan.target.arch != "sm_90a":
            pytest.skip(f"the objects are for sm_90a, the GPU is {plan.target.arch}")
        given = plan.random_feeds(5)
        want = plan.run(given)["y"]
    include = (f"-I{gpu}", f"-I{HEADERS[-1].parent}")
    program = tmp_path / "gpu"
    command = [str(COMPILER), *STRICT, *include, str(ROOT / "examples/c/gpu.c")]
    done = subprocess.run(
        [*command, "-l:libcuda.so.1", "-o", str(program)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    files = []
    for item in json.loads((gpu / "model.json").read_text())["inputs"]:
        files.append(tmp_path / item["name"])
        files[-1].write_bytes(given[item["name"]].tobytes())
    command = [str(program), str(gpu), str(tmp_path / "y"), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "y").read_bytes() == want.tobytes()


@needs_cc
def test_names_of_a_model_are_harmless_in_headers(tmp_path: Path) -> None:
    """An input may be called anything; a header has it as text."""
    name = 'a"*/\\?\n$NAME'
    spec = TensorSpec(name, f32, (2,))
    copy = Copy(BufferRef("input", 0), 0)
    program = Program(TARGETS["sm_80"], (spec,), (spec,), (), copies=(copy,))
    record, _ = manifest(program, "m", {name: 3})
    (tmp_path / "gpu.h").write_text(gpu_header(record, "m"))
    cpu = dataclasses.replace(program, target=TARGETS["avx2"])
    (tmp_path / "cpu.h").write_text(header(cpu, "m", lay_out(cpu), False, {name: 3}))
    (tmp_path / "gpu.c").write_text("""
        #include <stdio.h>
        #include "gpu.h"
        int main(void) { return fputs(m_inputs[0].name, stdout) < 0 || m_steps[0].kind != 'c'
            || m_outputs[0].bytes != 8; }""")
    (tmp_path / "cpu.c").write_text('#include "cpu.h"\nint main(void) { return M_INPUTS - 1; }')
    assert subprocess.run([link(tmp_path, tmp_path / "cpu.c")]).returncode == 0
    done = subprocess.run([link(tmp_path, tmp_path / "gpu.c")], capture_output=True)
    assert (done.returncode, done.stdout) == (0, name.encode())
