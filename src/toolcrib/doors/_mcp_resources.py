"""MCP's methods for resources, prompts and completions, for both eras and every transport.

Checks params, reads what is offered and builds results. It decides nothing: ``_offers.py`` says what a caller
may know of, and each transport sends the result.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from toolcrib import mcp_wire as wire
from toolcrib.app import Crib
from toolcrib.dialects import mcp as dialect
from toolcrib.doors._offers import (
    SAID_CHARS_MAX,
    Absent,
    Offers,
    Prompt,
    Resource,
    Withheld,
    kept_results,
    offers,
)
from toolcrib.errors import ToolcribError, did_you_mean, nearest
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.mcp_wire import Fault
from toolcrib.model import Guest

PAGE_MAX: Final = 1000
"""Resources and prompts in one answer."""
VALUES_MAX: Final = 100
"""Completions in one answer, as the protocol says."""
BLOCK_BYTES_MAX: Final = 4 << 20
"""Of a resource that the host offers."""

_CACHEABLE: Final = frozenset(
    {"resources/list", "resources/templates/list", "resources/read", "prompts/list"}
)
"""Methods whose results say, in the newer era, how long they may be kept."""

_RESOURCE_NOT_FOUND: Final = -32002
"""Only in the older era: the newer one uses "invalid params"."""
_CHARS_SHOWN: Final = 200
_LOG: Final = logging.getLogger("toolcrib.doors")
_T = TypeVar("_T")


class _Refused(Exception):
    def __init__(self, code: int, message: str, data: JsonValue = None) -> None:
        super().__init__(message)
        self.fault = Fault(code, message, data)


class Resources:
    """What a crib and its host offer, by method. Its methods are called from any thread."""

    def __init__(self, crib: Crib, more: Offers | None = None) -> None:
        self._crib = crib
        self._more = more or Offers()
        self._methods: Mapping[str, Callable[[Guest, JsonObject], JsonObject]] = MappingProxyType(
            {
                "resources/list": self._list_resources,
                "resources/templates/list": self._list_templates,
                "resources/read": self._read_resource,
                "prompts/list": self._list_prompts,
                "prompts/get": self._get_prompt,
                "completion/complete": self._complete,
            }
        )

    def answer(self, method: str, params: JsonObject, guest: Guest, *, newer: bool) -> JsonObject | Fault:
        """Return the result of a request. Reads files and runs the host's own code: for a thread.

        Raises ToolcribError if the state of the host cannot be read.
        """
        do = self._methods.get(method)
        if do is None:
            return Fault(wire.METHOD_NOT_FOUND, "Method not found", method)
        fault = wire.check_meta(params)
        if fault is not None:
            return fault
        try:
            result = do(guest, params)
        except _Refused as refused:
            fault = refused.fault
            if newer and fault.code == _RESOURCE_NOT_FOUND:
                return Fault(wire.INVALID_PARAMS, fault.message, fault.data)
            return fault
        except ToolcribError:
            raise
        except Exception:  # noqa: BLE001 - the host's own code; a client learns nothing of its mistakes
            _LOG.exception("%s could not be answered", method)
            return Fault(wire.INTERNAL_ERROR, "Internal server error")
        if not newer:
            return result
        lasts: JsonObject = {"ttlMs": 0, "cacheScope": "private"} if method in _CACHEABLE else {}
        return {"resultType": "complete", **result, **lasts}

    def _offers(self, guest: Guest) -> Offers:
        return offers(self._crib, self._more, caller=guest.name, reach=guest.reach)

    # -- resources ------------------------------------------------------------------------------------------

    def _list_resources(self, guest: Guest, params: JsonObject) -> JsonObject:
        listed = [each for each in self._offers(guest).resources if not each.is_template]
        page, following = _page(listed, params)
        return {"resources": [{"uri": each.uri, **_heading(each)} for each in page], **following}

    def _list_templates(self, guest: Guest, params: JsonObject) -> JsonObject:
        listed = [each for each in self._offers(guest).resources if each.is_template]
        page, following = _page(listed, params)
        templates: list[JsonValue] = [{"uriTemplate": each.uri, **_heading(each)} for each in page]
        return {"resourceTemplates": templates, **following}

    def _read_resource(self, guest: Guest, params: JsonObject) -> JsonObject:
        uri = _text(params, "uri")
        offered = self._offers(guest)
        # Kept results are not listed: the link in a cut result leads to each of them.
        kept = Offers(resources=(*offered.resources, *kept_results(self._crib, guest)))
        try:
            resource, marks = kept.resource(uri)
            content = resource.read(marks)
        except Absent:
            known = [each.uri for each in offered.resources if not each.is_template]
            shown: JsonObject = {"uri": uri[:_CHARS_SHOWN]}
            raise _Refused(_RESOURCE_NOT_FOUND, _unknown("resource", uri, known), shown) from None
        except Withheld as why:
            raise _Refused(wire.INVALID_PARAMS, str(why)) from None
        if len(content) > BLOCK_BYTES_MAX:
            raise _Refused(wire.INTERNAL_ERROR, f"{uri[:_CHARS_SHOWN]!r} is too large to be read")
        held: JsonObject = (
            {"text": content}
            if isinstance(content, str)
            else {"blob": base64.b64encode(content).decode("ascii")}
        )
        return {"contents": [{"uri": uri, "mimeType": resource.media_type, **held}]}

    # -- prompts --------------------------------------------------------------------------------------------

    def _list_prompts(self, guest: Guest, params: JsonObject) -> JsonObject:
        page, following = _page(self._offers(guest).prompts, params)
        return {"prompts": [_prompt(each) for each in page], **following}

    def _get_prompt(self, guest: Guest, params: JsonObject) -> JsonObject:
        name, given = _text(params, "name"), _texts(params, "arguments")
        if any(len(text) > SAID_CHARS_MAX for text in given.values()):
            raise _Refused(wire.INVALID_PARAMS, f"an argument is longer than {SAID_CHARS_MAX:,} characters")
        offered = self._offers(guest)
        try:
            prompt = offered.prompt(name)
            missing = [each.name for each in prompt.arguments if each.required and each.name not in given]
            if missing:
                raise _Refused(wire.INVALID_PARAMS, f"missing arguments: {', '.join(missing)}")
            blocks = prompt.begin(given)
        except Absent:
            known = [each.name for each in offered.prompts]
            raise _Refused(wire.INVALID_PARAMS, _unknown("prompt", name, known)) from None
        except Withheld as why:
            raise _Refused(wire.INVALID_PARAMS, str(why)) from None
        messages: list[JsonValue] = [
            {"role": "user", "content": dialect.write_block(block)} for block in blocks
        ]
        return {"description": prompt.description, "messages": messages}

    # -- completions ----------------------------------------------------------------------------------------

    def _complete(self, guest: Guest, params: JsonObject) -> JsonObject:
        """Complete a mark of a template's address from the listed addresses, for example a skill's name.

        Nothing else can be completed."""
        ref, argument = _object(params, "ref"), _object(params, "argument")
        name, start = _text(argument, "name", "argument."), _text(argument, "value", "argument.")
        _texts(_object(params, "context") if params.get("context") is not None else {}, "arguments")
        found: dict[str, None] = {}
        match ref.get("type"):
            case "ref/resource":
                uri = _text(ref, "uri", "ref.")
                listed = self._offers(guest).resources
                for template in listed:
                    if template.is_template and template.uri == uri:
                        marks = (template.fits(each.uri) or {} for each in listed if not each.is_template)
                        found |= dict.fromkeys(each.get(name, "") for each in marks)
            case "ref/prompt":
                _text(ref, "name", "ref.")
            case _:
                raise _Refused(wire.INVALID_PARAMS, 'ref.type: must be "ref/resource" or "ref/prompt"')
        values = [each for each in found if each and each.startswith(start)]
        shown: list[JsonValue] = [*values[:VALUES_MAX]]
        return {"completion": {"values": shown, "total": len(values), "hasMore": len(values) > VALUES_MAX}}


# -- params -------------------------------------------------------------------------------------------------


def _text(params: JsonObject, key: str, place: str = "") -> str:
    value = params.get(key)
    if type(value) is not str:
        raise _Refused(wire.INVALID_PARAMS, f"{place}{key}: must be a text")
    return value


def _object(params: JsonObject, key: str) -> JsonObject:
    value = params.get(key)
    if type(value) is not dict:
        raise _Refused(wire.INVALID_PARAMS, f"{key}: must be an object")
    return value


def _texts(params: JsonObject, key: str) -> dict[str, str]:
    """An object of texts; absent or null: none."""
    value = params.get(key)
    if value is None:
        return {}
    if type(value) is not dict:
        raise _Refused(wire.INVALID_PARAMS, f"{key}: must be an object")
    found = {name: text for name, text in value.items() if type(text) is str}
    if len(found) < len(value):
        raise _Refused(wire.INVALID_PARAMS, f"{key}: each must be a text")
    return found


def _page(listed: Sequence[_T], params: JsonObject) -> tuple[Sequence[_T], JsonObject]:
    """Return the part of a list that a cursor asks for, and the cursor of the next part.

    A cursor is the number of the entries before its part."""
    cursor = params.get("cursor")
    if cursor is None:
        cursor = "0"
    if type(cursor) is not str or not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 9):
        raise _Refused(wire.INVALID_PARAMS, wire.WRONG_CURSOR)
    start = int(cursor)
    following: JsonObject = {"nextCursor": str(start + PAGE_MAX)} if len(listed) > start + PAGE_MAX else {}
    return listed[start : start + PAGE_MAX], following


# -- results ------------------------------------------------------------------------------------------------


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    return f"unknown {what} {name[:_CHARS_SHOWN]!r}" + (f"; {did_you_mean(near)}" if near else "")


def _heading(resource: Resource) -> JsonObject:
    told: JsonObject = {"name": resource.name, "mimeType": resource.media_type}
    return {**told, "description": resource.description} if resource.description else told


def _prompt(prompt: Prompt) -> JsonObject:
    arguments: list[JsonValue] = [
        {"name": each.name, "description": each.description, "required": each.required}
        for each in prompt.arguments
    ]
    told: JsonObject = {"name": prompt.name, "arguments": arguments}
    return {**told, "description": prompt.description} if prompt.description else told
