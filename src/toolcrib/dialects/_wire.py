"""What all dialects share: a declaration in the making, arguments on their way in, text on its way out.

Nothing here knows a provider. A dialect states its ``Rules``, takes its tools from a ``Draft`` and says what
is lost; reading never raises, because every byte of a message comes from outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.dialects._messages import items
from toolcrib.dialects._names import NameRule, give_names
from toolcrib.dialects._narrowing import Form, Narrowed, narrow
from toolcrib.errors import NEAR_MAX, nearest
from toolcrib.jsontext import JsonObject, JsonValue, Pointer
from toolcrib.model import (
    AudioBlock,
    Block,
    Declared,
    DeclareOptions,
    EmbeddedResource,
    ImageBlock,
    LeftOut,
    Loss,
    NameMap,
    ResourceLink,
    Role,
    Schema,
    TextBlock,
    Tool,
    ToolCall,
    ToolMode,
    ToolResult,
)
from toolcrib.schema import EMPTY_OBJECT

LOCAL_ID: Final = "local#"
"""Calls without an id get one that begins like this; it is never sent back."""


class Rules(Struct, frozen=True, kw_only=True):
    """What a provider takes, as data."""

    provider: str
    names: NameRule
    form: Form
    strict: Form | None = None
    """The form of its strict mode, where it has one."""
    tools_max: int | None = None
    description_max: int | None = None
    defers: bool = False
    has_examples: bool = False


_NO_ARGUMENTS: Final = Schema.of(EMPTY_OBJECT)


def narrowed(tool: Tool, form: Form) -> Narrowed:
    """The tool's schema in a form; a tool that states none takes no arguments."""
    return narrow(tool.input_schema or _NO_ARGUMENTS, form, tool.key)


# -- declaring ----------------------------------------------------------------------------------------------


class Draft:
    """One declaration in the making: the tools with their names, what is lost and what is left out."""

    def __init__(self, rules: Rules, tools: Sequence[Tool], options: DeclareOptions) -> None:
        self.rules = rules
        self.options = options
        own = {tool.key: tool for tool in tools if tool.role is Role.TOOL}
        self.room = rules.tools_max
        if self.room is not None and rules.defers and options.deferred & own.keys():
            self.room -= 1  # the provider's search tool needs a place
        among = {tool.key: tool for tool in options.among if tool.role is Role.TOOL}
        self.given = give_names(list((among | own).values()), rules.names)
        self.waiting = list(own.values())
        self.losses: list[Loss] = []
        self.left_out: list[LeftOut] = []
        self.keys: dict[str, str] = {}
        self.nullable: dict[str, tuple[Pointer, ...]] = {}

    def tools(self) -> Iterator[tuple[Tool, str, str]]:
        """Each tool with its name and description, until the provider takes no more."""
        rules, options = self.rules, self.options
        for tool in self.waiting:
            if self.room is not None and len(self.keys) >= self.room:
                self.leave_out(tool, f"{rules.provider} takes at most {rules.tools_max} tools")
                continue
            given = self.given[tool.key]
            if given.because:
                self.lose(tool, "name", f'declared as "{given.name}": {given.because}')
            if options.mode is ToolMode.STRICT and rules.strict is None:
                self.lose(tool, "strict", f"{rules.provider} has no strict mode for tools")
            if tool.key in options.deferred and not rules.defers:
                self.lose(tool, "defer", f"{rules.provider} has no deferred loading; it is declared in full")
            if options.examples and not rules.has_examples and examples_of(tool):
                self.lose(tool, "examples", f"{rules.provider} has no field for examples")
            description = tool.description
            if rules.description_max is not None and len(description) > rules.description_max:
                description = description[: rules.description_max - 1] + "…"
                self.lose(tool, "description", f"cut to {rules.description_max} characters")
            yield tool, given.name, description

    def plain(self, tool: Tool, form: Form | None = None) -> JsonObject | None:
        """The tool's schema in the provider's form, or another; None: the tool is left out."""
        return self.keep(tool, narrowed(tool, form or self.rules.form))

    def keep(self, tool: Tool, narrowed: Narrowed) -> JsonObject | None:
        if narrowed.document is None:
            self.leave_out(tool, narrowed.because)
        self.losses.extend(narrowed.losses)
        return narrowed.document

    def strict(
        self, tool: Tool, form: Form, plain: Form, refuse: Callable[[JsonObject], str] = lambda document: ""
    ) -> tuple[JsonObject | None, bool]:
        """The schema in the strict form and True; else, with the reason as a loss, as ``plain`` and False.

        ``refuse`` may say why the provider does not take a schema that its form can hold.
        """
        tight = narrowed(tool, form)
        because = tight.because if tight.document is None else refuse(tight.document)
        if not because:
            self.nullable[tool.key] = tight.nullable
            return self.keep(tool, tight), True
        self.lose(tool, "strict", f"declared without it: {because}")
        return self.plain(tool, plain), False

    def lose(self, tool: Tool, keyword: str, what: str) -> None:
        self.losses.append(Loss(tool=tool.key, pointer=(), keyword=keyword, what=what))

    def leave_out(self, tool: Tool, because: str) -> None:
        self.left_out.append(LeftOut(tool=tool.key, because=because))

    def take(self, tool: Tool, name: str) -> None:
        """The tool is in the payload under this name."""
        self.keys[name] = tool.key

    def declared(self, payload: list[JsonObject]) -> Declared:
        left_out = {item.tool for item in self.left_out}
        return Declared(
            payload=payload,
            names=NameMap(keys=self.keys, nullable={key: at for key, at in self.nullable.items() if at}),
            losses=tuple(loss for loss in self.losses if loss.tool not in left_out),
            left_out=tuple(self.left_out),
        )


def examples_of(tool: Tool) -> list[JsonObject]:
    """The documented examples that are arguments; sentences are for people."""
    documentation = tool.notes.documentation
    examples = documentation.get("examples") if isinstance(documentation, dict) else None
    return [item for item in items(examples) if isinstance(item, dict)]


# -- reading ------------------------------------------------------------------------------------------------


def read_call(
    names: NameMap,
    position: int,
    *,
    call_id: JsonValue,
    spoken: JsonValue,
    arguments: JsonValue,
    defect: str | None = None,
) -> ToolCall:
    """One call. Whatever is wrong with it stands in the call, so that it can be answered. ``defect``: what is
    wrong with it besides its arguments."""
    name = spoken if isinstance(spoken, str) else ""
    key = names.keys.get(name)
    raw, value, wrong = _arguments(arguments)
    if wrong is None and defect is not None:
        value, wrong = None, defect
    places = names.nullable.get(key or "", ())
    if value is not None and sum(_drop_nulls(value, place) for place in places) > 0:
        raw = jsontext.compact(value).decode("utf-8")
    return ToolCall(
        id=call_id if isinstance(call_id, str) and call_id else f"{LOCAL_ID}{position}",
        tool=name if key is None else key,
        arguments=value,
        raw=raw,
        spoken=name,
        defect=wrong,
        declared=key is not None,
        near=near_names(name, names.keys) if key is None else (),
    )


def near_names(name: str, declared: Mapping[str, str]) -> tuple[str, ...]:
    """The declared names that may have been meant: a model has no others."""
    return tuple(nearest(name, [*declared], count=NEAR_MAX))


def _arguments(given: JsonValue) -> tuple[str, JsonObject | None, str | None]:
    """The raw text of arguments and their value, or what is wrong with them."""
    if given is None or (isinstance(given, str) and not given.strip()):
        return "{}", {}, None
    try:
        raw = given if isinstance(given, str) else jsontext.compact(given).decode("utf-8")
    except (TypeError, ValueError, RecursionError):
        # Attack: a decoded message may hold what no JSON text can: lone surrogates, endless nesting, objects
        # of the provider's library.
        return "", None, "the arguments are not JSON"
    if not isinstance(given, str) and "null" in raw and not all(map(_is_number, jsontext.walk(given))):
        return raw, None, "the arguments are not JSON: they hold a number that is none (NaN or Infinity)"
    parsed = jsontext.read(raw.encode("utf-8", "surrogatepass"))
    if parsed.defect is not None:
        return raw, None, f"the arguments are not JSON: {parsed.defect}"
    if parsed.duplicates:
        return raw, None, f'the arguments repeat "{parsed.duplicates[0].key}"'
    if not isinstance(parsed.value, dict):
        return raw, None, "the arguments are not an object"
    return raw, parsed.value, None


def _is_number(place: tuple[object, JsonValue]) -> bool:
    """Return whether a value is no float, or one that JSON has."""
    return not isinstance(place[1], float) or math.isfinite(place[1])


def _drop_nulls(value: JsonValue, place: Sequence[str | int]) -> int:
    """Remove the nulls at a place of the schema that strict mode made nullable, and say how many."""
    keyword, *rest = place
    if keyword == "items":
        return sum(_drop_nulls(item, rest) for item in items(value))
    if keyword != "properties":  # anyOf and its number: the same value
        return _drop_nulls(value, rest[1:])
    name, *rest = rest
    if not isinstance(value, dict) or name not in value:
        return 0
    if rest:
        return _drop_nulls(value[name], rest)
    if value[name] is None:
        del value[name]
        return 1
    return 0


# -- writing ------------------------------------------------------------------------------------------------


def text_of(result: ToolResult, blocks: Iterable[Block] | None = None) -> str:
    """What the model reads: the text blocks, and a line for each block that cannot be shown."""
    shown = [_line(block) for block in (result.blocks if blocks is None else blocks)]
    if result.error is not None and not any(isinstance(block, TextBlock) for block in result.blocks):
        hint = f" ({result.error.hint})" if result.error.hint else ""
        shown.insert(0, f"error: {result.error.message}{hint}")
    if not result.blocks and result.error is None and result.data is not None:
        shown.append(jsontext.compact(result.data).decode("utf-8"))
    return "\n".join([*shown, *result.advice])


def _line(block: Block) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case ImageBlock(media_type=media_type, data=data):
            return f"[image: {media_type}, {_size(data)}; it cannot be shown here]"
        case AudioBlock(media_type=media_type, data=data):
            return f"[audio: {media_type}, {_size(data)}; it cannot be played here]"
        case ResourceLink(uri=uri, name=name):
            return f"[resource: {name}, {uri}]"
        case EmbeddedResource(text=str(text)):
            return text
        case EmbeddedResource(uri=uri, media_type=media_type, data=data):
            size = _size(data or "")
            return f"[resource: {uri}, {media_type or 'unknown type'}, {size}; it cannot be shown here]"


def _size(base64: str) -> str:
    return f"{len(base64.rstrip('=')) * 3 // 4} bytes"


def pictures(result: ToolResult, media_types: frozenset[str]) -> list[ImageBlock]:
    """The images that a provider shows; none when the call failed, because errors are text."""
    if result.error is not None:
        return []
    return [item for item in result.blocks if isinstance(item, ImageBlock) and item.media_type in media_types]
