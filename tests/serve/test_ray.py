"""Plans by Ray: the classes alone, and, where Ray is, a batch job with a killed actor and an
application of Ray Serve."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser.ray
from fuser.errors import UsageError
from fuser.serve.models import Model
from tests.serve.conftest import WIDTH, numbers
from tests.serve.test_rows import model_file


def test_a_predictor_replaces_columns(mlp_file: Path, mlp: Model) -> None:
    predictor = fuser.ray.Predictor(mlp_file, device="cpu", threads=1, most=4)
    x = numbers(11)
    found = predictor({"id": np.arange(11), "x": x})
    assert list(found) == ["id", "y"]
    rows = np.concatenate([mlp.plan.run({"x": x[i : i + 1]})["y"] for i in range(11)])
    assert found["y"].tobytes() == rows.tobytes()
    with pytest.raises(UsageError, match="no column 'x'"):
        predictor({"id": np.arange(11)})
    with pytest.raises(UsageError, match="column 'y'"):
        predictor({"x": x, "y": x})
    keeps = fuser.ray.Predictor(mlp_file, device="cpu", threads=1, keep_inputs=True)
    assert list(keeps({"x": x})) == ["x", "y"]


def test_a_model_without_rows_is_no_predictor(tmp_path: Path) -> None:
    text = "g (float[2] x, float[3] z) => (float[2] y) { y = Identity(x) }"
    with pytest.raises(UsageError, match="no rows"):
        fuser.ray.Predictor(model_file(tmp_path, text), device="cpu")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    found = pytest.importorskip("ray", reason="Ray is not installed")
    path = {"env_vars": {"PYTHONPATH": str(Path(fuser.__file__).parents[1])}}
    found.init(
        num_cpus=2, object_store_memory=200_000_000, include_dashboard=False, runtime_env=path,
        logging_level="ERROR",
    )  # fmt: skip
    yield found
    found.shutdown()


class DiesOnce(fuser.ray.Predictor):
    """A predictor whose process is killed at one row, the first time it comes."""

    def __init__(self, path: str, mark: str, **options: Any) -> None:
        super().__init__(path, **options)
        self._mark = Path(mark)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if 4321 in batch["id"] and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


def _rows(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    waves = np.sin(batch["id"][:, None] * np.arange(1, WIDTH + 1))
    return {"id": batch["id"], "x": waves.astype(np.float32)}


@pytest.mark.slow
def test_a_batch_job_with_a_killed_actor_gives_every_row_once(
    ray: Any, mlp_file: Path, mlp: Model, tmp_path: Path
) -> None:
    count = 10_000
    dataset = ray.data.range(count, override_num_blocks=7).map_batches(_rows)
    mark = tmp_path / "killed"
    rows = dataset.map_batches(
        DiesOnce, fn_constructor_args=(str(mlp_file), str(mark)),
        fn_constructor_kwargs={"device": "cpu", "threads": 1}, batch_size=300,
        compute=ray.data.ActorPoolStrategy(size=1), num_cpus=1,
    ).take_all()  # fmt: skip
    assert mark.exists()
    rows.sort(key=lambda row: row["id"])
    assert [row["id"] for row in rows] == list(range(count))
    expected = mlp.plan.run({"x": _rows({"id": np.arange(count)})["x"]})["y"]
    assert np.stack([row["y"] for row in rows]).tobytes() == expected.tobytes()


@pytest.mark.slow
def test_an_application_shares_runs_and_speaks_the_protocol(
    ray: Any, mlp_file: Path, mlp: Model
) -> None:
    import urllib.request

    from ray import serve

    app = fuser.ray.application(mlp_file, device="cpu", max_batch=8, wait_seconds=1.0)
    serve.start(http_options={"host": "127.0.0.1", "port": 8765})
    handle = serve.run(app, name="mlp", route_prefix="/mlp")
    try:
        requests = [{"x": numbers(rows % 3 + 1, rows)} for rows in range(60)]
        answers = [handle.infer.remote(feeds) for feeds in requests]
        for feeds, answer in zip(requests, answers, strict=True):
            found = answer.result(timeout_s=300)["y"]
            assert found.tobytes() == mlp.plan.run(feeds)["y"].tobytes()
        assert handle.runs.remote().result() < len(requests)
        with pytest.raises(Exception, match="FP64"):
            handle.infer.remote({"x": np.zeros((1, WIDTH))}).result()
        body = json.dumps({"inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [0.5] * WIDTH}
        ]}).encode()  # fmt: skip
        with urllib.request.urlopen("http://127.0.0.1:8765/mlp", body) as page:
            fields = json.load(page)
        expected = mlp.plan.run({"x": np.full((1, WIDTH), 0.5, np.float32)})["y"]
        assert np.array_equal(np.float32(fields["outputs"][0]["data"]), expected[0])
    finally:
        serve.shutdown()
