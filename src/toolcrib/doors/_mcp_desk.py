"""What MCP's methods mean here, for either era and whatever carries the messages.

Reads params, writes results; makes calls out of requests and answers out of results. It decides nothing about
tools: listing, permission, order and record are the crib's. It knows no HTTP and no pipe.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct

from toolcrib import __version__, jsontext
from toolcrib import mcp_wire as wire
from toolcrib.app import Crib
from toolcrib.dialects import mcp as dialect
from toolcrib.doors._mcp_listing import Listing as Listing
from toolcrib.doors._mcp_listing import write
from toolcrib.doors._mcp_seals import Seals
from toolcrib.errors import KINDS, NEAR_MAX, ApprovalError, Kind, StoreError, ToolcribError, nearest
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.mcp_wire import NEWER, OLDER, Fault, Id
from toolcrib.model import Guest, Reach, Right, ToolCall, ToolError, ToolResult

if TYPE_CHECKING:
    from toolcrib.doors._mcp_resources import Resources
    from toolcrib.doors._offers import Offers

DOOR: Final = "mcp"
SERVER: Final[JsonObject] = {"name": "toolcrib", "title": "Toolcrib", "version": __version__}
"""``serverInfo`` of both eras."""
CAPABILITIES: Final[JsonObject] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": False},
    "completions": {},
}
CHANGES: Final = tuple(f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources"))
"""The notifications that say that a list changed."""
_call_of: Final = ToolCall
_KEPT_BYTES_MAX: Final = 64 << 20
"""Of listings, for all callers together; one is always kept."""
_ARGUMENTS_CHARS_MAX: Final = 4000
_BECAUSE_CHARS_MAX: Final = 500
_ONCE: Final = re.compile("[!-~]{1,200}")
"""An idempotency key; the HTTP API takes the same."""
ASKED: Final = "approval"
"""The name of our one input request."""
_STAMP: Final[JsonObject] = {wire.SERVER_KEY: SERVER}
_STAMP_TEXT: Final = jsontext.compact(_STAMP)
MAY_NOT_CALL: Final = Fault(wire.INVALID_REQUEST, "this caller may look at tools, not call them")
_WAITS: Final = "hint: a person has to approve it first; the same call runs after that"
_FORM: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Decision",
            "description": "Whether this call may run, once.",
            "enum": ["approve", "deny"],
        },
        "because": {"type": "string", "title": "Because", "description": "Why; it is recorded."},
    },
    "required": ["decision"],
}


class Question(Struct, frozen=True):
    """A call that waits for a person, whom this client can ask."""

    approval_id: str
    params: JsonObject
    """Of the request that asks."""
    otherwise: bytes
    """The result where nobody answers."""


class Desk:
    """One for all connections of a host. Its methods are called from any thread."""

    def __init__(self, crib: Crib, more: Offers | None = None) -> None:
        self.crib = crib
        self.seals = Seals()
        self._more = more
        self._listings: OrderedDict[tuple[str, Reach | None], Listing] = OrderedDict()
        self._lock = threading.Lock()

    # -- who we are -----------------------------------------------------------------------------------------

    def discovered(self, guest: Guest) -> bytes:
        """The result of ``server/discover``. Reads the instructions of skills: for a thread."""
        return jsontext.compact(
            {
                "resultType": "complete",
                "supportedVersions": [*NEWER],
                "capabilities": CAPABILITIES,
                **self._told(guest),
                "ttlMs": 0,
                "cacheScope": "private",
                "_meta": _STAMP,
            }
        )

    def _told(self, guest: Guest) -> JsonObject:
        """What the client's model shall know: the skills of this caller's."""
        text = self.crib.instructions(caller=guest.name, reach=guest.reach)
        return {"instructions": text} if text else {}

    def subscribed(self, number: Id | None, params: JsonObject) -> tuple[tuple[str, ...], bytes] | Fault:
        """What a request ``subscriptions/listen`` is told of from now on, and the message that says so."""
        wanted = params.get("notifications")
        if type(wanted) is not dict:
            return Fault(wire.INVALID_PARAMS, "notifications: must be an object")
        kinds = {method: f"{method.split('/')[1]}ListChanged" for method in CHANGES}
        kept = tuple(method for method, kind in kinds.items() if wanted.get(kind) is True)
        heard = {"notifications": {kinds[method]: True for method in kept}, **_marked(number)}
        return kept, wire.notification("notifications/subscriptions/acknowledged", heard)

    @staticmethod
    def changed(number: Id | None, method: str) -> bytes:
        """One of what a subscription is told."""
        return wire.notification(method, _marked(number))

    @staticmethod
    def unsubscribed(number: Id | None) -> bytes:
        """The response to ``subscriptions/listen``, at the end of what was listened to."""
        marks = {wire.SUBSCRIPTION_KEY: number, **_STAMP}
        return wire.answer(number, jsontext.compact({"resultType": "complete", "_meta": marks}))

    def initialized(self, params: JsonObject, guest: Guest) -> tuple[bytes, str, bool] | Fault:
        """The result of ``initialize``, the version that was agreed on, and whether the client elicits. For a
        thread, as ``discovered``."""
        asked, able, client = (params.get(key) for key in ("protocolVersion", "capabilities", "clientInfo"))
        if type(asked) is not str or type(able) is not dict or type(client) is not dict:
            return Fault(wire.INVALID_PARAMS, "initialize needs protocolVersion, capabilities and clientInfo")
        version = asked if asked in OLDER else OLDER[-1]
        result = {
            "protocolVersion": version,
            "capabilities": CAPABILITIES,
            "serverInfo": SERVER,
            **self._told(guest),
        }
        return jsontext.compact(result), version, wire.elicits(able)

    # -- listing --------------------------------------------------------------------------------------------

    def known(self, guest: Guest) -> Listing | None:
        """What was listed to a caller, as long as the catalog is the same: enough to read a call's name."""
        found = self._listings.get((guest.name, guest.reach))
        return found if found is not None and found.catalog is self.crib.catalog else None

    def fresh(self, guest: Guest) -> Listing | None:
        """What was listed to a caller, where it would be listed so again."""
        found = self._listings.get((guest.name, guest.reach))
        return found if found is not None and found.version == self.crib.version else None

    def listing(self, guest: Guest) -> Listing:
        """What a caller sees now. Slow where there are many tools: for a thread, unless it is ``fresh``."""
        with self._lock:
            found = self.fresh(guest)
            if found is not None:
                return found
            place = (guest.name, guest.reach)
            found = write(self.crib, guest, self._listings.get(place))
            self._keep(place, found)
            return found

    def _keep(self, place: tuple[str, Reach | None], found: Listing) -> None:
        kept = self._listings
        for other in [other for other, listing in kept.items() if listing.version != found.version]:
            del kept[other]
        kept[place] = found
        size = sum(listing.size_bytes for listing in kept.values())
        while size > _KEPT_BYTES_MAX and len(kept) > 1:
            # Attack: a caller of many names has the listing of ten thousand tools kept for each of them.
            size -= kept.popitem(last=False)[1].size_bytes

    @staticmethod
    def listed(number: Id | None, listing: Listing, *, newer: bool) -> wire.Long:
        """The response to ``tools/list``: one page, so that there is no cursor that could be shown again."""
        head, tail = b'{"tools":', b"}"
        if newer:
            head = b'{"resultType":"complete","tools":'
            tail = b',"ttlMs":0,"cacheScope":"private","_meta":%b}' % _STAMP_TEXT
        return wire.long_answer(number, head, listing.parts(), tail, listing.size_bytes)

    @staticmethod
    def check_cursor(params: JsonObject) -> Fault | None:
        if params.get("cursor") is not None:
            return Fault(wire.INVALID_PARAMS, wire.WRONG_CURSOR)
        return wire.check_meta(params)

    # -- everything that is asked rarely --------------------------------------------------------------------

    @cached_property
    def _resources(self) -> Resources:
        # By name: it loads YAML and the journal's reader, which a client's first answer shall not wait for.
        module = import_module("toolcrib.doors._mcp_resources")
        return cast("Resources", module.Resources(self.crib, self._more))

    def respond(self, method: str, params: JsonObject, guest: Guest, newer: bool) -> bytes | Fault:
        """Return the result of a method that the transports do not answer themselves. For a thread."""
        found = self._resources.answer(method, params, guest, newer=newer)
        if type(found) is Fault:
            return found
        assert type(found) is dict
        if newer:
            found["_meta"] = _STAMP
        try:
            return jsontext.compact(found)
        except UnicodeEncodeError:  # half a surrogate pair in a text of the host's own
            return Fault(wire.INTERNAL_ERROR, "the answer cannot be written as UTF-8")

    # -- calling --------------------------------------------------------------------------------------------

    def call(self, guest: Guest, params: JsonObject, keys: Mapping[str, str]) -> ToolCall | Fault:
        """The call that a ``tools/call`` asks for: by declared name, by key or by bare name."""
        name, arguments = params.get("name"), params.get("arguments")
        if type(name) is not str:
            return Fault(wire.INVALID_PARAMS, "name: must be a text")
        if arguments is None:
            arguments = {}
        elif type(arguments) is not dict:
            return Fault(wire.INVALID_PARAMS, "arguments: must be an object")
        fault = wire.check_meta(params)
        if fault is not None:
            return fault
        once = wire.meta(params).get(wire.IDEMPOTENCY_KEY)
        if once is not None and (type(once) is not str or _ONCE.fullmatch(once) is None):
            text = f"_meta: {wire.IDEMPOTENCY_KEY} must be a text of 1 to 200 visible ASCII characters"
            return Fault(wire.INVALID_PARAMS, text)
        key = keys.get(name)
        return _call_of(
            id=self.crib.new_call_id(),
            tool=name if key is None else key,
            arguments=arguments,
            spoken=name,
            declared=key is not None,
            near=() if key is not None else tuple(nearest(name, [*keys], count=NEAR_MAX)),
            caller=guest.name,
            reach=guest.reach,
            idempotency_key=once,
        )

    def write(self, number: Id, call: ToolCall, result: ToolResult, *, newer: bool) -> tuple[int, bytes]:
        """The response to a call, and its HTTP status."""
        error = result.error
        if error is not None and (code := KINDS[error.kind].rpc_code) is not None:
            fault = failed(error, code)
            return fault.status if newer else 200, wire.failure(number, fault)
        return 200, wire.answer(number, self._result(call, result, newer=newer))

    @staticmethod
    def reply(call: ToolCall, result: ToolResult) -> JsonObject:
        """The result of a call as the dialect writes it, and what to do where it waits for a person."""
        reply = dialect.write_result(call, result)
        error = result.error
        if error is not None and error.kind is Kind.NEEDS_APPROVAL:
            reply["content"] = [*reply["content"], {"type": "text", "text": _WAITS}]
        return reply

    def _result(self, call: ToolCall, result: ToolResult, *, newer: bool) -> bytes:
        reply = self.reply(call, result)
        if newer:
            reply["_meta"] = _STAMP
        else:
            del reply["resultType"]
        return jsontext.compact(reply)

    # -- asking a person ------------------------------------------------------------------------------------

    @staticmethod
    def may_ask(guest: Guest) -> bool:
        """Attack: whoever calls, or the model that speaks through it, approves its own calls. Only who may
        approve anyway is asked; others are told that the call waits."""
        return Right.APPROVE in guest.rights

    def question(self, result: ToolResult, otherwise: bytes) -> Question | None:
        """The question to put to the client's person; None: there is nothing to answer."""
        error = result.error
        if error is None or error.kind is not Kind.NEEDS_APPROVAL or type(error.details) is not dict:
            return None
        approval_id = error.details.get("approval_id")
        try:
            waiting = [each for each in self.crib.approvals() if each.id == approval_id]
        except StoreError:
            return None
        if not waiting:
            return None
        (approval,) = waiting[:1]
        shown = jsontext.compact(approval.arguments).decode("utf-8")
        if len(shown) > _ARGUMENTS_CHARS_MAX:
            shown = shown[:_ARGUMENTS_CHARS_MAX] + "…"
        text = f"{approval.question}\n\nTool: {approval.key}\nArguments: {shown}\nRule: {approval.because}"
        params: JsonObject = {"mode": "form", "message": text, "requestedSchema": _FORM}
        return Question(approval.id, params, otherwise)

    def asked(self, guest: Guest, params: JsonObject, question: Question) -> bytes:
        """The result of the newer era that asks, to be shown again with the answer."""
        return jsontext.compact(
            {
                "resultType": "input_required",
                "inputRequests": {ASKED: {"method": "elicitation/create", "params": question.params}},
                "requestState": self.seals.state(guest, question.approval_id, params),
                "_meta": _STAMP,
            }
        )

    def decide(self, guest: Guest, approval_id: str, said: JsonValue) -> bool:
        """Keep what a person answered to a form; whether there is anything to call again for."""
        if type(said) is not dict or not self.may_ask(guest):
            return False
        match said.get("action"):
            case "accept":
                content = said.get("content")
                content = content if type(content) is dict else {}
                decision = content.get("decision")
                because = content.get("because")
            case "decline":
                decision, because = "deny", None
            case _:  # put off: the question goes on waiting
                return False
        if decision not in ("approve", "deny"):
            return False
        text = because[:_BECAUSE_CHARS_MAX] if type(because) is str else None
        try:
            self.crib.answer(approval_id, decision, because=text, by=guest.name)
        except (ApprovalError, StoreError):  # answered meanwhile, or too late: the call says how it stands
            return True
        return True

    def answered(self, guest: Guest, params: JsonObject) -> Fault | None:
        """Keep the answer that a request of the newer era brings with it, before its call is made again."""
        state = params.get("requestState")
        approval_id = self.seals.approval(guest, state, params) if type(state) is str else None
        if approval_id is None:
            data = {"reason": "invalid_request_state"}
            return Fault(wire.INVALID_PARAMS, "Invalid or expired requestState", data)
        responses = params.get("inputResponses")
        said = responses.get(ASKED) if type(responses) is dict else None
        self.decide(guest, approval_id, said)
        return None


def failed(error: ToolError, code: int) -> Fault:
    data: JsonObject = {"kind": error.kind.value}
    if error.hint:
        data["hint"] = error.hint
    near = error.kind is Kind.UNKNOWN_TOOL and error.details is not None
    return Fault(code, f"{error.message}; {error.hint}" if near else error.message, data)


def unread(error: ToolcribError) -> Fault:
    """What the host keeps cannot be read, so that not even what there is can be told."""
    data: JsonObject = {"kind": Kind.UNAVAILABLE.value}
    if error.hint:
        data["hint"] = error.hint
    return Fault(wire.INTERNAL_ERROR, error.message, data)


def _marked(number: Id | None) -> JsonObject:
    """Which subscription something belongs to."""
    return {"_meta": {wire.SUBSCRIPTION_KEY: number}}
