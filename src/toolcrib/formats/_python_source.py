"""Python as text: module-level constants read from the syntax tree, never by importing.

Values are folded as far as constants of the same file allow: literals, names bound to them, joined strings,
f-strings of constants, displays with ``*`` and ``**``, ``+`` and ``|``, simple ``list(...)`` and
``dict(...)``. What is left is reported as unread, never dropped and never guessed.

The interpreter's own parser bounds how deep brackets, blocks and operators may nest, and says so by an
exception; each of them is a defect of the file here. It needs up to a thousand bytes of memory for one of
text, so a long file is not parsed at all. This module knows no format.
"""

from __future__ import annotations

import ast
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Set
from operator import itemgetter
from typing import Final

from msgspec import Struct, field

from toolcrib.formats._source import Budget, NotLiteral, SourceValues, Unread, plain
from toolcrib.jsontext import DEPTH_MAX, Defect, JsonObject, JsonValue, Pointer

_MUTATORS: Final = frozenset(
    {
        "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse",
        "setdefault", "sort", "update",
    }
)  # fmt: skip
SOURCE_BYTES_MAX: Final = 128 << 10
_FLOAT_EXACT: Final = 1 << 53


class Function(Struct, frozen=True):
    """A function of the module: its parameters in order, ``*`` and keyword-only ones included."""

    parameters: tuple[str, ...]
    line: int


class PythonSource(Struct, frozen=True):
    """One module, read and not run."""

    found: SourceValues = field(default_factory=SourceValues)
    has_docstring: bool = False
    functions: dict[str, Function] = field(default_factory=dict)
    """Functions that the module defines at its top level."""
    bound: frozenset[str] = frozenset()
    """Every name that the module binds in whatever way; ``*`` when it imports names it does not list."""
    has_main: bool = False
    """Whether there is an ``if __name__ == "__main__"`` block."""
    options: dict[str, bool] = field(default_factory=dict)
    """Command-line options that the file adds to a parser, and whether they are required."""


def read(text: str, wanted: Set[str]) -> PythonSource:
    """Read the ``wanted`` module-level names of a program. Never raises, whatever the text."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > SOURCE_BYTES_MAX:
        why = f"it has {size:,} bytes, more than the {SOURCE_BYTES_MAX:,} a Python file may have"
        return PythonSource(SourceValues(refused=why))
    try:
        tree = _parse(text)
    except SyntaxError as error:
        line = min(error.lineno or 1, text.count("\n") + 1)
        return _broken(error.msg or "not Python", line, max(error.offset or 1, 1))
    except ValueError as error:  # a NUL character, in some versions of the interpreter
        return _broken(str(error), 1, 1)
    except (RecursionError, MemoryError):
        return _broken("nested too deep to be read", 1, 1)
    return _Module(tree, wanted).read(text)


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an author's doubtful escape is not our user's warning
        try:
            return ast.parse(text)
        except (
            SystemError
        ):  # before 3.11.8 and 3.12.2: a finaliser that printed a traceback meanwhile confuses it
            return ast.parse(text)


def _broken(message: str, line: int, column: int) -> PythonSource:
    return PythonSource(SourceValues(defect=Defect(message, line, column)))


class _Module:
    """One pass over the statements of a module."""

    def __init__(self, tree: ast.Module, wanted: Set[str]) -> None:
        self.tree = tree
        self.wanted = wanted
        self.bindings: dict[str, list[tuple[int, ast.expr]]] = {}
        self.changed: dict[str, int] = {}
        """Names that are bound or changed otherwise than by one plain assignment, and where."""
        self.functions: dict[str, Function] = {}
        self.has_main = False

    def read(self, text: str) -> PythonSource:
        body = self.tree.body
        for number, statement in enumerate(body):
            self.statement(number, statement)
        if any(word in text for word in _HIDING_WORDS):
            self.change(_hidden_changes(self.tree))
        return PythonSource(
            found=self.values(),
            has_docstring=bool(body) and _is_text(body[0]),
            functions=self.functions,
            bound=frozenset(self.bindings) | frozenset(self.changed),
            has_main=self.has_main,
            options=dict(_options(self.tree)) if "add_argument" in text else {},
        )

    def statement(self, number: int, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.bindings.setdefault(target.id, []).append((number, value))
                    else:
                        self.change(_roots(target))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.bindings.setdefault(name, []).append((number, value))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions[statement.name] = Function(_parameters(statement.args), statement.lineno)
                self.change(_changes(statement))
            case ast.If(test=test) if _is_main(test):
                self.has_main = True  # what it binds exists only when the file is run as a program
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try() | ast.Match():
                # Whatever such a statement binds depends on what happens at run time.
                for part in ast.walk(statement):
                    if isinstance(part, ast.stmt):
                        self.change(_changes(part))
            case _:
                self.change(_changes(statement))

    def change(self, names: Iterator[tuple[str, int]]) -> None:
        for name, line in names:
            self.changed.setdefault(name, line)

    def values(self) -> SourceValues:
        values: JsonObject = {}
        lines: dict[Pointer, int] = {}
        unread: list[Unread] = []
        repeated: list[tuple[str, int]] = []
        budget = Budget()
        for name, bound in self.bindings.items():
            if name not in self.wanted:
                continue
            number, expression = bound[-1]
            line = self.tree.body[number].lineno
            lines[name,] = line
            if len(bound) > 1:
                repeated.append((name, line))
            try:
                if name in self.changed:
                    raise NotLiteral(f"line {self.changed[name]} changes it", self.changed[name])
                values[name] = _Folding(self, lines, budget).fold(expression, (name,), number, 0)
            except NotLiteral as stop:
                unread.append(Unread(name, line, f"{stop.why} (line {stop.line})"))
        for name, line in self.changed.items():
            if name in self.wanted and name not in self.bindings and name not in self.functions:
                lines[name,] = line
                unread.append(Unread(name, line, f"it is not bound by a plain assignment (line {line})"))
        return SourceValues(values, lines, tuple(unread), tuple(repeated))


class _Folding:
    """The value of an expression, as far as constants of the module tell it."""

    __slots__ = ("budget", "lines", "module")

    def __init__(self, module: _Module, lines: dict[Pointer, int], budget: Budget) -> None:
        self.module = module
        self.lines = lines
        self.budget = budget

    def fold(self, node: ast.expr, pointer: Pointer | None, before: int, depth: int) -> JsonValue:
        """``before`` is the statement in which the expression stands: later bindings do not count."""
        self.budget.part(node.lineno)
        if depth > DEPTH_MAX:
            raise NotLiteral(f"nested more than {DEPTH_MAX} levels deep", node.lineno)
        depth += 1
        if type(node) is ast.Constant:  # by far the most
            return plain(node.value, node.lineno)
        if type(node) is ast.Dict:
            return self.members(node, pointer, before, depth)
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return self.items(items, pointer, before, depth)
            case ast.Set(elts=items):
                return _without_repeats(self.items(items, pointer, before, depth))
            case ast.Name(id=name):
                return self.name(name, node, pointer, before, depth)
            case ast.JoinedStr(values=parts):
                return self.f_string(parts, before, depth)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.fold(operand, None, before, depth)
                if type(value) in (int, float):
                    return -value
            case ast.BinOp():
                return self.operation(node, pointer, before, depth)
            case ast.Subscript(value=whole, slice=index):
                return self.subscript(whole, index, before, depth)
            case ast.Call():
                return self.call(node, pointer, before, depth)
            case _:
                pass
        raise _computed(node)

    def members(self, node: ast.Dict, pointer: Pointer | None, before: int, depth: int) -> JsonObject:
        members: JsonObject = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            if key_node is None:  # {**other}
                other = self.fold(value_node, pointer, before, depth)
                if not isinstance(other, dict):
                    raise _computed(value_node)
                members |= other
                continue
            key = self.fold(key_node, None, before, depth)
            if not isinstance(key, str):
                raise NotLiteral(f"the key {key!r:.60} is not a string", key_node.lineno)
            here = None if pointer is None else (*pointer, key)
            if here is not None:
                self.lines[here] = key_node.lineno
            members[key] = self.fold(value_node, here, before, depth)
        return members

    def items(
        self, nodes: list[ast.expr], pointer: Pointer | None, before: int, depth: int
    ) -> list[JsonValue]:
        items: list[JsonValue] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items += self.sequence(node.value, before, depth)
                continue
            here = None if pointer is None else (*pointer, len(items))
            if here is not None:
                self.lines[here] = node.lineno
            items.append(self.fold(node, here, before, depth))
        return items

    def sequence(self, node: ast.expr, before: int, depth: int) -> list[JsonValue]:
        """What iterating over a folded value gives."""
        value = self.fold(node, None, before, depth)
        if isinstance(value, (list, dict)):
            return list(value)
        raise _computed(node)

    def name(self, name: str, node: ast.expr, pointer: Pointer | None, before: int, depth: int) -> JsonValue:
        if name in self.module.changed:
            raise NotLiteral(f"{name} is changed in line {self.module.changed[name]}", node.lineno)
        bound = self.module.bindings.get(name, [])
        earlier = bisect_left(bound, before, key=itemgetter(0))
        if earlier:
            number, expression = bound[earlier - 1]
            return self.fold(expression, pointer, number, depth)
        raise NotLiteral(f"{name} is not a constant of this file", node.lineno)

    def f_string(self, parts: list[ast.expr], before: int, depth: int) -> str:
        text = ""
        for part in parts:
            if isinstance(part, ast.FormattedValue):
                if part.conversion != -1 or part.format_spec is not None:
                    raise _computed(part)
                value = self.fold(part.value, None, before, depth)
                if type(value) not in (str, int):
                    raise _computed(part)
                text += str(value)
            else:
                text += self.fold(part, None, before, depth)
        return self.budget.joined(text, parts[0].lineno if parts else 0)

    def operation(self, node: ast.BinOp, pointer: Pointer | None, before: int, depth: int) -> JsonValue:
        left = self.fold(node.left, pointer, before, depth)
        right = self.fold(node.right, pointer if isinstance(node.op, ast.BitOr) else None, before, depth)
        kinds = (type(left), type(right))
        match node.op:
            case ast.Add() if kinds == (str, str):
                return self.budget.joined(left + right, node.lineno)
            case ast.Add() if kinds == (list, list):
                return left + right
            case ast.BitOr() if kinds == (dict, dict):
                return left | right
            case ast.Add() | ast.Sub() | ast.Mult() if all(
                kind in (int, float) and abs(value) < _FLOAT_EXACT
                for kind, value in zip(kinds, (left, right), strict=True)
            ):
                if isinstance(node.op, ast.Add):
                    return left + right
                return left - right if isinstance(node.op, ast.Sub) else left * right
            case _:
                raise _computed(node)

    def subscript(self, whole: ast.expr, index: ast.expr, before: int, depth: int) -> JsonValue:
        container = self.fold(whole, None, before, depth)
        key = self.fold(index, None, before, depth)
        try:
            if isinstance(container, dict) and isinstance(key, str):
                return container[key]
            if isinstance(container, list) and type(key) is int:
                return container[key]
        except (KeyError, IndexError):
            pass
        raise _computed(whole)

    def call(self, node: ast.Call, pointer: Pointer | None, before: int, depth: int) -> JsonValue:
        match node:
            case ast.Call(func=ast.Name(id="dict"), args=arguments, keywords=keywords):
                members: JsonObject = {}
                for argument in (*arguments, *(word.value for word in keywords if word.arg is None)):
                    other = self.fold(argument, pointer, before, depth)
                    if not isinstance(other, dict):
                        raise _computed(node)
                    members |= other
                for word in keywords:
                    if word.arg is not None:
                        members[word.arg] = self.fold(word.value, None, before, depth)
                return members
            case ast.Call(func=ast.Name(id="list" | "tuple"), args=[argument], keywords=[]):
                return self.sequence(argument, before, depth)
            case ast.Call(func=ast.Name(id="set" | "frozenset"), args=[argument], keywords=[]):
                return _without_repeats(self.sequence(argument, before, depth))
            case ast.Call(func=ast.Name(id="list" | "tuple" | "set" | "frozenset"), args=[], keywords=[]):
                return []
            case ast.Call(func=ast.Name(id="sorted"), args=[argument], keywords=[]):
                items = self.sequence(argument, before, depth)
                if len({type(item) for item in items}) <= 1 and all(
                    type(item) in (str, int) for item in items
                ):
                    return sorted(items)
            case ast.Call(
                func=ast.Attribute(value=whole, attr="keys" | "values" as part), args=[], keywords=[]
            ):
                mapping = self.fold(whole, None, before, depth)
                if isinstance(mapping, dict):
                    return list(mapping) if part == "keys" else list(mapping.values())
            case _:
                pass
        raise _computed(node)


def _computed(node: ast.expr) -> NotLiteral:
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "a function")
        return NotLiteral(f"it calls {name}()", node.lineno)
    return NotLiteral("it is computed", node.lineno)


def _without_repeats(items: list[JsonValue]) -> list[JsonValue]:
    kept: list[JsonValue] = []
    seen: set[JsonValue] = set()
    for item in items:
        if isinstance(item, (list, dict)):
            kept.append(item)
        elif (key := (type(item), item)) not in seen:
            seen.add(key)
            kept.append(item)
    return kept


# -- facts about statements ---------------------------------------------------------------------------------


def _changes(statement: ast.stmt) -> Iterator[tuple[str, int]]:
    """The names that one statement binds or changes, blocks inside it left out, and the line."""
    line = statement.lineno
    match statement:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            for alias in names:
                yield alias.asname or alias.name.partition(".")[0], line
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name, line
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            for target in targets:
                yield from _roots(target)
        case (
            ast.AugAssign(target=target)
            | ast.For(target=target)
            | ast.AnnAssign(target=target, value=ast.expr())
        ):
            yield from _roots(target)
        case ast.With(items=items):
            for item in items:
                if item.optional_vars is not None:
                    yield from _roots(item.optional_vars)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=whole, attr=attribute))) if (
            attribute in _MUTATORS
        ):
            yield from _roots(whole)
        case _:
            pass


_HIDING_WORDS: Final = (":=", "global", "except", "match")


def _hidden_changes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names bound where no assignment stands: by an expression, a pattern, a handler, or from a function.

    Attack: a tool whose reviewer and whose reader see one executor, while Python binds another.
    """
    for node in ast.walk(tree):
        match node:
            case ast.NamedExpr(target=ast.Name(id=name)):
                yield name, node.lineno
            case (
                ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
                | ast.ExceptHandler(name=str(name))
            ):
                yield name, node.lineno
            case ast.Global(names=names):
                for name in names:
                    yield name, node.lineno
            case ast.TryStar():
                for part in ast.walk(node):
                    if isinstance(part, ast.stmt):
                        yield from _changes(part)
            case _:
                pass


def _roots(target: ast.expr) -> Iterator[tuple[str, int]]:
    """``X`` of ``X["a"].b``; each one of ``X, Y``."""
    while isinstance(target, (ast.Subscript, ast.Attribute, ast.Starred)):
        target = target.value
    if isinstance(target, ast.Name):
        yield target.id, target.lineno
    elif isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _roots(part)


def _parameters(arguments: ast.arguments) -> tuple[str, ...]:
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if arguments.vararg is not None:
        names.append("*" + arguments.vararg.arg)
    names += [argument.arg for argument in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        names.append("**" + arguments.kwarg.arg)
    return tuple(names)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(
            left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant("__main__")]
        ):
            return True
        case ast.Compare(
            left=ast.Constant("__main__"), ops=[ast.Eq()], comparators=[ast.Name(id="__name__")]
        ):
            return True
        case _:
            return False


def _options(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=arguments, keywords=keywords):
                required = any(
                    word.arg == "required"
                    and isinstance(word.value, ast.Constant)
                    and word.value.value is True
                    for word in keywords
                )
                for argument in arguments:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield argument.value, required
            case _:
                pass
