"""Plans on many machines, by Ray.

    app = fuser.ray.application("model.plan", num_replicas=4, num_gpus=1)     # Ray Serve
    handle = serve.run(app)
    outputs = handle.infer.remote({"x": x}).result()

    rows = dataset.map_batches(                                               # Ray Data
        fuser.ray.Predictor, fn_constructor_args=("model.plan",), batch_size=256,
        compute=ray.data.ActorPoolStrategy(size=4), num_gpus=1,
    )

A replica or an actor loads the plan once. Ray replaces those that die; the file must be where they
run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser.errors import FuserError, UsageError
from fuser.serve.opening import MOST_ROWS, open_model
from fuser.serve.protocol import BINARY_HEADER, read_request, write_answer
from fuser.serve.tensors import RequestError

if TYPE_CHECKING:
    from ray.serve import Application


class Predictor:
    """A plan as a class for `Dataset.map_batches`.

    A batch is columns by name, of any number of rows, the last batch of a block included. Columns
    that the model reads become its outputs; others stay. Rows have the same bits in every batch
    where the model's kernels allow it (docs/serving.md).
    """

    def __init__(
        self, path: str | Path, *, device: str = "auto", threads: int | None = None,
        most: int = 64, keep_inputs: bool = False,
    ) -> None:  # fmt: skip
        """most: rows of a run. keep_inputs: columns that the model reads stay, too. Raises as
        `fuser.serve.opening.open_model`, and UsageError for a model without rows."""
        self._model = open_model(path, device=device, threads=threads, most=most)
        self._keep = keep_inputs
        if not self._model.batch:
            raise UsageError(
                "inputs and outputs of the model have no common axis 0: it has no rows",
                where=str(path),
            )

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The columns behind the model. Raises UsageError for columns that do not fit."""
        model = self._model
        feeds = {}
        for tensor in model.inputs:
            if tensor.name not in batch:
                raise UsageError(f"the data set has no column {tensor.name!r}")
            feeds[tensor.name] = np.ascontiguousarray(batch[tensor.name])
        model.check(feeds)
        count, key = model.rows(feeds), model.key(feeds)
        step = model.limit(key) if model.sizes(key) else max(1, count)
        parts = [
            {name: array[start : start + step] for name, array in feeds.items()}
            for start in range(0, max(1, count), step)
        ]
        answers = model.answer(parts)
        clash = {tensor.name for tensor in model.outputs} & set(batch) - set(feeds)
        if clash:
            raise UsageError(f"the data set has a column {min(clash)!r}, as the model's output")
        kept = {n: column for n, column in batch.items() if self._keep or n not in feeds}
        found = {
            tensor.name: np.concatenate([answer[tensor.name] for answer in answers])
            for tensor in model.outputs
        }
        return {**kept, **found}


def application(
    path: str | Path, *, name: str = "", max_batch: int = MOST_ROWS, wait_seconds: float = 0.0,
    num_replicas: int = 1, num_gpus: float = 0.0, num_cpus: float = 1.0, device: str = "auto",
    **options: Any,
) -> Application:  # fmt: skip
    """A plan or a model as an application of Ray Serve, to `serve.run`.

    handle.infer.remote(feeds) gives the outputs, arrays by name both ways. By HTTP it answers
    bodies of the Open Inference Protocol's infer. max_batch, wait_seconds: requests that wait for
    each other share runs, as in `fuser serve`. num_gpus, num_cpus: of a replica; its plan has as
    many threads. options: further ones of `serve.deployment`. Raises ImportError without Ray.
    """
    from ray import serve

    threads = max(1, int(num_cpus))

    class Replica:
        def __init__(self) -> None:
            self._model = open_model(
                path, name=name, device=device, threads=threads, most=max_batch
            )

        @serve.batch(max_batch_size=max_batch, batch_wait_timeout_s=wait_seconds)  # type: ignore[untyped-decorator, unused-ignore]
        async def _answer(self, requests: Sequence[Mapping[str, np.ndarray]]) -> list[Any]:
            return await asyncio.to_thread(self._model.answer_each, requests)

        async def infer(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            """The outputs by name. Raises FuserError."""
            found: dict[str, np.ndarray] | FuserError = await self._answer(feeds)
            if isinstance(found, FuserError):
                raise found
            return found

        async def runs(self) -> int:
            """How many runs answered the requests to this replica."""
            return self._model.runs

        async def __call__(self, request: Any) -> Any:
            from starlette.responses import JSONResponse, Response

            try:
                body, header = await request.body(), request.headers.get(BINARY_HEADER)
                asked = read_request(self._model, body, int(header) if header else None)
                answer, size = write_answer(self._model, asked, await self.infer(asked.feeds))
            except RequestError as error:
                return JSONResponse({"error": str(error)}, error.status)
            except (ValueError, UsageError) as error:
                return JSONResponse({"error": str(error)}, 400)
            if size is None:
                return Response(answer, media_type="application/json")
            return Response(answer, headers={BINARY_HEADER: str(size)})

    deployment = serve.deployment(
        Replica, name=options.pop("deployment_name", name or Path(path).stem),
        num_replicas=num_replicas,
        ray_actor_options={"num_gpus": num_gpus, "num_cpus": num_cpus}, **options,
    )  # fmt: skip
    return deployment.bind()
