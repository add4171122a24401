"""Rye's own three tools, ``fetch``, ``execute`` and ``sign``: offered by doors that ask, listed nowhere.

``execute`` has no way of its own to run anything: before a call of it begins it becomes the call of the tool
that it names, so that find, check, decision and record are that tool's. ``fetch`` shows only what its caller
would be offered. ``sign`` exists where the host says so: a model that may sign could vouch for its own code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.catalog import files
from toolcrib.catalog.catalog import Catalog, is_within
from toolcrib.errors import ToolcribError, UsageError, nearest
from toolcrib.gate import Gate
from toolcrib.jsontext import JsonObject
from toolcrib.model import (
    CallFunction,
    Effect,
    End,
    Ending,
    Needs,
    Origin,
    Reach,
    Reply,
    Role,
    Schema,
    Tool,
    ToolCall,
)
from toolcrib.selection import rules
from toolcrib.trust.items import Location, Signed

_FORMAT: Final = "toolcrib"
"""No source has tools of this format, so no file can declare one of these keys."""
FETCH: Final = f"{_FORMAT}:rye/fetch"
EXECUTE: Final = f"{_FORMAT}:rye/execute"
SIGN: Final = f"{_FORMAT}:rye/sign"
FOUND_MAX: Final = 100
_RYE: Final = "rye:"
_KIND: Final = "tool:"

Signing = Callable[[Sequence[str], Location | None], Sequence[Signed]]


def _record(key: str, effect: Effect, description: str, schema: JsonObject) -> Tool:
    return Tool(
        key=key,
        name=key.rpartition("/")[2],
        scope="rye",
        description=description,
        input_schema=Schema.of({"type": "object", "additionalProperties": False, **schema}),
        invocation=CallFunction(name=key),
        reply=Reply.BLOCKS,
        needs=Needs(stated=True),
        effect=effect,
        effect_from="toolcrib itself",
        origin=Origin(format=_FORMAT, path="toolcrib"),
    )


_ITEM_ID: Final[JsonObject] = {
    "type": "string",
    "maxLength": 500,
    "description": "The id of a tool: its path without suffix, with or without tool: before it.",
}
_FETCHING: Final = _record(
    FETCH,
    Effect.READ,
    "Find rye items: one by item_id, with its source; or those that a query finds.",
    {
        "properties": {
            "item_id": _ITEM_ID,
            "query": {
                "type": "string",
                "maxLength": rules.QUERY_CHARS_MAX,
                "description": 'Words, "phrases", * for any letters, AND, OR, NOT.',
            },
            "scope": {
                "type": "string",
                "maxLength": 500,
                "description": "tool, or tool.NAMESPACE.* for the items below a folder.",
            },
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": FOUND_MAX,
                "description": "10 if not given.",
            },
        }
    },
)
_EXECUTING: Final = _record(
    EXECUTE,
    Effect.CHANGE,
    "Run a rye tool by its item_id, exactly as a call of the tool itself.",
    {
        "properties": {
            "item_id": _ITEM_ID,
            "parameters": {"type": "object", "description": "The tool's own arguments."},
            "dry_run": {"type": "boolean", "description": "Only check; run nothing."},
        },
        "required": ["item_id"],
    },
)
_SIGNING: Final = _record(
    SIGN,
    Effect.CHANGE,
    "Sign rye items with the user's key, once they are valid.",
    {
        "properties": {
            "item_id": {
                "type": "string",
                "maxLength": 500,
                "description": "A reference such as tool:ID; * and ? stand for any characters.",
            },
            "source": {"type": "string", "enum": ["project", "user"], "description": "Only of this space."},
        },
        "required": ["item_id"],
    },
)


class RyeTools:
    """What serves the three. Any thread may ask."""

    def __init__(
        self,
        gate: Callable[[], Gate],
        catalog: Callable[[], Catalog],
        sign: Signing | None,
    ) -> None:
        """``sign`` signs what a reference names; None: nothing is signed from outside."""
        self._gate = gate
        self._catalog = catalog
        self._sign = sign
        self._records = {tool.key: tool for tool in (_FETCHING, _EXECUTING)}
        if sign is not None:
            self._records[SIGN] = _SIGNING

    def function(self, key: str) -> Callable[[ToolCall], Ending] | None:
        """What a call of one of these keys runs."""
        return {FETCH: self.fetch, EXECUTE: _unnamed, SIGN: self.sign}.get(key)

    def find(self, key: str, catalog: Catalog) -> Tool | None:
        """The record of one of these keys, where a catalog has rye items at all."""
        record = self._records.get(key)
        return record if record is not None and "rye" in catalog.formats else None

    def offered(self, catalog: Catalog, reach: Reach | None) -> list[Tool]:
        """The records to list besides a catalog's tools, as far as a caller's reach goes."""
        if "rye" not in catalog.formats:
            return []
        return [tool for tool in self._records.values() if reach is None or is_within(reach, tool)]

    # -- execute --------------------------------------------------------------------------------------------

    def inner(self, call: ToolCall) -> ToolCall:
        """The call that a call of ``execute`` stands for; others are what they are. It stays what it is where
        it names nothing, or is itself refused to its caller: then the engine says so, and records it."""
        given = call.arguments
        if call.tool != EXECUTE or given is None or not isinstance(given.get("item_id"), str):
            return call
        parameters, dry_run = given.get("parameters", {}), given.get("dry_run", False)
        known = given.keys() <= {"item_id", "parameters", "dry_run"}
        if not isinstance(parameters, dict) or not isinstance(dry_run, bool) or not known:
            return call
        if call.reach is not None and not is_within(call.reach, _EXECUTING):
            return call
        if "rye" not in self._catalog().formats or self._gate().refusals(call.caller)(_EXECUTING) is not None:
            return call
        # Attack: execute as a way to tools of other formats, or to a tool under another name. What it names
        # is always the key of a rye item, which the engine looks up as in any other call.
        return replace(
            call,
            tool=_key_of(str(given["item_id"])),
            arguments=parameters,
            raw=jsontext.compact(parameters).decode("utf-8"),
            dry_run=call.dry_run or dry_run,
        )

    # -- fetch ----------------------------------------------------------------------------------------------

    def fetch(self, call: ToolCall) -> Ending:
        given = call.arguments or {}
        item_id, query = given.get("item_id"), given.get("query")
        if (item_id is None) == (query is None):
            return Ending(end=End.REFUSED, reason="give either an item_id or a query")
        if item_id is not None:
            return self._fetch_item(str(item_id), call)
        below = _below(str(given.get("scope") or "tool"))
        if below is None:
            reason = f"scope: must be tool or tool.NAMESPACE.* (got {str(given.get('scope'))[:60]!r})"
            return Ending(end=End.REFUSED, reason=reason)
        seen = [tool for tool in self._seen(call) if tool.name.startswith(below)]
        limit = given.get("limit", 10)
        assert isinstance(limit, int)
        try:
            found = rules.search(seen, query=str(query), limit=limit)
        except UsageError as wrong:
            return Ending(end=End.REFUSED, reason=wrong.message)
        by_key = {tool.key: tool for tool in seen}
        results = [{**_about(by_key[hit.key]), "score": hit.score} for hit in found]
        return Ending(
            end=End.RETURNED, value={"status": "success", "results": results, "total": len(results)}
        )

    def _fetch_item(self, item_id: str, call: ToolCall) -> Ending:
        wanted = _key_of(item_id)
        seen = {each.key: each for each in self._seen(call)}
        tool = seen.get(wanted)
        if tool is None:
            near = tuple(key.removeprefix(_RYE) for key in nearest(wanted, [*seen]))
            return Ending(end=End.REFUSED, reason=f"Tool not found: {item_id}", near=near)
        path = tool.origin.path
        root = os.path.realpath(path.removesuffix(path.partition("/.ai/tools/")[2]))
        # Attack: a link put in an item's place meanwhile, which shows the model a file from anywhere.
        content, why = files.read(path, within=root)
        if content is None:
            return Ending(end=End.UNAVAILABLE, reason=f"{item_id}: {why}")
        schema = tool.input_schema.document if tool.input_schema is not None else None
        return Ending(
            end=End.RETURNED,
            value={
                "status": "success",
                **_about(tool),
                "version": tool.version,
                "parameters": schema,
                "chain": list(tool.chain),
                "trust": self._gate().vet(tool, None).trust.value,
                "content": content.decode("utf-8", "replace"),
            },
        )

    def _seen(self, call: ToolCall) -> list[Tool]:
        """The items that a caller may know of: within its reach, and of the tools those it is offered."""
        catalog, refusal = self._catalog(), self._gate().refusals(call.caller)
        keys = (key for key in catalog.keys if key.startswith(_RYE))
        items = (catalog.find(key) for key in keys)
        near = (tool for tool in items if call.reach is None or is_within(call.reach, tool))
        return [tool for tool in near if tool.role is not Role.TOOL or refusal(tool) is None]

    # -- sign -----------------------------------------------------------------------------------------------

    def sign(self, call: ToolCall) -> Ending:
        given = call.arguments or {}
        ref, source = str(given.get("item_id", "")), given.get("source")
        if self._sign is None or (call.reach is not None and not self._is_near(ref, call.reach)):
            # Attack: signatures for what lies beyond a caller's reach, or is no tool at all.
            return Ending(end=End.REFUSED, reason=f"Tool not found: {ref}")
        try:
            signed = self._sign([ref], Location(str(source)) if source is not None else None)
        except ToolcribError as wrong:
            return Ending(end=End.REFUSED, reason=wrong.message, hint=wrong.hint)
        if any(each.error for each in signed):
            issues = [
                f"{each.item.ref}: {'; '.join((each.error, *each.issues))}" for each in signed if each.error
            ]
            return Ending(end=End.RAISED, reason="; ".join(issues)[:2000])
        return Ending(
            end=End.RETURNED,
            value=[
                {
                    "status": "signed",
                    "item_id": each.item.ref,
                    "location": each.item.location.value,
                    "signature": each.signature,
                    "warnings": list(each.warnings),
                }
                for each in signed
            ],
        )

    def _is_near(self, ref: str, reach: Reach) -> bool:
        """Whether a reference names one tool within a reach: patterns could name others besides."""
        catalog, key = self._catalog(), _key_of(ref)
        return ref.startswith(_KIND) and key in catalog.keys and is_within(reach, catalog.find(key))


def _unnamed(_call: ToolCall) -> Ending:
    """A call of ``execute`` that became none of another tool."""
    return Ending(end=End.REFUSED, reason="item_id: must name a rye tool")


def _key_of(item_id: str) -> str:
    return _RYE + item_id.removeprefix(_RYE).removeprefix(_KIND)


def _below(scope: str) -> str | None:
    """How the ids of a scope begin; None: it is none."""
    kind, dot, rest = scope.partition(".")
    if kind != "tool" or (dot and not rest):
        return None
    names = rest.removesuffix("*").removesuffix(".")
    return f"{names.replace('.', '/')}/" if names else ""


def _about(tool: Tool) -> JsonObject:
    return {
        "item_id": f"{_KIND}{tool.name}",
        "type": "tool",
        "callable": tool.role is Role.TOOL,
        "description": tool.description,
        "category": tool.notes.category,
    }
