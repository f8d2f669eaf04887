"""Where an elementwise region that has become too long ends: where few values live.

    region: a = exp x; b = a + 1; s = a / b; y = x * s; a' = exp y; b' = a' + 1   (full)
                =>
    region: a = exp x; b = a + 1; s = a / b; y = x * s        (writes y)
    region: a' = exp y; b' = a' + 1; ...                      (instead of y, a' and b')
A value that lives across the cut is written by one kernel and read by the next.
"""

from __future__ import annotations

from fuser.graph.sizes import by_example
from fuser.partition.grouping import Group, Grouping


@by_example
def cut_where_few_live(grouping: Grouping, group: Group) -> None:
    """Close a group; what follows the place in its second half across which the fewest bytes live
    becomes a group of its own, which goes on."""
    if group.closed or not group.is_elementwise:
        return
    group.closed = True
    nodes = sorted(group.nodes, key=grouping.position)
    place = {node: number for number, node in enumerate(nodes)}
    change = [0] * (len(nodes) + 2)  # of the bytes that live, from one place to the next
    for number, node in enumerate(nodes):
        value = node.output
        users = [place.get(user, len(nodes)) for user in grouping.consumers(value)]
        if grouping.reaches_output(value):
            users.append(len(nodes))
        last = max(users, default=number)
        change[number + 1] += value.type.bytes
        change[last + 1] -= value.type.bytes
    live, best, fewest = 0, len(nodes), 0
    for number in range(len(nodes) + 1):
        live += change[number]
        if number == len(nodes) // 2 or (number > len(nodes) // 2 and live <= fewest):
            best, fewest = number, live
    if 0 < best < len(nodes):
        grouping.split(group, nodes[best:])
