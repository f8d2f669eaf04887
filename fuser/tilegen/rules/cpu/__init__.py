"""The schedule rules of a CPU, a file for each kind of region or mechanism."""

from __future__ import annotations

from fuser.tilegen.rules.cpu import attention, conv, k_blocks, matmul, rows, winograd
from fuser.tilegen.rules.record import Rules

CPU_RULES = Rules(
    map=rows.map_schedule,
    reduce=rows.reduce_schedule,
    sort=rows.sort_schedule,
    matmul=matmul.dot_schedule,
    conv=conv.conv_schedule,
    direct_conv=conv.direct_schedule,
    attention=attention.attention_schedule,
    merge=attention.merge_schedule,
    packed_matmul=matmul.packed_schedule,
    k_blocks=k_blocks.deep_schedule,
    winograd_side=winograd.winograd_side,
)
