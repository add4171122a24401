"""Python functions as tools: the decorator, what a function may be given, and what is read off it.

``tool`` only marks a function, which stays what it was. ``register`` looks at functions once, when a crib
is opened, and prepares everything a call needs; what it finds goes through ``formats/python.py`` like any
declaration. Nothing here decides when a function is called (``runtimes/functions.py`` does) or imports a
library of others.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import marshal
import os
import re
import time
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from math import isfinite
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, overload

from msgspec import Struct, field

from toolcrib import schema as json_schema
from toolcrib.errors import UsageError
from toolcrib.formats import python
from toolcrib.functions import docstrings, results, shapes
from toolcrib.jsontext import JsonObject
from toolcrib.model import (
    TIMEOUT_S_MAX,
    WRITE,
    Compiled,
    Effect,
    Problem,
    Schema,
    Tool,
)
from toolcrib.model import (
    AudioBlock as AudioBlock,
)
from toolcrib.model import (
    EmbeddedResource as EmbeddedResource,
)
from toolcrib.model import (
    ImageBlock as ImageBlock,
)
from toolcrib.model import (
    ResourceLink as ResourceLink,
)
from toolcrib.model import (
    TextBlock as TextBlock,
)
from toolcrib.records import Discreet

Report: TypeAlias = Callable[[float, float | None, str], object]
"""Told how much of how much is done, and in words."""
_F = TypeVar("_F", bound=Callable[..., object])

_MARK: Final = "__toolcrib__"
_NAME_CHARS_MAX: Final = 128

PROGRESS: Final[ContextVar[Report | None]] = ContextVar("toolcrib_progress", default=None)
"""Who hears of the progress of the call that runs here."""


# -- what a function may be given ----------------------------------------------------------------------------


def _nobody(_done: float, _total: float | None, _message: str) -> None:
    """Nobody listens."""


class Context(Discreet, frozen=True, kw_only=True):
    """The call that a function serves: handed to the parameter annotated with this type, shown to no model.

    In a test of your own make one by hand: every field has a default.
    """

    HIDDEN: ClassVar = (
        "is_stopped",
        "report",
    )

    call_id: str = ""
    tool: str = ""
    """The tool's key."""
    caller: str = ""
    conversation: str = ""
    context: Mapping[str, object] = field(default_factory=dict)
    """What the host handed over with the call."""
    deadline: float = float("inf")
    """When the call must be over, by ``time.monotonic()``."""
    is_stopped: Callable[[], bool] = lambda: False
    report: Report = _nobody

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the caller has given up, or the time is over. Long work looks now and then."""
        return self.is_stopped() or time.monotonic() >= self.deadline

    @property
    def left_s(self) -> float:
        """How much time is left."""
        return max(self.deadline - time.monotonic(), 0.0)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Tell whoever listens how far it is. What is no number tells nobody anything."""
        if not isfinite(done):
            return
        self.report(done, total if total is not None and isfinite(total) else None, message)


# -- the decorator -------------------------------------------------------------------------------------------


class Options(Struct, frozen=True, kw_only=True):
    """What a decorator says about a function."""

    name: str | None = None
    description: str | None = None
    effect: Effect | None = None
    timeout_s: float | None = None
    tags: tuple[str, ...] = ()
    version: str | None = None
    idempotent: bool = False
    examples: tuple[JsonObject, ...] = ()
    namespace: str | None = None


@overload
def tool(function: _F, /) -> _F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | str | None = None,
    timeout_s: float | None = None,
    tags: Sequence[str] = (),
    version: str | None = None,
    idempotent: bool = False,
    examples: Sequence[Mapping[str, object]] = (),
    namespace: str | None = None,
) -> Callable[[_F], _F]: ...
def tool(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | str | None = None,
    timeout_s: float | None = None,
    tags: Sequence[str] = (),
    version: str | None = None,
    idempotent: bool = False,
    examples: Sequence[Mapping[str, object]] = (),
    namespace: str | None = None,
) -> Any:
    """Mark a function as a tool; bare, or with what its signature and docstring cannot say.

    The function stays what it was, and is offered to nobody until it is handed to ``open(tools=…)``.
    ``effect`` is ``read``, ``create`` or ``change`` (the default); ``idempotent`` says that running it twice
    does no more than running it once; ``examples`` are arguments; ``namespace`` takes the module's place in
    the key.
    """
    if name is not None:
        _check_name(name, "tool(name=…)")
    if effect is not None and effect not in [*Effect]:
        hint = f'"{WRITE}" is a word of rules only: name create or change' if effect == WRITE else None
        raise UsageError(f"tool(effect=…): must be {', '.join(Effect)} (got {str(effect)[:60]!r})", hint)
    if timeout_s is not None and (type(timeout_s) not in (int, float) or not 0 < timeout_s <= TIMEOUT_S_MAX):
        raise UsageError(
            f"tool(timeout_s=…): must be above 0 and at most {TIMEOUT_S_MAX:.0f} (got {timeout_s!r})"
        )
    if isinstance(tags, str):
        raise UsageError("tool(tags=…): must be a list of texts", f"write tags=[{tags!r}]")
    if isinstance(examples, Mapping) or not all(isinstance(example, Mapping) for example in examples):
        raise UsageError(
            "tool(examples=…): must be a list of arguments", 'write examples=[{"name": "value"}]'
        )
    options = Options(
        name=name,
        description=description,
        effect=Effect(effect) if effect is not None else None,
        timeout_s=timeout_s,
        tags=tuple(tags),
        version=version,
        idempotent=idempotent,
        examples=tuple(dict(example) for example in examples),
        namespace=namespace,
    )

    def mark(function: Any) -> Any:
        if isinstance(function, (classmethod, staticmethod)):
            mark(function.__func__)
            return function
        if not callable(function):
            raise UsageError(f"tool(): {type(function).__name__} cannot be called", "decorate a function")
        try:
            setattr(function, _MARK, options)
        except AttributeError:  # a bound method, a builtin: something that can be marked stands in for it
            function = functools.partial(function)
            setattr(function, _MARK, options)
        return function

    return mark if function is None else mark(function)


def _check_name(name: object, where: str) -> str:
    plain = name.replace("-", "_").replace(".", "_") if isinstance(name, str) else ""
    if not isinstance(name, str) or not f"_{plain}".isidentifier() or len(name) > _NAME_CHARS_MAX or not name:
        raise UsageError(
            f"{where}: must be letters, digits, '_', '-' and '.', at most {_NAME_CHARS_MAX} of them "
            f"(got {str(name)[:60]!r})",
            "name it with toolcrib.tool(name=…)",
        )
    return name


# -- registering ---------------------------------------------------------------------------------------------


class Function(Struct, frozen=True, kw_only=True):
    """A registered function with everything a call of it needs, prepared."""

    where: str
    """Its module and name, for records."""
    call: Callable[..., object]
    positional: tuple[tuple[str, object], ...] = ()
    """Parameters that can only be given by their place, each with its default."""
    converting: tuple[tuple[str, shapes.Convert], ...] = ()
    provided: tuple[tuple[str, object], ...] = ()
    contexts: tuple[str, ...] = ()
    """Parameters that want the ``Context``."""
    filled: tuple[tuple[str, Callable[[], object]], ...] = ()
    """Parameters whose default stands in an object of pydantic's, which the function must not get."""

    def run(self, arguments: Mapping[str, Any], context: Callable[[], Context]) -> object:
        """Call it with checked arguments. Raises ``Mismatch`` for what is none of the annotated types, and
        whatever the function raises."""
        given = dict(arguments)
        for name, convert in self.converting:
            if name in given:
                try:
                    given[name] = convert(given[name])
                except shapes.Mismatch as mismatch:
                    raise mismatch.below(name) from None
        # Attack: a model that sets what only the host may give. What is handed over comes last.
        for name, value in self.provided:
            given[name] = value
        for name in self.contexts:
            given[name] = context()
        for name, make in self.filled:
            if name not in given:
                given[name] = make()
        if not self.positional:
            return self.call(**given)
        by_place = [given.pop(name, default) for name, default in self.positional]
        return self.call(*by_place, **given)


class Registered(Struct, frozen=True, kw_only=True):
    """The host's functions as tools."""

    tools: tuple[Tool, ...] = ()
    problems: tuple[Problem, ...] = ()
    functions: Mapping[str, Function] = field(default_factory=dict)
    """By the name that the tools' invocations have."""


def register(
    given: Iterable[object], *, provide: Mapping[Any, object] | None = None, taken: Iterable[str] = ()
) -> Registered:
    """Look at functions, and at the marked ones of modules and objects. Raises UsageError for what cannot be
    a tool, naming function, parameter and fix: it is the programmer's own code, so the start refuses it.

    ``taken`` are names of invocations that others already have.
    """
    if callable(given) or isinstance(given, (str, Mapping, types.ModuleType)):
        raise UsageError("tools: must be a list of functions", "write tools=[…]")
    if provide is not None:
        _check_provided(provide)
    tools: list[Tool] = []
    problems: list[Problem] = []
    functions: dict[str, Function] = {}
    used = set(taken)
    for thing in given:
        for function in _members(thing):
            reading = _Reading(function, provide or {})
            target, number = reading.where, 2
            while target in used:
                target, number = f"{reading.where}~{number}", number + 1
            used.add(target)
            compiled, prepared = reading.read(target)
            tools += compiled.tools
            problems += compiled.problems
            functions[target] = prepared
    return Registered(tools=tuple(tools), problems=tuple(problems), functions=functions)


def _check_provided(provide: object) -> None:
    if not isinstance(provide, Mapping):
        what = type(provide).__name__
        raise UsageError(f"provide: must be a mapping (got {what})", "write provide={TYPE: OBJECT}")
    for wanted, value in provide.items():
        origin: object = typing.get_origin(wanted)
        plain = wanted if origin is None else origin
        if isinstance(plain, typing.NewType):
            continue  # nothing at run time tells what is one
        name = getattr(wanted, "__name__", None) or repr(wanted)[:60]
        if not isinstance(plain, type):
            raise UsageError(f"provide: {name} is no type", "use the type that parameters are annotated with")
        try:
            fits = isinstance(value, plain)
        except TypeError:  # a protocol that is for type checkers alone
            fits = not isinstance(value, type)
        if not fits:
            what = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise UsageError(f"provide[{name}]: must be an instance of it (got {what})")


def _members(thing: object) -> Iterator[Any]:
    if isinstance(thing, type):
        raise UsageError(f"tools: {thing.__name__} is a class", "hand over an instance, or its bound methods")
    if isinstance(thing, (str, bytes, Mapping)):
        raise UsageError(f"tools: {str(thing)[:60]!r} is no function", "hand over the function itself")
    if callable(thing):
        yield thing
        return
    # Of a module what is marked in it, in its order; of an object the marked methods of its class, which are
    # looked at without asking the object: a property may do anything.
    members = vars(thing) if isinstance(thing, types.ModuleType) else _methods(type(thing))
    found = [getattr(thing, name) for name, member in members.items() if _options_of(member) is not None]
    if not found:
        what = getattr(thing, "__name__", type(thing).__name__)
        raise UsageError(f"tools: {what} is no function and has none", "mark functions with @toolcrib.tool")
    yield from found


def _methods(kind: type) -> dict[str, object]:
    return {name: member for base in reversed(kind.__mro__) for name, member in vars(base).items()}


def _options_of(function: object) -> Options | None:
    """What the decorator said, if it was there."""
    inner = function.__func__ if isinstance(function, (classmethod, staticmethod)) else function
    options = getattr(inner, _MARK, None)
    return options if isinstance(options, Options) else None


class _Reading:
    """One function, looked at."""

    def __init__(self, function: Any, provide: Mapping[Any, object]) -> None:
        self._function = function
        self._provide = provide
        self._fixed: set[str] = set()
        options = _options_of(function)
        inner = function
        while isinstance(inner, functools.partial):
            # Attack: a secret that a partial binds would stand in the schema as a default, to be replaced.
            self._fixed |= inner.keywords.keys()
            inner = inner.func
            options = options or _options_of(inner)
        self._owner: type | None = None
        if isinstance(inner, types.MethodType):
            self._owner = inner.__self__ if isinstance(inner.__self__, type) else type(inner.__self__)
            inner = inner.__func__
        elif not hasattr(inner, "__name__"):
            self._owner = type(inner)
            inner = type(inner).__call__
        self._options = options or Options()
        self._inner = inspect.unwrap(inner)
        name = self._options.name or getattr(function, "__name__", None)
        if name is None:
            is_object = self._owner is not None and getattr(inner, "__name__", "") == "__call__"
            name = _snake(self._owner.__name__) if is_object and self._owner else inner.__name__
        self.name = _check_name(name, f"the name of {_shown(function)}")
        self.module = getattr(self._inner, "__module__", None) or "builtins"
        self.where = f"{self.module}:{getattr(self._inner, '__qualname__', self.name)}"

    def read(self, target: str) -> tuple[Compiled, Function]:
        inner, options = self._inner, self._options
        if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
            raise self._wrong("is a generator", "return a list instead of yielding")
        try:
            signature = inspect.signature(self._function)
        except (ValueError, TypeError, NameError) as error:  # a name of its annotations, from Python 3.14 on
            raise self._wrong(f"has no signature ({error})", "wrap it in a function of your own") from None
        doc = docstrings.read(inspect.getdoc(inner))
        known = shapes.Shapes()
        properties: JsonObject = {}
        required: list[str] = []
        untyped: list[str] = []
        converting: list[tuple[str, shapes.Convert]] = []
        positional: list[tuple[str, object]] = []
        provided: list[tuple[str, object]] = []
        contexts: list[str] = []
        filled: list[tuple[str, Callable[[], object]]] = []
        for parameter in signature.parameters.values():
            name = parameter.name
            if name in self._fixed:
                continue
            self._check_kind(parameter)
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append((name, parameter.default))
            annotation = self._resolved(name, parameter.annotation)
            wanted = self._injected(annotation)
            if wanted is Context:
                contexts.append(name)
                continue
            if wanted is not None:
                provided.append((name, self._provide[wanted]))
                continue
            if annotation is parameter.empty:
                untyped.append(name)
                annotation = Any
            default, annotation = _default_of(parameter.default, annotation)
            try:
                shape = known.of(annotation)
            except shapes.Unsuitable as wrong:
                raise self._wrong(f"parameter {name!r}: {wrong.message}", wrong.hint) from None
            about = doc.parameters.get(name, "")
            properties[name] = shapes.described_schema(shape.schema, about, default)
            if parameter.default is parameter.empty or default is _REQUIRED:
                properties[name].pop("default", None)
                required.append(name)
            if shape.convert is not None:
                converting.append((name, shape.convert))
            if _is_field(parameter.default) and default is not _REQUIRED:
                filled.append((name, _filling(parameter.default)))
        schema: JsonObject = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        schema = known.document({**schema, "additionalProperties": False})
        code = getattr(inner, "__code__", None)
        file = getattr(code, "co_filename", "")
        facts = python.Facts(
            name=self.name,
            scope=options.namespace or self._scope(),
            target=target,
            code=hashlib.sha256(marshal.dumps(code)).hexdigest() if code is not None else "",
            path=file if os.path.isabs(file) else self.module,
            line=getattr(code, "co_firstlineno", None),
            description=options.description if options.description is not None else doc.description,
            input_schema=self._sound(schema),
            output_schema=self._output(signature.return_annotation),
            untyped=tuple(untyped),
            effect=options.effect,
            timeout_s=options.timeout_s,
            version=options.version,
            tags=options.tags,
            idempotent=options.idempotent,
            examples=options.examples,
        )
        prepared = Function(
            where=self.where,
            call=self._function,
            positional=tuple(positional),
            converting=tuple(converting),
            provided=tuple(provided),
            contexts=tuple(contexts),
            filled=tuple(filled),
        )
        return python.compile_function(facts), prepared

    def _scope(self) -> str:
        return f"{self.module}.{self._owner.__name__}" if self._owner is not None else self.module

    def _check_kind(self, parameter: inspect.Parameter) -> None:
        name = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise self._wrong(
                f"parameter '*{name}' has no name that a model could give", f"take a list: {name}: list[…]"
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            raise self._wrong(
                f"parameter '**{name}' takes any name",
                f"name the parameters, or take a mapping: {name}: dict[str, …]",
            )
        is_unbound = name == "self" and "." in self.where.partition(":")[2].rpartition("<locals>.")[2]
        if is_unbound and parameter.annotation is parameter.empty:
            raise self._wrong("is a method without its object", "hand over the bound method: object.method")

    # -- annotations ----------------------------------------------------------------------------------------

    def _resolved(self, name: str, annotation: Any) -> Any:
        if annotation is inspect.Parameter.empty:
            return annotation
        try:
            return self._hint(annotation)
        except Exception as error:  # noqa: BLE001 - looking up an author's annotation may raise anything
            wrong = shapes.unsuitable_name(error, annotation)
            raise self._wrong(f"parameter {name!r}: {wrong.message}", wrong.hint) from None

    def _hint(self, annotation: Any) -> Any:
        inner = self._inner
        seen = {variable.__name__: variable for variable in getattr(inner, "__type_params__", ())}
        for free, cell in zip(
            getattr(getattr(inner, "__code__", None), "co_freevars", ()),
            getattr(inner, "__closure__", None) or (),
            strict=False,
        ):
            try:
                seen[free] = cell.cell_contents
            except ValueError:  # not yet filled
                continue
        return shapes.resolved(annotation, getattr(inner, "__globals__", {}), seen)

    def _injected(self, annotation: Any) -> Any:
        """The type that the host hands over for a parameter, if it is one of those."""
        plain = annotation
        while typing.get_origin(plain) is typing.Annotated:
            plain = typing.get_args(plain)[0]
        if typing.get_origin(plain) in (typing.Union, types.UnionType):
            parts = [part for part in typing.get_args(plain) if part is not types.NoneType]
            plain = parts[0] if len(parts) == 1 else plain
        if plain is Context:
            return Context
        try:
            return plain if plain is not inspect.Parameter.empty and plain in self._provide else None
        except TypeError:  # an annotation that cannot be looked up in a mapping
            return None

    def _output(self, annotation: Any) -> JsonObject | None:
        """The schema of an object that the function returns; models never see it, so nothing is refused."""
        if annotation is inspect.Signature.empty:
            return None
        try:
            hint = self._hint(annotation)
            if isinstance(hint, type) and issubclass(hint, results.BLOCKS):
                return None
            known = shapes.Shapes(of_result=True)
            schema = known.document(known.of(hint).schema)
        except Exception:  # noqa: BLE001 - an annotation for people is no reason to refuse the function
            return None
        return schema if schema.get("type") == "object" and not json_schema.flaws(Schema.of(schema)) else None

    def _sound(self, schema: JsonObject) -> JsonObject:
        for flaw in json_schema.flaws(Schema.of(schema)):
            place = ".".join(str(step) for step in flaw.pointer)
            raise self._wrong(f"its schema: {place}: {flaw.message}", flaw.hint or "simplify the annotation")
        return schema

    def _wrong(self, what: str, hint: str) -> UsageError:
        return UsageError(f"{self.where.replace(':', '.')}: {what}", hint)


_REQUIRED: Final = object()


def _default_of(default: Any, annotation: Any) -> tuple[object, Any]:
    """The default that a model is told, and the annotation with what a default says besides."""
    if default is inspect.Parameter.empty:
        return shapes.NO_DEFAULT, annotation
    if default is None:
        return None, annotation if annotation is Any else typing.Optional[annotation]  # noqa: UP045
    if _is_field(default):
        annotation = typing.Annotated[annotation, default]
        if default.is_required():
            return _REQUIRED, annotation
        return (shapes.NO_DEFAULT if default.default_factory is not None else default.default), annotation
    return default, annotation


def _is_field(default: object) -> bool:
    """Whether a default is pydantic's ``Field(…)``, which says more than the default."""
    return (
        hasattr(default, "is_required")
        and hasattr(default, "metadata")
        and hasattr(default, "default_factory")
    )


def _filling(field: Any) -> Callable[[], object]:
    return field.default_factory or (lambda: field.default)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _shown(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__name__)
