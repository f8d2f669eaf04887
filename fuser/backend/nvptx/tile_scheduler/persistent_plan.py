"""Which kernels are persistent, and which have two consumer groups that ping-pong.

It fits kernels whose loops do nothing but accumulate what the producer fetches, over a number of
iterations that is known, so that both sides can tell where in the ring a program begins; and
pipelined attention loops (schedule/attention_pipeline.py) of one consumer group, where both sides
count; there, programs of different lengths are assigned beforehand
(tile_scheduler/static_load_balance.py).
What these multiply that does not change with the loop, the queries of attention, is fetched by the
producer too, as soon as the last iteration of the previous program has multiplied its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from fuser.backend.nvptx.layouts.assignment import trip_count
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.schedule.dot_chain import find_dot_chain
from fuser.backend.nvptx.schedule.producer_ring import Stream
from fuser.graph.sizes import size_hint
from fuser.tilegen import ops


def wanted(low: Builder, streams: Mapping[ops.For, Stream]) -> bool:
    """Whether a kernel of these streams is to be persistent."""
    if low.stream_k is not None and streams:
        return True
    if not low.kernel.schedule.persistent or not streams:
        return False
    programs = size_hint(low.order.programs)
    if programs <= low.multicast.at_once() or low.cluster.blocks > 1:
        return False
    return pipelines_attention(low, streams) or all(
        stream.quiet and trip_count(stream.loop) for stream in streams.values()
    )


def pipelines_attention(low: Recording, streams: Mapping[ops.For, Stream]) -> bool:
    """Whether the only stream is of a pipelined attention loop."""
    return len(streams) == 1 and all(find_dot_chain(low, stream) for stream in streams.values())


def consumer_groups_of(low: Builder, streams: Mapping[ops.For, Stream]) -> int:
    """Ping-pong consumer groups in a block; 1: none."""
    asked = low.kernel.schedule.consumer_groups
    return asked if asked > 1 and wanted(low, streams) and low.warps == 4 else 1


def decide(low: Builder) -> None:
    """Note why the blocks of a kernel with streams are persistent, or ping-pong, or not."""
    decisions, programs = low.decisions, size_hint(low.order.programs)
    most, asked = low.multicast.at_once(), low.kernel.schedule.consumer_groups
    if wanted(low, low.producer.streams):
        decisions.apply("persistent blocks", f"{programs} programs on {most} blocks")
    elif not low.kernel.schedule.persistent:
        decisions.refuse("persistent blocks", "the schedule does not ask for them")
    elif programs <= most:
        decisions.refuse("persistent blocks", f"{programs} programs all run at once")
    elif low.cluster.blocks > 1:
        decisions.refuse("persistent blocks", "a cluster shares each program")
    else:
        decisions.refuse("persistent blocks", "its loops do more than add up, or for unknown times")
    if low.producer.consumer_groups > 1:
        decisions.apply(
            "ping-pong", f"{low.producer.consumer_groups} warp groups have a program each"
        )
    elif asked > 1:
        persistent = wanted(low, low.producer.streams)
        why = "of groups of four" if persistent else "blocks are not persistent"
        decisions.refuse("ping-pong", why if low.warps == 4 else f"{low.warps} warps, not four")
