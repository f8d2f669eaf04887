"""What is fed to a model that runs on the host in part: checked as far as its types are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto

from fuser.errors import FeedError, nearest
from fuser.frontends.onnx.importer.reader import signature
from fuser.frontends.onnx.importer.types import is_supported
from fuser.pipeline.specialise import check_open_feeds


class HostFeeds:
    """The inputs of a model."""

    def __init__(self, proto: ModelProto) -> None:
        inputs = {info.name: info for info in proto.graph.input}
        self._names = list(inputs)
        held = {tensor.name for tensor in proto.graph.initializer}
        self._wanted = [name for name in self._names if name not in held]
        kinds = {name: inputs[name].type.tensor_type.elem_type for name in self._wanted}
        self._texts = {name for name, kind in kinds.items() if kind == TensorProto.STRING}
        dense = [
            inputs[name]
            for name, kind in kinds.items()
            if is_supported(kind) and inputs[name].type.tensor_type.HasField("shape")
        ]
        self._types = signature(ModelProto(graph=GraphProto(input=dense)))

    def check(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The feeds: arrays where tensors are wanted, strings as objects. Raises FeedError for a
        missing, unknown or unfitting feed."""
        if not isinstance(feeds, Mapping):
            raise FeedError(
                f"feeds are a {type(feeds).__name__}", hint="pass a dict of input name -> array"
            )
        for name in feeds:
            if name not in self._names:
                hint = nearest(str(name), self._names, "the inputs are")
                raise FeedError(f"unknown input {name!r}", hint=hint)
        missing = [name for name in self._wanted if name not in feeds]
        if missing:
            raise FeedError(f"missing feeds: {', '.join(missing)}")
        dense = {name: feeds[name] for name in self._types}
        texts = {name: np.asarray(feeds[name], object) for name in self._texts}
        return {**feeds, **check_open_feeds(self._types, dense), **texts}
