"""Every value that crosses between regions says why, and what it costs; users may decide."""

from __future__ import annotations

import pytest

from fuser import dtypes
from fuser.errors import UsageError
from fuser.graph import compose
from fuser.graph.ir import Graph, Value
from fuser.graph.passes import run_passes
from fuser.graph.units import duration
from fuser.partition import Options, Refusal, cost, partition
from fuser.partition.explanation import RefusalRow, explanation, folded, refusal_groups
from fuser.partition.lift import LIFTS, PINNED, lift
from fuser.report.partition_text import explain, names, text_of
from tests.partition.support import SM_90A, TARGETS, Net, check, kinds
from tests.random_graphs.check import copied, prepared
from tests.random_graphs.coverage import known
from tests.random_graphs.draw import draw


def only_refusal(net: Net, *outputs: Value) -> tuple[str, int]:
    graph = net.finish(*outputs)
    cut = partition(graph, SM_90A)
    check(graph, cut)
    (refusal,) = cut.refusals
    assert refusal.reason
    assert refusal.producer == cut.regions[0].name
    return refusal.code, refusal.bytes_lost


def test_a_product_behind_a_product() -> None:
    net = Net()
    y = net.linear(net.linear(net.input("x", 8, 16), 32), 4)
    assert only_refusal(net, y) == ("second-anchor", 2 * 8 * 32 * 4)


def test_a_row_spread_over_blocks() -> None:
    net = Net()
    y = net.linear(net.input("x", 8, 16), 32)
    code, lost = only_refusal(net, compose.softmax(net.b, y, [1]))
    assert (code, lost) == ("row-across-blocks", 2 * 8 * 32 * 4)


def test_a_row_before_a_product() -> None:
    net = Net()
    y = compose.softmax(net.b, net.input("x", 8, 16), [1])
    assert only_refusal(net, net.linear(y, 4)) == ("row-in-prologue", 2 * 8 * 16 * 4)


def test_a_value_that_is_also_an_output_loses_one_read() -> None:
    net = Net()
    y = compose.softmax(net.b, net.input("x", 8, 16), [1])
    assert only_refusal(net, net.linear(y, 4), y) == ("row-in-prologue", 8 * 16 * 4)


def test_reductions_along_different_axes() -> None:
    net = Net()
    y = compose.softmax(net.b, net.input("x", 8, 16), [1])
    assert only_refusal(net, compose.softmax(net.b, y, [0]))[0] == "different-rows"


def test_a_row_too_long_for_the_chip() -> None:
    """Each pass over a row that does not stay would repeat what is before it: fine if cheap."""
    net = Net()
    x = net.input("x", 2, 1 << 18)
    y = net.b.map("mul", x, x)
    cut = partition(net.finish(compose.softmax(net.b, y, [1])), SM_90A)
    assert kinds(cut) == ["reduce"]
    for op in ("sin", "erf", "tanh", "exp", "cos"):
        y = net.b.map(op, y)
    cut = partition(net.finish(compose.softmax(net.b, y, [1])), SM_90A)
    assert kinds(cut) == ["map", "reduce"]
    assert {refusal.code for refusal in cut.refusals} == {"row-too-long"}


def test_a_residual_around_a_product() -> None:
    """relu(x) is read by the product and, later, by the sum: it cannot wait for itself."""
    net = Net()
    first = net.b.map("max", net.linear(net.input("x", 8, 16), 16), 0.0)
    graph = net.finish(net.b.map("add", net.linear(first, 16), first))
    cut = partition(graph, SM_90A)
    assert kinds(cut) == ["contraction", "contraction"]
    assert {refusal.code for refusal in cut.refusals} <= {"second-anchor", "cycle"}


def test_an_opaque_reader() -> None:
    net = Net()
    y = net.b.map("exp", net.input("x", 8, 16))
    assert only_refusal(net, net.b.emit("sort", y, axis=1))[0] == "opaque"


def test_no_fusion_gives_every_compute_node_a_region() -> None:
    net = Net()
    x = net.input("x", 8, 16)
    y = net.b.map("add", net.b.map("exp", net.b.reshape(x, (16, 8))), 1.0)
    graph = net.finish(net.b.transpose(net.linear(y, 4), (1, 0)))
    cut = partition(graph, SM_90A, Options(no_fusion=True))
    check(graph, cut)
    assert kinds(cut) == ["map", "map", "contraction"]
    assert {refusal.code for refusal in cut.refusals} == {"no-fusion"}


# user control -------------------------------------------------------------------------------------


def gelu_net() -> tuple[Graph, list[str]]:
    net = Net()
    x = net.input("x", 8, 16)
    net.b.origin = ("product",)
    y = net.b.matmul(x, net.weights(16, 4))
    y = net.named("activation").map("tanh", y)
    y = net.named("norm").map("sub", y, net.b.mean(y, [1], keep=True))
    return net.finish(y), ["product", "activation", "norm"]


def test_a_forbidden_pair_stays_apart() -> None:
    graph, _ = gelu_net()
    assert kinds(partition(graph, SM_90A)) == ["contraction", "reduce"]
    cut = partition(graph, SM_90A, Options(forbid=(("product", "activation"),)))
    check(graph, cut)
    assert kinds(cut) == ["contraction", "reduce"]
    assert "activation" not in cut.regions[0].origin
    assert [refusal.code for refusal in cut.refusals] == ["forbidden"]


def test_a_pinned_pair_is_fused_whatever_it_costs() -> None:
    net = Net()
    x = net.input("x", 4096, 1024)
    y = net.named("erf").map("erf", x)
    net.b.origin = ("product",)
    graph = net.finish(net.b.matmul(y, net.weights(1024, 4096)))
    assert kinds(partition(graph, SM_90A)) == ["map", "contraction"]
    cut = partition(graph, SM_90A, Options(pin=(("erf", "product"),)))
    assert kinds(cut) == ["contraction"]


def test_unknown_names_are_an_error() -> None:
    graph, _ = gelu_net()
    with pytest.raises(UsageError, match="no node 'gelu'"):
        partition(graph, SM_90A, Options(forbid=(("product", "gelu"),)))


# text ---------------------------------------------------------------------------------------------


def test_explain_lists_regions_and_refusals() -> None:
    graph, found = gelu_net()
    cut = partition(graph, SM_90A)
    text = explain(cut)
    assert text.startswith("2 regions, ")
    assert "1 fusion refused" in text
    assert "\nrow-across-blocks: " in text and "contraction_0 -> reduce_1\n" in text
    assert "activation -> norm\n" in text
    assert all(name in text for name in found)
    rows = explanation(cut).regions
    assert [row.kind for row in rows] == ["contraction", "reduce"]
    assert rows[0].nodes == ("product", "activation")
    assert rows[0].bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4)


def test_refusals_add_up_by_code() -> None:
    net = Net()
    y = net.input("x", 8, 16)
    for _ in range(3):
        y = net.linear(y, 16)
    found = explanation(partition(net.finish(y), SM_90A))
    (group,) = found.groups
    assert (group.code, len(group.rows)) == ("second-anchor", 2)
    assert group.bytes == 2 * 2 * 8 * 16 * 4
    assert group.seconds == pytest.approx(sum(row.seconds for row in found.refusals))


def row(code: str, seconds: float, producer: str, consumer: str) -> RefusalRow:
    return RefusalRow(producer, consumer, "v", (), (), code, f"for {code}", 8, seconds, "")


def test_a_group_saves_no_more_than_its_kernels_take() -> None:
    """One kernel would be left, and takes as long as the longest at least."""
    rows = [row("a", 3.0, "map_0", "map_1"), row("a", 3.0, "map_0", "map_2"),
            row("b", 2.0, "map_1", "map_2"), row("a", 1.0, "map_1", "map_2")]  # fmt: skip
    groups = refusal_groups(rows, {"map_0": 4.0, "map_1": 3.0, "map_2": 2.0})
    assert [(group.code, group.seconds) for group in groups] == [("a", 5.0), ("b", 2.0)]
    assert [one.seconds for one in groups[0].rows] == [3.0, 3.0, 1.0]
    assert refusal_groups(rows, {"map_0": 4.0})[0].seconds == 7.0  # where not all are known


def test_what_is_below_a_hundredth_is_folded() -> None:
    rows = [row("a", 3.0, "x_0", "x_1"), row("b", 0.4, "x_1", "x_2"), row("b", 0.5, "x_2", "x_3"),
            row("c", 0.6, "x_3", "x_4"), row("c", 0.6, "x_4", "x_5")]  # fmt: skip
    groups = refusal_groups(rows, {})
    shown, small = folded(groups, 100.0)
    assert [group.code for group in shown] == ["a", "c"]  # a group counts as a whole
    assert [group.code for group in small] == ["b"]
    assert folded(groups, 0.0) == (groups, [])


def test_the_text_folds_what_is_small() -> None:
    """Two small products beside a sort of many elements."""
    net = Net()
    y = net.linear(net.linear(net.input("x", 8, 16), 16), 4)
    z = net.b.emit("sort", net.b.map("exp", net.input("z", 8192, 8192)), axis=1)
    found = explanation(partition(net.finish(y, z), SM_90A))
    assert [group.code for group in found.groups] == ["opaque", "second-anchor"]
    text = text_of(found)
    small = found.groups[1].seconds
    assert f"and 1 more below 1 % of the run: {duration(small)} together; -v lists them" in text
    assert "second-anchor" not in text and "second-anchor" in text_of(found, verbose=True)
    assert "below" not in text_of(found, verbose=True)
    assert max(len(line) for line in text.split("refused;")[1].splitlines()) <= 80


@pytest.mark.parametrize("target", TARGETS)
def test_no_refusal_costs_more_than_its_kernels(target: str) -> None:
    """On random graphs: what is left of the two takes as long as each of them without what one
    hands to the other."""
    met = 0
    for seed in range(60):
        cut = partition(prepared(draw(seed).graph, True), TARGETS[target])
        found, target_ = explanation(cut), TARGETS[target]
        regions = {region.name: region for region in cut.regions}
        times = {one.name: one.seconds for one in found.regions}
        pairs: dict[tuple[str, str], list[RefusalRow]] = {}
        for one in found.refusals:
            pairs.setdefault((one.producer, one.consumer), []).append(one)
        for pair, rows in pairs.items():
            lost = sum(one.bytes for one in rows)
            least = max(
                cost.seconds(target_, regions[name].nodes, max(0, regions[name].bytes() - lost))
                for name in pair
            )
            most = sum(times[name] for name in pair) - least
            assert 0 <= sum(one.seconds for one in rows) <= most * (1 + 1e-9)
            met += 1
        assert [one.seconds for one in found.refusals] == sorted(
            (one.seconds for one in found.refusals), reverse=True
        )
        for group in found.groups:
            ends = {name for one in group.rows for name in (one.producer, one.consumer)}
            assert group.seconds <= sum(times[name] for name in ends)
    assert met > 30


def test_a_refusal_names_both_ends_and_what_it_costs() -> None:
    """Two matmuls of 4096 rows: their middle is written and read, and there is a second launch."""
    net = Net()
    first = net.linear(net.input("x", 4096, 256), 256)
    mid = net.named("turn").transpose(first, (1, 0))
    net.b.origin = ("second",)
    cut = partition(net.finish(net.b.matmul(net.weights(64, 256), mid)), SM_90A)
    found = explanation(cut)
    (row,) = found.refusals
    assert (row.sources, row.readers) == (("linear0",), ("second",))  # movement passed over
    assert row.value == cut.regions[0].outputs[0].name
    assert row.bytes == 2 * 4096 * 256 * 4 and row.lift == ""
    work = [cost.work_seconds(SM_90A, region.nodes) for region in cut.regions]
    moved = [region.bytes() for region in cut.regions]
    apart = [cost.kernel_seconds(SM_90A, *each) for each in zip(work, moved, strict=True)]
    assert [region.seconds for region in found.regions] == pytest.approx(apart)
    together = cost.kernel_seconds(SM_90A, sum(work), sum(moved) - row.bytes)
    assert row.seconds == pytest.approx(sum(apart) - together)
    assert found.seconds == pytest.approx(sum(apart))


def test_lists_are_cut_unless_all_is_asked_for() -> None:
    net = Net()
    y = net.input("x", 8, 16)
    for i in range(7):
        y = net.linear(y, 16)
        for op in ("exp", "tanh", "sin"):
            y = net.named(f"a_name_of_some_length_{op}_{i}").map(op, y)
    found = explanation(partition(net.finish(y), SM_90A))
    short = " ".join(text_of(found, most=60).split())
    full = text_of(found, verbose=True, most=10_000)
    assert "6 times" in short and "... 3 more; -v lists all" in short
    assert "more" not in full
    for row in found.refusals:
        assert f"{names(row.sources)} -> {names(row.readers)}" in full


def test_flops_are_what_the_nodes_ask_for() -> None:
    """A matmul, a sum over rows and two maps; movement and casts are none."""
    net = Net()
    x = net.input("x", 8, 16)
    y = net.b.map("exp", net.b.transpose(net.linear(x, 4), (1, 0)))
    y = net.b.emit("cast", net.b.map("add", y, 1.0), dtype=dtypes.f16)
    (row, *more) = explanation(partition(net.finish(y), SM_90A)).regions
    assert not more and row.flops == 2 * 8 * 16 * 4 + 2 * 8 * 4
    sums = Net()
    cut = partition(sums.finish(sums.b.mean(sums.input("x", 8, 16), [1])), SM_90A)
    assert explanation(cut).regions[0].flops == 8 * 16 + 8


def test_what_lifts_a_refusal_is_an_option_or_is_left_out() -> None:
    codes = {item.removeprefix("refusal ") for item in known() if item.startswith("refusal ")}
    assert {*LIFTS, *PINNED} <= codes | {"slow-kernel", "not-emitted"}

    def of(code: str) -> str:
        return lift(Refusal("map_0", "map_1", code, "'a' and 'b' are to stay apart", 1, "v",
                            ("a",), ("b",)))  # fmt: skip

    assert of("forbidden") == "leave out --forbid of 'a' and 'b'"
    for code in codes:
        assert not of(code) or " --" in f" {of(code)}", code
    assert {code for code in codes if of(code)} == {*LIFTS, *PINNED, "forbidden"} & codes
    assert of("recompute") == "--pin a,b: each reader computes it again"
    assert of("second-anchor") == of("opaque") == ""


@pytest.mark.parametrize("target", TARGETS)
def test_a_pin_that_is_advised_can_be_kept(target: str) -> None:
    """On graphs that are drawn, whose nodes are named by what they give, and two by hand."""
    graphs = [gated_rows(), long_rows()]
    for seed in range(40):
        graph = copied(draw(seed).graph)
        for node in graph.nodes:
            node.origin = (node.output.name,)
        graphs.append(run_passes(graph))
    kept = 0
    for graph in graphs:
        cut = partition(graph, TARGETS[target])
        for item in cut.refusals:
            if lift(item).startswith("--pin "):
                one, other = lift(item).removeprefix("--pin ").split(": ")[0].split(",")
                partition(graph, TARGETS[target], Options(pin=((one, other),)))  # or it raises
                kept += 1
    assert kept > 1


def gated_rows() -> Graph:
    net = Net()
    y = net.named("erf").map("erf", net.input("x", 4096, 1024))
    net.b.origin = ("product",)
    return net.finish(net.b.matmul(y, net.weights(1024, 4096)))


def long_rows() -> Graph:
    """A row that does not stay on chip, with much in front of it."""
    net = Net()
    y = net.input("x", 2, 1 << 20)
    for op in ("sin", "erf", "tanh", "exp", "cos"):
        y = net.named(op).map(op, y)
    net.b.origin = ("softmax",)
    return net.finish(compose.softmax(net.b, y, [1]))


def test_too_much_to_repeat_is_not_advised() -> None:
    """A pin would be refused: too many operations an element, or tensors to look in."""
    net = Net()
    y = net.input("x", 4096, 1024)
    for i in range(12):
        y = net.named("maps").map(("sin", "erf", "tanh", "exp")[i % 4], y)
    net.b.origin = ("product",)
    graph = net.finish(net.b.matmul(y, net.weights(1024, 4096)))
    (refusal,) = partition(graph, SM_90A).refusals
    assert refusal.code == "too-much-code" and "too many to repeat" in refusal.reason
    assert lift(refusal) == ""
    with pytest.raises(UsageError, match="too many to repeat"):
        partition(graph, SM_90A, Options(pin=(("maps", "product"),)))


def test_half_precision_bytes() -> None:
    net = Net()
    x = net.input("x", 8, 16, dtype=dtypes.f16)
    cut = partition(net.finish(net.b.map("neg", x)), SM_90A)
    assert cut.regions[0].bytes() == 2 * 2 * 8 * 16
