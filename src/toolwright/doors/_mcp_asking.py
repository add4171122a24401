"""How an MCP client is asked to let a call run that a rule asks about, and what its answer means.

In the handshake era the question is an ``elicitation/create`` request; in the newer one the same words are an
input request in the place of the result, and the client calls again with the answer. Nothing is decided here:
whether an answer counts is the approvals' business.
"""

from __future__ import annotations

from typing import Final

from toolwright import jsontext
from toolwright.app import Workshop
from toolwright.errors import Kind, ToolwrightError
from toolwright.jsontext import JsonObject, JsonValue
from toolwright.model import ApprovalState, ToolResult

INPUT: Final = "approval"
"""What the input request is called."""
BECAUSE_CHARS_MAX: Final = 1000
_SHOWN_CHARS_MAX: Final = 2000
_FORM: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "because": {
            "type": "string",
            "title": "Why",
            "description": "Goes into the record; may stay empty.",
            "maxLength": BECAUSE_CHARS_MAX,
        }
    },
}


def approval_id(result: ToolResult) -> str | None:
    """The question that a call waits for; None where it waits for none."""
    error = result.error
    if error is None or error.kind is not Kind.NEEDS_APPROVAL or not isinstance(error.details, dict):
        return None
    found = error.details.get("approval_id")
    return found if isinstance(found, str) else None


def question(workshop: Workshop, asked: str) -> JsonObject | None:
    """The params of ``elicitation/create``; None where nothing waits under this id. Reads the store."""
    approval = next((each for each in workshop.approvals() if each.id == asked), None)
    if approval is None or approval.state is not ApprovalState.WAITING:
        return None
    shown = jsontext.compact(approval.arguments).decode("utf-8", "replace")
    if len(shown) > _SHOWN_CHARS_MAX:
        shown = f"{shown[:_SHOWN_CHARS_MAX]} … ({len(shown):,} characters)"
    message = f"{approval.question}\n{approval.key} {shown}\nRule: {approval.because}"
    return {"mode": "form", "message": message, "requestedSchema": _FORM}


def take(workshop: Workshop, asked: str, reply: JsonValue, *, tool: str, caller: str) -> bool:
    """Let a client's reply (``action``, ``content``) count for a question about this caller's call of this
    tool. False: it is no answer, and the question waits on. Writes the store."""
    if not isinstance(reply, dict):
        return False
    decision = {"accept": "approve", "decline": "deny"}.get(str(reply.get("action")))
    approval = next((each for each in workshop.approvals() if each.id == asked), None)
    # Attack: the id of a question about somebody else's call, or about another tool, comes back as one's own.
    if decision is None or approval is None or approval.key != tool or approval.caller != caller:
        return False
    content = reply.get("content")
    because = content.get("because") if isinstance(content, dict) else None
    try:
        workshop.answer(
            asked,
            decision,
            because=because[:BECAUSE_CHARS_MAX] if isinstance(because, str) else None,
            by=caller,
        )
    except ToolwrightError:  # somebody else answered meanwhile: calling again tells
        return False
    return True
