"""Which tile scheduler a kernel has, and whether two consumer groups ping-pong.

Persistent blocks fit kernels whose loops do nothing but accumulate what the producer fetches, over
a number of iterations that is known, so that both sides can tell where in the ring a program
begins; and pipelined attention loops (schedule/attention_pipeline.py) of one consumer group, where
both sides count; there, programs of different lengths are assigned beforehand
(tile_scheduler/static_load_balance.py).
What these multiply that does not change with the loop, the queries of attention, is fetched by the
producer too, as soon as the last iteration of the previous program has multiplied its own.
"""

from __future__ import annotations

from fuser.backend.nvptx.layouts.assignment import trip_count
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.schedule.dot_chain import find_dot_chain
from fuser.backend.nvptx.tile_scheduler.persistent import Persistent
from fuser.backend.nvptx.tile_scheduler.static_load_balance import StaticLoadBalance, table_of
from fuser.backend.nvptx.tile_scheduler.stream_k_plan import plan_stream_k
from fuser.backend.nvptx.tile_scheduler.tile_scheduler import TileScheduler
from fuser.graph.sizes import is_symbolic, size_hint


def plan_scheduler(low: Builder) -> None:
    """Choose the scheduler of a kernel whose streams are known, and the consumer groups of a
    block: 1, or those that ping-pong."""
    low.use_scheduler(plan_stream_k(low) or TileScheduler())
    low.producer.divide(1)
    if not low.producer.streams or (not low.scheduler.blocks and _refused(low)):
        return
    if low.warps == 4:
        low.producer.divide(low.kernel.schedule.consumer_groups)
    if not low.scheduler.blocks:
        low.use_scheduler(_persistent(low))


def _persistent(low: Builder) -> Persistent:
    programs, blocks = low.order.programs, low.multicast.at_once()
    blocks = blocks if is_symbolic(programs) else min(blocks, programs)
    table = table_of(low, blocks) if low.producer.consumer_groups == 1 else None
    return StaticLoadBalance(low, blocks, table) if table else Persistent(low, blocks)


def _refused(low: Builder) -> str:
    """Why the blocks of a kernel with streams are not persistent; "" where they are."""
    programs, streams = size_hint(low.order.programs), low.producer.streams.values()
    if not low.kernel.schedule.persistent:
        return "the schedule does not ask for them"
    if programs <= low.multicast.at_once():
        return f"{programs} programs all run at once"
    if low.cluster.blocks > 1:
        return "a cluster shares each program"
    if len(streams) == 1 and all(find_dot_chain(low, stream) for stream in streams):
        return ""
    known = all(stream.quiet and trip_count(stream.loop) for stream in streams)
    return "" if known else "its loops do more than add up, or for unknown times"


def decide(low: Builder) -> None:
    """Note why the blocks of a kernel with streams are persistent, or ping-pong, or not."""
    decisions, groups = low.decisions, low.producer.consumer_groups
    if low.scheduler.blocks:
        programs, most = size_hint(low.order.programs), low.multicast.at_once()
        decisions.apply("persistent blocks", f"{programs} programs on {most} blocks")
    else:
        decisions.refuse("persistent blocks", _refused(low))
    if groups > 1:
        decisions.apply("ping-pong", f"{groups} warp groups have a program each")
    elif low.kernel.schedule.consumer_groups > 1:
        why = "blocks are not persistent" if low.warps == 4 else f"{low.warps} warps, not four"
        decisions.refuse("ping-pong", why)
