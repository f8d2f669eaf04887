"""Changes of a kernel's syntax tree that leave its meaning alone.

Each mutation lists the places of a function where it can be made and makes it at one of them. Most
work at an assignment `v = ...` to a name whose kind is known: it computes v another way, or does
something after it that does not count.

What a launch gives beside the kernel's own arguments (`EXTRA`) is opaque to the compiler: numbers
0 and 1, and scratch memory of its own for each program.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.equivalence.kernels.kinds import Info, Kind, Names, array_of, call_name, kind_of

EXTRA = ("memory_f", "memory_i", "zero", "one", "one_f")
"""Arguments that every mutant has: arrays of float64 and int64 with AREA elements a program, the
whole numbers 0 and 1, the float 1."""
AREA = 4096
"""At least two tiles of each kernel."""

Body = list[ast.stmt]


@dataclass(frozen=True)
class Place:
    """The statement number `at` of `body`, and what names hold after it. target: the name that it
    gives a value, or empty. loops: in how many it is. in_loop: its body is that of a loop."""

    body: Body
    at: int
    names: Names
    target: str
    loops: int
    in_loop: bool = False

    @property
    def statement(self) -> ast.stmt:
        return self.body[self.at]

    @property
    def info(self) -> Info:
        return self.names[self.target]

    def after(self, statements: Sequence[ast.stmt]) -> None:
        self.body[self.at + 1 : self.at + 1] = statements

    def instead(self, statements: Sequence[ast.stmt]) -> None:
        self.body[self.at : self.at + 1] = statements


@dataclass
class Subject:
    """A function that is being changed. dtypes: the kinds of its arrays; sizes: its numbers.

    space: of a kernel that was not written for this, all that its names mean to the compiler:
    conditions that these decide have one branch, loops may be empty, and tiles of any size.
    area: elements of a program in each scratch memory."""

    tree: ast.FunctionDef
    dtypes: dict[str, Kind]
    names: Names
    random: random.Random
    made: int = 0
    space: dict[str, Any] | None = None
    area: int = AREA

    def fresh(self, hint: str) -> str:
        self.made += 1
        return f"{hint}_{self.made}"

    def places(self) -> list[Place]:
        return list(self._places(self.tree.body, dict(self.names), 0, False))

    def assigned(self, *kinds: Kind) -> list[Place]:
        """Assignments of values of these kinds."""
        return [p for p in self.places() if p.target and p.info.kind in kinds]

    def _places(self, body: Body, names: Names, loops: int, in_loop: bool) -> Iterator[Place]:
        for at, statement in enumerate(body):
            target = ""
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    found = kind_of(value, names, self.dtypes)
                    target = self._learn(names, name, found, value)
                case ast.AugAssign(target=ast.Name(id=name), value=value, op=op):
                    joined = ast.BinOp(ast.Name(name), op, value)
                    target = self._learn(names, name, kind_of(joined, names, self.dtypes))
                case ast.For(target=ast.Name(id=name), body=inner):
                    static = "static_range" in ast.unparse(statement.iter)
                    counter = {name: Info("static" if static else "int")}
                    yield from self._within(inner, names, names | counter, loops + 1, not static)
                case ast.While(body=inner):
                    yield from self._within(inner, names, dict(names), loops + 1, True)
                case ast.If(body=inner, orelse=other):
                    taken = self._decided(statement.test)
                    if taken is not None:
                        yield from self._places(inner if taken else other, names, loops, False)
                    else:
                        yield from self._within(inner, names, dict(names), loops, False)
                        yield from self._within(other, names, dict(names), loops, False)
                case _:
                    for name in given_by(statement):
                        names.pop(name, None)
            known = target if target and names[target].is_data else ""
            yield Place(body, at, dict(names), known, loops, in_loop)

    def _within(
        self, body: Body, names: Names, inner: Names, loops: int, in_loop: bool
    ) -> Iterator[Place]:
        """Places of a body that may not run, after which it is open what it gave other types."""
        yield from self._places(body, inner, loops, in_loop)
        for name in {name for item in body for name in given_by(item)}:
            if self.space is not None and names.get(name) != inner.get(name):
                names.pop(name, None)

    def _decided(self, test: ast.expr) -> bool | None:
        """What the compiler knows of a condition."""
        known = self.space
        if known is None or not _read_names(test) <= known.keys() - self.names.keys() | {
            name for name, info in self.names.items() if info.kind == "static"
        }:
            return None
        try:
            return bool(eval(compile(ast.Expression(test), "<condition>", "eval"), known))
        except Exception:
            return None

    def _learn(
        self, names: Names, name: str, found: Info | None, value: ast.expr | None = None
    ) -> str:
        if found is None:
            names.pop(name, None)
            return ""
        array = array_of(value, self.dtypes) if value is not None else ""
        if found.kind == "pointer" and array:
            self.dtypes[name] = self.dtypes[array]
        before = names.get(name)
        if before is not None and before.kind == "static" and found.kind == "static":
            found = Info("static")
        names[name] = found
        return name


def given_by(node: ast.AST) -> set[str]:
    """The names that a statement gives a value."""
    return {n.id for n in ast.walk(node)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip


Mutation = Callable[[Subject], bool]
"""Makes one change of its kind somewhere; False where there is no place for it."""


def statements(text: str) -> Body:
    return ast.parse(text).body


def expression(text: str) -> ast.expr:
    node = ast.parse(text, mode="eval").body
    return node


def _pick(s: Subject, places: Sequence[Place]) -> Place | None:
    return s.random.choice(places) if places else None


def _other(s: Subject, name: str, info: Info) -> str:
    """Another value of the same type."""
    if info.kind == "bool":
        return f"{name} == {name}"
    if info.kind == "int":
        return s.random.choice([f"{name} + 1", f"{name} * 2", f"-{name}"])
    return s.random.choice([f"{name} * 2.0", f"-{name}", f"{name} - 1.0"])


def _folded(name: str, rank: int, fold: str = "max") -> str:
    for axis in range(rank - 1, -1, -1):
        name = f"fl.{fold}({name}, {axis})"
    return name


def _never(s: Subject, names: Names, near: str = "") -> str:
    """A condition that does not hold in any launch here, which no compiler can know. near: a name
    that it often asks."""
    folded = [(n, i) for n, i in names.items() if i.kind in ("float", "int") and i.rank]
    if s.random.random() < 0.4:
        folded = [item for item in folded if item[0] == near] or folded
    choices = [
        "fl.program_id(0) > 1000 * one", "fl.num_programs(0) == 77", "zero > fl.program_id(0)",
        "(one > 1) & (fl.program_id(0) < 5)", "zero == 1",
    ]  # fmt: skip
    if folded and s.random.random() < 0.7:
        name, info = s.random.choice(folded)
        fold = s.random.choice(["max", "min"])
        value = _folded(name, info.rank, fold)
        if info.kind == "int":
            return f"{value} == 1987654321"
        return f"{value}.to(fl.float32) == 1.5e30"
    return s.random.choice(choices)


def branch_never_taken(s: Subject) -> bool:
    """v = e        ->   v = e;  if never: v = other"""
    place = _pick(s, s.assigned("float", "int", "bool"))
    if place is None:
        return False
    v, never = place.target, _never(s, place.names, place.target)
    text = f"if {never}:\n    {v} = {_other(s, v, place.info)}"
    if s.random.random() < 0.3:
        inner = f"if {_never(s, place.names)}:\n        {v} = {_other(s, v, place.info)}"
        text = f"if {never}:\n    {inner}"
    if s.random.random() < 0.3:
        text += f"\nelse:\n    {v} = {_same(s, v, place.info)}"
    place.after(statements(text))
    return True


def _same(s: Subject, v: str, info: Info) -> str:
    """The same value, computed."""
    if info.kind == "bool":
        return s.random.choice([f"{v} & {v}", f"{v} | {v}"])
    if info.kind == "int":
        return s.random.choice([f"{v} + zero", f"{v} * one", f"{v} - zero"])
    computed = [f"({v} {op} one_f).to({v}.dtype)" for op in "*/"]
    return s.random.choice([*computed, f"fl.maximum({v}, {v}).to({v}.dtype)"])


def branch_around(s: Subject) -> bool:
    """v = e        ->   if never: v = other of e  else: v = e"""
    places = [p for p in s.assigned("float", "int") if isinstance(p.statement, ast.Assign)]
    place = _pick(s, [p for p in places if "atomic" not in ast.unparse(p.statement)])
    if place is None:
        return False
    assert isinstance(place.statement, ast.Assign)
    value = ast.unparse(place.statement.value)
    names = {n: i for n, i in place.names.items() if n != place.target}
    v, never = place.target, _never(s, names)
    text = f"if {never}:\n    {v} = {_other(s, f'({value})', place.info)}\nelse:\n    {v} = {value}"
    if v in _read_names(place.statement):
        return False  # the name before may be of another type
    place.instead(statements(text))
    return True


def _read_names(statement: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(statement)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}  # fmt: skip


class _Nodes(ast.NodeTransformer):
    """Replaces one node by another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self.old:
            return self.new
        return super().visit(node)  # type: ignore[no-any-return]


def _replace(s: Subject, old: ast.AST, new: ast.AST) -> None:
    ast.fix_missing_locations(_Nodes(old, new).visit(s.tree))


FLIPPED = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.Eq}


def operands_swapped(s: Subject) -> bool:
    """a + b        ->   b + a;  a < b -> b > a"""
    found: list[ast.expr] = []
    for node in ast.walk(s.tree):
        commutes = isinstance(node, ast.BinOp) and isinstance(
            node.op, ast.Add | ast.Mult | ast.BitAnd | ast.BitOr | ast.BitXor
        )
        compares = isinstance(node, ast.Compare) and type(node.ops[0]) in FLIPPED
        if commutes or compares or call_name(node) in ("maximum", "minimum"):  # type: ignore[arg-type]
            found.append(node)  # type: ignore[arg-type]
    if not found:
        return False
    node = s.random.choice(found)
    if isinstance(node, ast.BinOp):
        new: ast.expr = ast.BinOp(node.right, node.op, node.left)
    elif isinstance(node, ast.Compare):
        op = FLIPPED[type(node.ops[0])]()
        new = ast.Compare(node.comparators[0], [op], [node.left])
    else:
        assert isinstance(node, ast.Call)
        new = ast.Call(node.func, node.args[::-1], node.keywords)
    _replace(s, node, new)
    return True


def _ranges(s: Subject) -> list[tuple[Place, ast.For, list[str]]]:
    found = []
    for place in s.places():
        loop = place.statement
        if isinstance(loop, ast.For) and ast.unparse(loop.iter).startswith("range("):
            assert isinstance(loop.iter, ast.Call)
            bounds = [ast.unparse(arg) for arg in loop.iter.args]
            if len(bounds) == 1:
                bounds = ["0", *bounds]
            found.append((place, loop, [*bounds, "1"][:3]))
    return found


def _leaves(loop: ast.For) -> bool:
    """Whether an iteration may end early."""
    return any(isinstance(node, ast.Break | ast.Continue) for node in ast.walk(loop))


def _names_of(loop: ast.For) -> str:
    return ast.unparse(loop.target)


def _may_be_empty(first: str, stop: str) -> bool:
    """Whether a loop is the rest of a peeled one, or the first half of one that was split."""
    return first.startswith("first_") or stop.startswith("middle_")


def loop_peeled(s: Subject) -> bool:
    """The first iteration before the loop: all loops of the corpus have one, but what `loop_peeled`
    and `loop_split` leave of a loop may have none."""
    found = [item for item in _ranges(s) if not _leaves(item[1])]
    guarded = s.space is not None
    found = [item for item in found if guarded or not _may_be_empty(*item[2][:2])]
    if not found:
        return False
    place, loop, (first, stop, step) = s.random.choice(found)
    start = s.fresh("first")
    head = statements(f"{start} = {first}")
    if guarded or (first.lstrip("-").isdigit() and s.random.random() < 0.5):
        head = statements(f"{start} = {first} + zero")
    name = _names_of(loop)
    once = [_renamed(item, name, start) for item in loop.body]
    rest = copy.deepcopy(loop)
    rest.iter = expression(f"range({start} + ({step}), {stop}, {step})")
    if guarded:
        test = expression(f"(({stop}) - {start}) * ({step}) > 0")
        once = [ast.If(test, once, [])]
    place.instead([*head, *once, rest])
    return True


def _renamed(node: ast.stmt, old: str, new: str) -> ast.stmt:
    made = copy.deepcopy(node)
    for item in ast.walk(made):
        if isinstance(item, ast.Name) and item.id == old:
            item.id = new
    return made


def loop_split(s: Subject) -> bool:
    """for i in range(a, b, s)   ->   two loops, one after the other"""
    found = [item for item in _ranges(s) if not _leaves(item[1])]
    if not found:
        return False
    place, loop, (first, stop, step) = s.random.choice(found)
    middle = s.fresh("middle")
    turns = f"({stop} - ({first})) // ({step})"
    if s.space is not None:
        turns = f"fl.maximum({turns} + zero, 0)"
    text = f"{middle} = {first} + {turns} // 2 * ({step}) + zero"
    one, two = copy.deepcopy(loop), copy.deepcopy(loop)
    one.iter = expression(f"range({first}, {middle}, {step})")
    two.iter = expression(f"range({middle}, {stop}, {step})")
    place.instead([*statements(text), one, two])
    return True


def loop_once(s: Subject) -> bool:
    """v = e        ->   v = e;  for _ in range(one): v = same of v"""
    place = _pick(s, s.assigned("float", "int", "bool"))
    if place is None:
        return False
    v, counter = place.target, s.fresh("turn")
    bounds = s.random.choice(["0, one", "zero, 1", "0, 3", "zero, zero"])
    text = f"for {counter} in range({bounds}):\n    {v} = {_same(s, v, place.info)}"
    if s.random.random() < 0.4:
        never = _never(s, place.names, v)
        text += f"\n    if {never}:\n        {v} = {_other(s, v, place.info)}"
    place.after(statements(text))
    return True


def while_once(s: Subject) -> bool:
    """v = e        ->   v = e;  turn = 0;  while turn < one: v = same of v;  turn += 1"""
    place = _pick(s, s.assigned("float", "int", "bool"))
    if place is None:
        return False
    v, counter = place.target, s.fresh("turn")
    condition = f"{counter} < one"
    if s.random.random() < 0.5:
        condition = f"({condition}) | ({_never(s, place.names, v)})"
    text = (
        f"{counter} = zero\nwhile {condition}:\n    {v} = {_same(s, v, place.info)}\n"
        f"    {counter} += 1"
    )
    place.after(statements(text))
    return True


def _accesses(s: Subject) -> list[ast.Call]:
    return [n for n in ast.walk(s.tree)
            if isinstance(n, ast.Call) and call_name(n) in ("load", "store")]  # fmt: skip


def pointers_regrouped(s: Subject) -> bool:
    """x + e        ->   (x - 7) + (e + 7), x + (e + zero), ..."""
    sums = [c for c in _accesses(s) if isinstance(c.args[0], ast.BinOp)]
    found = [c for c in sums if isinstance(c.args[0].op, ast.Add)]  # type: ignore[attr-defined]
    if not found:
        return False
    call = s.random.choice(found)
    pointer = call.args[0]
    assert isinstance(pointer, ast.BinOp) and isinstance(pointer.op, ast.Add)
    left, right = ast.unparse(pointer.left), ast.unparse(pointer.right)
    choices = [
        f"({left} - 7) + ({right} + 7)", f"{left} + ({right} + zero)", f"{left} + ({right}) * one",
        f"({left} + zero) + {right}", f"{left} + 16 + ({right} - 16)",
    ]  # fmt: skip
    if isinstance(pointer.left, ast.BinOp) and isinstance(pointer.left.op, ast.Add):
        a, b = ast.unparse(pointer.left.left), ast.unparse(pointer.left.right)
        choices += [f"{a} + ({b} + {right})", f"({a} + {right}) + {b}"] * 2
    _replace(s, pointer, expression(s.random.choice(choices)))
    return True


def masks_doubled(s: Subject) -> bool:
    """mask         ->   mask & mask, mask & (always), always where there was none"""
    found = []
    for call in _accesses(s):
        position = 1 if call_name(call) == "load" else 2
        if len(call.args) > position:
            found.append((call, position))
        elif isinstance(call.args[0], ast.BinOp) and not call.keywords:
            found.append((call, -1))
    if not found:
        return False
    call, position = s.random.choice(found)
    pointer = call.args[0]
    always = "(one == 1)"
    if isinstance(pointer, ast.BinOp) and s.random.random() < 0.7:
        where = ast.unparse(pointer.right)
        always = s.random.choice([f"(({where}) == ({where}))", f"(({where}) > -1000 - one)",
                                  f"(({where}) * zero < 1)"])  # fmt: skip
    made = copy.deepcopy(call)
    if position < 0:
        made.keywords.append(ast.keyword("mask", expression(always)))
    else:
        mask = ast.unparse(call.args[position])
        text = s.random.choice([f"({mask}) & ({mask})", f"({mask}) & {always}",
                                f"{always} & ({mask})", f"({mask}) | ({mask})"])  # fmt: skip
        made.args[position] = expression(text)
    _replace(s, call, made)
    return True


def constants_opaque(s: Subject) -> bool:
    """c            ->   c + zero, c * one_f"""
    static = {id(n) for loop in ast.walk(s.tree) for n in ast.walk(loop) if _wants_static(loop)}
    if s.space is not None:  # what chooses between branches may be for the compiler
        tests = [n.test for n in ast.walk(s.tree) if isinstance(n, ast.If | ast.IfExp)]
        static |= {id(n) for test in tests for n in ast.walk(test)}
    found = [
        n for n in ast.walk(s.tree)
        if isinstance(n, ast.Constant) and type(n.value) in (int, float) and id(n) not in static
        # a float that is no constant widens half precision
        and (s.space is None or type(n.value) is int)
    ]  # fmt: skip
    if not found:
        return False
    node = s.random.choice(found)
    number = ast.unparse(node)
    text = f"({number} + zero)" if isinstance(node.value, int) else f"({number} * one_f)"
    _replace(s, node, expression(text))
    return True


def _wants_static(node: ast.AST) -> bool:
    """Whether numbers inside of a node are for the compiler: axes, extents, keywords, indices."""
    if isinstance(node, ast.Subscript | ast.arguments | ast.AnnAssign):
        return True
    if isinstance(node, ast.keyword):
        return node.arg != "other"
    if isinstance(node, ast.Assign):
        return isinstance(node.value, ast.Constant)  # the type of what a loop carries
    return isinstance(node, ast.Call) and call_name(node) not in ("load", "store", "where")


def _offsets(s: Subject, v: str, rank: int, second: bool) -> str:
    """Where a tile lies in the scratch memory of a program."""
    program = "fl.program_id(0) * fl.num_programs(1) + fl.program_id(1)"
    if s.space is not None:
        program = f"({program}) * fl.num_programs(2) + fl.program_id(2)"
    base = f"({program}) * {s.area}" + (f" + {s.area // 2}" if second else "")
    if rank == 0:
        return base
    if rank == 1:
        return f"{base} + fl.arange(0, {v}.shape[0])"
    rows, columns = f"fl.arange(0, {v}.shape[0])[:, None]", f"fl.arange(0, {v}.shape[1])[None, :]"
    return f"{base} + {rows} * {v}.shape[1] + {columns}"


def through_memory(s: Subject) -> bool:
    """v = e        ->   v = e;  store(memory, v);  v = load(memory)"""
    places = [p for p in s.assigned("float", "int", "bool") if p.info.rank in (1, 2)]
    place = _pick(s, places)
    if place is None:
        return False
    v, info, offsets = place.target, place.info, s.fresh("there")
    memory = "memory_f" if info.kind == "float" else "memory_i"
    value = f"{v}.to(fl.int32)" if info.kind == "bool" else v
    loaded = f"fl.load({memory} + {offsets})"
    back = f"{loaded} != 0" if info.kind == "bool" else f"{loaded}.to({v}.dtype)"
    text = (
        f"{offsets} = {_offsets(s, v, info.rank, s.random.random() < 0.5)}\n"
        f"fl.store({memory} + {offsets}, {value})\n{v} = {back}"
    )
    place.after(_small(s, v, info.rank, text))
    return True


def _small(s: Subject, v: str, rank: int, text: str) -> Body:
    """Statements for tiles that fit into half of an area."""
    if s.space is None:
        return statements(text)
    count = " * ".join(f"{v}.shape[{axis}]" for axis in range(rank))
    made = ast.If(expression(f"{count} <= {s.area // 2}"), statements(text), [])
    return [made]


def dead_store(s: Subject) -> bool:
    """v = e        ->   v = e;  store(memory, v)"""
    place = _pick(s, [p for p in s.assigned("float", "int") if p.info.rank in (1, 2)])
    if place is None:
        return False
    v, info = place.target, place.info
    memory = "memory_f" if info.kind == "float" else "memory_i"
    offsets = _offsets(s, v, info.rank, s.random.random() < 0.5)
    mask = s.random.choice(["", "", f", {v} == {v}", f", {v} > 0"])
    place.after(_small(s, v, info.rank, f"fl.store({memory} + {offsets}, {v}{mask})"))
    return True


def where_redundant(s: Subject) -> bool:
    """v = e        ->   v = e;  v = where(condition, v, v), where(always, v, other)"""
    place = _pick(s, [p for p in s.assigned("float", "int", "bool") if p.info.rank])
    if place is None:
        return False
    v, info = place.target, place.info
    other = _other(s, v, info)
    choices = [f"fl.where({v} == {v}, {v}, {v})", f"fl.where(one == 1, {v}, {other})",
               f"fl.where({_never(s, place.names)}, {other}, {v})",
               f"fl.where(fl.program_id(0) >= 0, {v}, {other})"]  # fmt: skip
    place.after(statements(f"{v} = {s.random.choice(choices)}"))
    return True


def recomputed(s: Subject) -> bool:
    """v = e        ->   v = e;  again = e;  v = where(never, again, v), or again"""
    places = []
    for place in s.assigned("float", "int", "bool"):
        text = ast.unparse(place.statement)
        plain = isinstance(place.statement, ast.Assign) and "atomic" not in text
        if plain and place.target not in _read_names(place.statement):
            places.append(place)
    place_found = _pick(s, places)
    if place_found is None:
        return False
    place = place_found
    assert isinstance(place.statement, ast.Assign)
    v, again = place.target, s.fresh("again")
    value = ast.unparse(place.statement.value)
    choices = [f"{v} = {again}", f"{v} = fl.where({_never(s, place.names)}, {again}, {v})"]
    if place.info.kind != "bool":
        choices.append(f"{v} = fl.maximum({v}, {again}).to({v}.dtype)")
    place.after(statements(f"{again} = {value}\n{s.random.choice(choices)}"))
    return True


def shaped_there_and_back(s: Subject) -> bool:
    """v = e        ->   v = e;  v = trans(trans(v)), reshape(reshape(v)), max(broadcast(v))"""
    place = _pick(s, [p for p in s.assigned("float", "int") if p.info.rank in (1, 2)])
    if place is None:
        return False
    v = place.target
    if place.info.rank == 2:
        choices = [
            f"fl.trans(fl.trans({v}))",
            f"fl.reshape(fl.reshape({v}, ({v}.shape[0] * {v}.shape[1],)), "
            f"({v}.shape[0], {v}.shape[1]))",
        ]  # fmt: skip
    else:
        wide = f"fl.broadcast_to({v}[None, :], (4, {v}.shape[0]))"
        choices = [
            f"fl.reshape(fl.trans(fl.reshape(fl.trans(fl.reshape({v}, ({v}.shape[0] // 4, 4))), "
            f"(4, {v}.shape[0] // 4))), ({v}.shape[0],))",
            f"fl.max({wide}, 0).to({v}.dtype)",
            f"fl.min({wide}, 0).to({v}.dtype)",
            f"fl.flip(fl.flip({v}, 0), 0)",
        ]  # fmt: skip
        if place.info.kind == "int":  # a sum of -0.0 and 0.0 is 0.0
            first = f"fl.where(fl.arange(0, 4)[:, None] == zero, {wide}, 0)"
            choices.append(f"fl.sum({first}, 0).to({v}.dtype)")
    place.after(statements(f"{v} = {s.random.choice(choices)}"))
    return True


def inlined_branch_of_loop(s: Subject) -> bool:
    """The body of a loop inside a branch that is always taken, with a store in the other."""
    loops = [p for p in s.places() if isinstance(p.statement, ast.For | ast.While)]
    place = _pick(s, loops)
    if place is None:
        return False
    loop = place.statement
    assert isinstance(loop, ast.For | ast.While)
    carried = {n.id for item in loop.body for n in ast.walk(item)
               if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip
    before = set(self_names(place))
    if not carried <= before or isinstance(loop, ast.While):
        # A name that a branch alone gives a value is not known after it; the last statement of the
        # loop, which changes something from before, is put into the branch alone.
        last = loop.body[-1]
        names = {n.id for n in ast.walk(last)
                 if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip
        if not names <= before:
            return False
        branch = ast.If(expression(f"not ({_never(s, {})})"), [last], [])
        loop.body[-1] = branch
        return True
    loop.body[:] = [ast.If(expression(f"not ({_never(s, {})})"), list(loop.body), [])]
    return True


def left_early(s: Subject) -> bool:
    """s            ->   s;  if never: return, break or continue"""
    loops = s.space is None  # Triton has neither break nor continue
    places = [p for p in s.places() if p.body is s.tree.body or (p.in_loop and loops)]
    place = _pick(s, [p for p in places if not isinstance(p.statement, ast.Return)])
    if place is None:
        return False
    leave = s.random.choice(["break", "continue"]) if place.in_loop else "return"
    place.after(statements(f"if {_never(s, place.names, place.target)}:\n    {leave}"))
    return True


def effect_wrapped(s: Subject) -> bool:
    """store(...)   ->   a loop that runs once, or a branch that is taken, around it"""
    place = _pick(s, [p for p in s.places() if isinstance(p.statement, ast.Expr)])
    if place is None:
        return False
    never, turn = _never(s, place.names), s.fresh("turn")
    head, tail = s.random.choice([
        (f"if not ({never}):", ""),
        (f"if {never}:\n    pass\nelse:", ""),
        (f"for {turn} in range(zero, one):", ""),
        (f"for {turn} in range(0, 1):", ""),
        (f"{turn} = zero\nwhile {turn} < one:", f"\n    {turn} += 1"),
    ])  # fmt: skip
    place.instead(statements(f"{head}\n    {ast.unparse(place.statement)}{tail}"))
    return True


def _parts(s: Subject, pointer: ast.expr, mask: ast.expr | None) -> tuple[str, str] | None:
    """Two masks, of which one holds at each element where the mask does."""
    if not isinstance(pointer, ast.BinOp):
        return None
    where = ast.unparse(pointer.right)
    odd = s.random.choice([f"(({where}) & 1) == zero", f"({where}) % 3 == 1", f"({where}) < 9"])
    before = f"({ast.unparse(mask)}) & " if mask is not None else ""
    return f"{before}({odd})", f"{before}(({odd}) == (zero > one))"


def access_split(s: Subject) -> bool:
    """store(p, v, mask)  ->  store(p, v, mask & c);  store(p, v, mask & ~c), and loads alike"""
    found: list[tuple[Place | None, ast.Call]] = []
    for place in s.places():
        call = place.statement.value if isinstance(place.statement, ast.Expr) else None
        if isinstance(call, ast.Call) and call_name(call) in ("store", "atomic_add", "atomic_max"):
            found.append((place, call))
    found += [(None, call) for call in _accesses(s) if call_name(call) == "load"]
    if not found:
        return False
    holder, call = s.random.choice(found)
    position = 1 if holder is None else 2
    mask = call.args[position] if len(call.args) > position else None
    masks = _parts(s, call.args[0], mask)
    if masks is None or (holder is None and mask is None):
        return False
    calls = []
    for text in masks:
        made = copy.deepcopy(call)
        made.args[position:] = [expression(text)]
        calls.append(ast.unparse(made))
    if holder is not None:
        holder.instead(statements("\n".join(calls)))
    else:
        _replace(s, call, expression(f"fl.where({masks[0]}, {calls[0]}, {calls[1]})"))
    return True


def self_names(place: Place) -> Iterator[str]:
    """Names that statements before a place of the same body give a value."""
    for statement in place.body[: place.at]:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


MUTATIONS: dict[str, Mutation] = {
    function.__name__: function
    for function in (
        branch_never_taken, branch_around, operands_swapped, loop_peeled, loop_split, loop_once,
        while_once, pointers_regrouped, masks_doubled, constants_opaque, through_memory, dead_store,
        where_redundant, recomputed, shaped_there_and_back, inlined_branch_of_loop,
        left_early, effect_wrapped, access_split,
    )
}  # fmt: skip

WEIGHTS = {"branch_never_taken": 4, "branch_around": 2, "through_memory": 2, "while_once": 2}
"""How often a change is drawn, where that is not once: what moves values between blocks."""


def draw(source: random.Random) -> Mutation:
    """A change, by its weight."""
    weights = [WEIGHTS.get(name, 1) for name in MUTATIONS]
    return source.choices(list(MUTATIONS.values()), weights)[0]
