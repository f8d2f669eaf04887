"""`fuser profile` and `fuser run --profile`: times of kernels, and counters of the hardware."""

from __future__ import annotations

import errno
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fuser
from fuser.cli.main import run
from fuser.graph.units import byte_size
from fuser.report import counters_ncu, counters_perf
from fuser.report.beside import add_times
from fuser.report.counters import Counted, MissingCountersError
from fuser.report.counters_ncu import METRICS, parse_raw, why_none
from fuser.report.counters_perf import SOFTWARE, Events, count_events, reason
from fuser.report.kernel_table import kernel_table
from fuser.report.profile import add_counters, count
from fuser.report.record import Record
from fuser.runtime.plan import Plan
from models import TINY, build, save

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in this process, on the CPU: (exit code, stdout, stderr)."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([*map(str, arguments), "--device", "cpu"])
        return code, *capfd.readouterr()

    return call


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "mlp.onnx"
    save(build("mlp", **TINY["mlp"]), path)
    return path


@pytest.fixture(scope="module")
def plan(mlp: Path) -> Plan:
    return fuser.compile(mlp, device="cpu", dims={"batch": 64}, threads=1)


def arrays_of(plan: Plan) -> list[np.ndarray]:
    feeds = plan.random_feeds()
    return [feeds[spec.name] for spec in plan.inputs]


# Times --------------------------------------------------------------------------------------------


def test_run_times_each_kernel(
    command: Command, mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = command("run", mlp, "--profile", "--json", "--iterations", "3")
    assert (code, err) == (0, "")
    report = json.loads(out)
    launches, profile = report["launches"], report["profile"]
    assert profile == {"iterations": 3, "kernels_us": profile["kernels_us"], "counters": None,
                       "missing": None, "device_us": None}  # fmt: skip
    assert len(launches) == report["kernels"]["after"]
    assert math.isclose(sum(x["time_us"] for x in launches), profile["kernels_us"])
    for launch in launches:
        assert math.isclose(launch["share"], launch["time_us"] / profile["kernels_us"])
        assert launch["roofline_us"] > 0 and launch["nodes"] and launch["schedule"]
    monkeypatch.setattr("fuser.base.config.start_logs", lambda topics: None)  # of the process
    code, out, _ = command("run", mlp, "--profile", "-v")
    assert code == 0
    lines = out.splitlines()
    head = next(line for line in lines if line.startswith("kernel "))
    assert head.split() == ["kernel", "time", "share", "roofline", "memory", "DRAM"]
    for launch in launches:
        name = f"{launch['kind']}_{launch['region']}"
        (at,) = (i for i, line in enumerate(lines) if line.startswith(f"{name} "))
        assert launch["nodes"][0] in lines[at + 1] and "block_m=" in lines[at + 2]
        assert "warps" not in lines[at + 2] and "stages" not in lines[at + 2]
    assert "profile" in json.loads(command("run", mlp, "--json")[1])


def test_the_longest_kernel_comes_first(command: Command, mlp: Path) -> None:
    code, out, err = command("profile", mlp, "--no-counters", "--dim", "batch=256")
    assert code == 0, err
    worth = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
    table = out.partition("\nkernel ")[2]
    rows = [line.split() for line in table.splitlines() if line.startswith("contraction_")]
    times = [float(row[1]) * worth[row[2]] for row in rows]
    assert len(times) == 3 and times == sorted(times, reverse=True)
    assert "no counters" not in out


def test_operators_on_the_host_have_no_profile(command: Command, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    node = helper.make_node("Unheard", ["x"], ["y"], domain="com.example")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    model = helper.make_model(
        helper.make_graph([node], "hosted", ends[:1], ends[1:]), opset_imports=opsets
    )
    path = tmp_path / "hosted.onnx"
    path.write_bytes(model.SerializeToString())
    fuser.register_host_op("com.example", "Unheard", lambda x: x)
    code, out, err = command("run", path, "--profile", "--host", "allow")
    assert (code, out) == (2, "") and "--profile" in err


# Counters of CPUs ---------------------------------------------------------------------------------


def test_what_a_cpu_counts_or_why_it_does_not(command: Command, mlp: Path) -> None:
    code, out, err = command("profile", mlp, "--json", "--iterations", "1")
    assert (code, err) == (0, "")
    report = json.loads(out)
    profile = report["profile"]
    if profile["counters"] is None:
        assert len(profile["missing"].splitlines()) == 1
        assert all(launch["counters"] is None for launch in report["launches"])
    else:
        assert profile["counters"] == "perf events" and profile["missing"] is None
        for launch in report["launches"]:
            assert set(launch["counters"]) == {"cycles", "instructions", "llc_misses"}
            assert launch["counters"]["instructions"] > 0


def test_counts_are_of_each_launch_less_what_counting_costs(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that runs nothing counts 5 events, launch number n counts 5 + 10 n."""

    class Script:
        def __init__(self, events: object) -> None:
            steps = [5, *(5 + 10 * n for n in range(plan.launches))] * counters_perf.RUNS
            marks = np.cumsum([0, *(part for step in steps for part in (step, 1000))])
            self.marks = iter(marks.tolist())

        def read(self) -> dict[str, int]:
            return {"events": next(self.marks)}

        def close(self) -> None:
            assert next(self.marks) > 0 and not list(self.marks)  # all but the end was read

    monkeypatch.setattr(counters_perf, "Events", Script)
    counted = count_events(plan, arrays_of(plan), {"events": (SOFTWARE, 1)})
    assert counted.launches == [{"events": 10.0 * n} for n in range(plan.launches)]


def test_the_kernel_counts_for_this_process() -> None:
    """By a software event, which every Linux has that lets processes count at all."""
    try:
        events = Events({"nanoseconds": (SOFTWARE, 1)})
    except MissingCountersError as error:
        pytest.skip(str(error))
    begin, before = events.read()["nanoseconds"], time.thread_time_ns()
    while (spent := time.thread_time_ns() - before) < 20_000_000:
        pass
    assert events.read()["nanoseconds"] - begin > spent / 2
    events.close()


def test_launches_run_one_by_one(plan: Plan) -> None:
    seen = []

    def around(launch: int, go: Callable[[], None]) -> None:
        go()
        seen.append(launch)

    plan.executor.run_kernels(arrays_of(plan), around)  # type: ignore[attr-defined]
    assert seen == [-1, *range(plan.launches)]


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EACCES, "perf_event_paranoid is 3"), (errno.ENOENT, "PMU"),
     (errno.ENOSYS, "no perf_event_open"), (errno.EMFILE, "Too many open files")],
)  # fmt: skip
def test_what_is_missing_is_one_line(
    number: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = tmp_path / "paranoid"
    level.write_text("3\n")
    monkeypatch.setattr(counters_perf, "_PARANOID", level)
    assert words in reason(number) and "\n" not in reason(number)


# Counters of GPUs ---------------------------------------------------------------------------------

HEADER = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
          "Block Size", "Grid Size", "Device", "CC", *METRICS)  # fmt: skip
UNITS = ("",) * 11 + ("byte", "byte", "byte", "ns")


def page(*rows: tuple[str, ...], units: tuple[str, ...] = UNITS) -> str:
    """What ncu prints: lines of its own around a raw page as CSV."""
    table = [HEADER, units]
    for number, (name, *values) in enumerate(rows):
        first = (str(number), "71", "python3.12", "127.0.0.1", name, "1", "13", "(128, 1, 1)")
        table.append((*first, "(4, 1, 1)", "0", "9.0", *values))
    lines = [",".join(f'"{cell}"' for cell in row) for row in table]
    return "\n".join(["==PROF== Connected to process 71", *lines, "==PROF== Disconnected", ""])


def test_a_raw_page_is_read() -> None:
    """What ncu 2025.3 printed of a run on an H200, most columns and kernels left out."""
    found = parse_raw((Path(__file__).parent / "ncu_raw_page.csv").read_text())
    assert found == [
        ("reduce_0_embeddings_LayerNorm",
         {"dram_read_bytes": 0, "dram_written_bytes": 0, "l2_bytes": 778_656,
          "profiler_time_us": 2.912}),
        ("contraction_1_query_key_value",
         {"dram_read_bytes": 256, "dram_written_bytes": 0, "l2_bytes": 4_038_528,
          "profiler_time_us": 3.296}),
        ("attention_2_attention_self",
         {"dram_read_bytes": 0, "dram_written_bytes": 0, "l2_bytes": 929_600,
          "profiler_time_us": 3.008}),
    ]  # fmt: skip


def test_units_that_ncu_chooses_are_read() -> None:
    units = (*UNITS[:11], "Kbyte", "Mbyte", "Gbyte", "msecond")
    ((name, values),) = parse_raw(page(("k(float *)", "1.5", "n/a", "3", "0.25"), units=units))
    assert name == "k"
    assert values == {"dram_read_bytes": 1500.0, "l2_bytes": 3e9, "profiler_time_us": 250.0}


@pytest.mark.parametrize("text", ["", "==ERROR== no kernels", '"ID","Kernel Name"\n', page()])
def test_a_page_without_kernels_is_empty(text: str) -> None:
    assert parse_raw(text) == []


def fake_ncu(folder: Path, output: str, code: int = 0) -> Path:
    """An ncu that prints this, and keeps its arguments."""
    (folder / "output").write_text(output)
    script = folder / "ncu"
    script.write_text(
        f"""#!/bin/sh
if [ "$1" = --version ]; then echo "Version 2025.3.1.0 (build 1)"; exit 0; fi
echo "$@" > {folder}/arguments
cat {folder}/output
exit {code}
"""
    )
    script.chmod(0o755)
    return script


def test_rows_of_ncu_are_the_launches_of_a_run(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [launch.kernel.entry for launch in plan.program.launches]
    rows = [(name, str(n), "0", "0", "1") for n, name in enumerate(names)]
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    fake_ncu(tmp_path, page(("of_another", "9", "9", "9", "9"), *rows))
    counted = counters_ncu.count_under_ncu(plan, arrays_of(plan), 0)
    assert counted.source == "ncu 2025.3.1.0"
    assert [values["dram_read_bytes"] for values in counted.launches] == [0, 1, 2]
    arguments = (tmp_path / "arguments").read_text()
    assert "--cache-control none" in arguments and "--clock-control none" in arguments
    assert "-m fuser.report.counters_child" in arguments
    fake_ncu(tmp_path, page(*rows[:-1]))
    with pytest.raises(MissingCountersError, match="saw 2 kernels of the plan's 3"):
        counters_ncu.count_under_ncu(plan, arrays_of(plan), 0)


def test_counters_stand_beside_what_was_predicted(plan: Plan) -> None:
    report = plan.report()
    add_times(report, [0.5e-3] * len(report.launches), 7)
    counts = {"dram_read_bytes": 1e6, "dram_written_bytes": 5e5, "l2_bytes": 2e6,
              "profiler_time_us": 1.5}  # fmt: skip
    add_counters(report, Counted("ncu 1", [counts] * plan.launches))
    found = report.to_dict()
    assert found["profile"]["kernels_us"] == 1500 and found["profile"]["counters"] == "ncu 1"
    assert [launch["counters"] for launch in found["launches"]] == [counts] * 3
    assert [launch["share"] for launch in found["launches"]] == [1 / 3] * 3
    text = kernel_table(Record(report.to_dict()))
    assert "DRAM read" in text and "1.00 MB" in text and "counters by ncu 1" in text
    predicted = byte_size(sum(launch.dram.total for launch in report.launches))
    assert f"DRAM read and written 4.50 MB, predicted {predicted}" in text
    assert plan.report().profile is None  # the plan's own report stays as it was


def test_what_ncu_lacks_is_one_line(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = (
        "==PROF== Connected to process 71\n"
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU"
        " Performance Counters on the target device 0. For instructions on enabling permissions"
        " and to get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"
    )
    line = why_none(denied, 1)
    assert "not permitted" in line and "CAP_SYS_ADMIN" in line and "\n" not in line
    line = why_none("==PROF== Connected\n==ERROR== LibraryNotLoaded\nmore\n", 9)
    assert line == "ncu counted nothing: LibraryNotLoaded"
    assert "code 9" in why_none("", 9)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(counters_ncu, "_PLACES", (f"{tmp_path}/none/*",))
    with pytest.raises(MissingCountersError, match="no ncu"):
        counters_ncu.count_under_ncu(plan, arrays_of(plan), 0)


@pytest.mark.cuda
def test_dram_bytes_of_a_copy_are_its_operands() -> None:
    """One kernel over tensors of several times the L2: read once, written once."""
    size = 1 << 27
    x = np.ones(size, np.float32)
    with fuser.trace(lambda x: -x, x, device="cuda").plan as plan:
        try:
            (values,) = count(plan, [x]).launches
        except MissingCountersError as error:
            pytest.skip(str(error))
    assert values["dram_read_bytes"] == pytest.approx(4 * size, rel=0.05)
    assert values["dram_written_bytes"] == pytest.approx(4 * size, rel=0.10)  # rest is in the L2
    assert values["l2_bytes"] >= 8 * size * 0.95
    assert values["profiler_time_us"] > 50
