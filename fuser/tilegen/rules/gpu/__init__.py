"""The schedule rules of a GPU, a file for each kind of region or mechanism."""

from __future__ import annotations

from fuser.tilegen.rules.gpu import attention, conv, matmul, rows
from fuser.tilegen.rules.record import Rules

GPU_RULES = Rules(
    map=rows.map_schedule,
    reduce=rows.reduce_schedule,
    sort=rows.sort_schedule,
    matmul=matmul.dot_schedule,
    conv=conv.conv_schedule,
    direct_conv=conv.direct_schedule,
    attention=attention.attention_schedule,
    merge=attention.merge_schedule,
)
