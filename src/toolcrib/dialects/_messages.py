"""Read a provider's message: JSON values, and the response objects of the providers' own Python libraries.

Those libraries are never imported. An object counts as one of theirs if its class has ``model_dump`` or
``to_dict``. What is not a message of the dialect raises: an empty list of calls would end an agent's loop
without a word. This module knows where each provider puts its calls, and nothing about tools or names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.errors import UsageError
from toolcrib.jsontext import JsonValue

_KEYS_SHOWN: Final = 8
_DEPTH_MAX: Final = 6
_HOLDERS: Final = (
    "choices", "message", "output", "candidates", "content", "parts", "toolCall", "tool_call",
    "serverContent", "server_content", "modelTurn", "model_turn", "response", "item",
)  # fmt: skip
"""The members that lead from a response to its calls, whatever the provider."""
_ALTERNATIVES: Final = ("choices", "candidates")
"""Of what stands in these only the first counts."""
_CALL_TYPES: Final = {
    "tool_use": "anthropic",
    "function_call": "openai-responses",
    "custom_tool_call": "openai-responses",
}
_EVENTS: Final = ("response.", "conversation.item.", "message_", "content_block_", "input_json")
"""How the types of stream events begin, in Responses, in OpenAI's Realtime API and in Messages."""
_DELTA: Final = "ChoiceDelta"
"""How the classes of OpenAI's library begin that hold what is in a chunk."""
ENDED: Final = ("response.completed", "response.incomplete", "response.done")
"""The events that hold a whole response, in Responses and in the Realtime API."""
_UNFINISHED: Final = {
    "queued": "has not ended",
    "in_progress": "has not ended",
    "failed": "failed",
    "cancelled": "was cancelled",
}
"""The status of a response of Responses whose calls may be parts of calls, and what that means."""
CUT_SHORT: Final = "the arguments may be cut off: the response ended before this call did"


class Source(Struct, frozen=True, kw_only=True):
    """Where one dialect finds calls in a message."""

    dialect: str
    find: Callable[[JsonValue], list[JsonValue] | None]
    """Return the calls in an object or array; None if it is no message of this dialect."""
    wanted: str
    """What to hand over, for the hint."""


def opened(value: object) -> JsonValue:
    """Return a library's object as JSON values, a tuple as a list, and any other value unchanged. Raises
    UsageError if the object cannot be written."""
    if isinstance(value, (dict, list, str)) or value is None:
        return value
    if isinstance(value, tuple):
        return list(value)
    # Of the class: an instance may answer for every attribute that it is asked for.
    kind = type(value)
    try:
        if callable(getattr(kind, "model_dump", None)):
            return value.model_dump(mode="json", warnings=False)  # type: ignore[attr-defined]
        if callable(getattr(kind, "to_dict", None)):
            return value.to_dict()  # type: ignore[attr-defined]
    except Exception as error:  # the library's own, or that of a class made by the host
        text = f"{kind.__name__} cannot be written as JSON: {type(error).__name__}"
        raise UsageError(text, "hand over its JSON as a dict") from error
    return value


def member(value: object, key: str) -> JsonValue:
    """Return a member of an object; None for every other value."""
    found = opened(value)
    return opened(found.get(key)) if isinstance(found, dict) else None


def items(value: object) -> list[JsonValue]:
    """Return the items of an array, opened; nothing for every other value."""
    found = opened(value)
    return [opened(item) for item in found] if isinstance(found, list) else []


def calls_in(message: object, source: Source) -> list[JsonValue]:
    """Return the calls in a message, as the provider wrote them. Raises UsageError if it is no message."""
    try:
        value = opened(message)
        # Attack: the first part of a call, which is taken for a whole one without arguments, and run.
        is_part = _is_delta(message, value) or is_chunk(value)
        found = source.find(value) if isinstance(value, (dict, list)) and not is_part else None
    except UsageError as error:
        raise UsageError(f"{source.dialect}: {error.message}", error.hint) from error.__cause__
    except (TypeError, ValueError, RecursionError) as error:
        text = f"{source.dialect}: {type(message).__name__} cannot be written as JSON: {type(error).__name__}"
        raise UsageError(text, f"hand over {source.wanted}") from None
    unfinished = _unfinished(value, has_calls=bool(found))
    if found and not unfinished:
        return found
    if is_part or _is_stream(value):
        what = "chunk of a stream, which holds parts of calls only" if is_part else "stream"
        raise UsageError(
            f"{source.dialect}: this is a {what}",
            "collect the stream first, and hand over the whole response",
        )
    if unfinished:
        text = f"{source.dialect}: this response {unfinished}, so its calls may not be whole"
        raise UsageError(text, "hand over one whose status is completed")
    if _has_older_call(value):
        text = f"{source.dialect}: the message holds a function_call, from before there were tools"
        raise UsageError(text, "send the declarations as tools, not as functions; then it holds tool_calls")
    other = _dialect_of(value)
    if other not in ("", source.dialect):
        raise UsageError(
            f"{source.dialect}: the message holds calls in the form of {other}",
            f'read it with crib.dialect("{other}")',
        )
    # Attack: a message whose calls lie where they are not looked for, which would pass as one without calls.
    if found is None or other:
        hint = f"hand over {source.wanted}"
        if hasattr(value, "__await__"):
            hint = "await it first"
        elif isinstance(value, list) and other:
            hint = f"hand over one message at a time: {source.wanted}"
        text = f"{source.dialect}: no message to read calls from (got {_described(message, value)})"
        raise UsageError(text, hint)
    return found


def calls_of_message(value: JsonValue) -> list[JsonValue] | None:
    """Return the ``tool_calls`` of an assistant message, of what holds one as ``message``, or of a list of
    them. Chat Completions and Ollama share this form."""
    if isinstance(value, list):
        return _chat_calls(value)
    if _is_chat_call(value):
        return [value]
    if isinstance(inner := member(value, "message"), dict):
        value = inner
    if "tool_calls" not in value and value.get("role") != "assistant":
        return None
    if value.get("role", "assistant") != "assistant" or member(value, "function_call") is not None:
        return None  # another's message, or a call of the older API without tools
    calls = member(value, "tool_calls")
    if calls is not None and not isinstance(calls, list):
        return None
    found = _chat_calls(items(calls))
    if found is None:
        text = "an entry of tool_calls has no function with a name"
        raise UsageError(text, "hand over the message as the provider sent it")
    return found


def _chat_calls(value: list[JsonValue]) -> list[JsonValue] | None:
    """Return the calls of a list; None if one of them is none, or has no name to answer it by."""
    calls = items(value)
    named = (member(member(call, "function") or member(call, "custom"), "name") for call in calls)
    return calls if all(isinstance(name, str) for name in named) else None


def _is_chat_call(value: JsonValue) -> bool:
    return isinstance(member(value, "function"), dict) or isinstance(member(value, "custom"), dict)


def cut_short(calls: list[JsonValue]) -> list[JsonValue]:
    """Return the calls of a response that ended at a limit: the last one may be a part of one."""
    return [*calls[:-1], *({**call, "status": "incomplete"} for call in calls[-1:])]


def why_cut(call: JsonValue) -> str | None:
    """Return what is wrong with a call that the response may have broken off; None: nothing."""
    return CUT_SHORT if member(call, "status") == "incomplete" else None


def _is_delta(message: object, value: JsonValue) -> bool:
    """Return whether this is what a chunk holds: a delta, its calls, or one of them.

    Some servers number the calls of whole messages as well. Their arguments are whole, and the message is an
    assistant's.
    """
    given = message if isinstance(message, (list, tuple)) else (message,)
    if any(type(each).__name__.startswith(_DELTA) for each in given):
        return True
    if isinstance(value, dict) and isinstance(calls := opened(value.get("tool_calls")), list):
        is_message = value.get("role") == "assistant"
    elif isinstance(value, list) or _is_chat_call(value):
        calls, is_message = value if isinstance(value, list) else [value], True
    else:
        return False
    numbered = [
        call for call in items(calls) if isinstance(member(call, "index"), int) and _is_chat_call(call)
    ]
    return any(not is_message or not _is_whole(call) for call in numbered)


def _is_whole(call: JsonValue) -> bool:
    """Return whether nothing can be added to a call any more."""
    arguments = member(member(call, "function"), "arguments")
    if isinstance(arguments, str):
        arguments = jsontext.read(arguments.encode("utf-8", "surrogatepass")).value
    return isinstance(arguments, dict)


def is_chunk(value: JsonValue) -> bool:
    """Return whether this is a part of a stream, or a list of parts."""
    if isinstance(value, list):
        return any(is_chunk(item) for item in items(value) if isinstance(item, dict))
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if isinstance(kind, str) and kind.startswith(_EVENTS):
        return kind not in ENDED
    if kind == "message" and "stop_reason" in value and value["stop_reason"] is None:
        return True  # the message that a stream of Messages begins with
    if isinstance(kind, str) and value.get("status") == "in_progress" and "output" not in value:
        return True  # an item of Responses that was added, and is still written
    if value.get("object") == "chat.completion.chunk" or "delta" in value:
        return True
    return any(isinstance(choice, dict) and "delta" in choice for choice in items(value.get("choices")))


def _unfinished(value: JsonValue, *, has_calls: bool) -> str:
    """Return why the calls of a response may be parts of calls; empty: they are whole."""
    is_event = member(value, "type") in ENDED
    response = member(value, "response") if is_event else value
    if not isinstance(response, dict) or not ("output" in response or response.get("object") == "response"):
        return ""
    if "call_id" in response:
        return ""  # a result
    # In the Realtime API a response is cancelled whenever somebody speaks, and mostly without a call.
    ended = _UNFINISHED.get(str(response.get("status")), "")
    return "" if is_event and not has_calls else ended


def _has_older_call(value: JsonValue) -> bool:
    choice = next(iter(items(member(value, "choices"))), value)
    message = member(choice, "message") or choice
    return isinstance(member(member(message, "function_call"), "arguments"), str)


def _is_stream(value: object) -> bool:
    is_iterable = hasattr(value, "__iter__") or hasattr(value, "__aiter__")
    return is_iterable and not isinstance(value, (dict, list, str, bytes, bytearray))


def _dialect_of(value: JsonValue, depth: int = 0) -> str:
    """Return the dialect whose calls a message holds; empty if it holds none that is known here."""
    if depth > _DEPTH_MAX:
        return ""
    if isinstance(value, list):
        return next((found for item in items(value) if (found := _dialect_of(item, depth + 1))), "")
    if not isinstance(value, dict):
        return ""
    kind = value.get("type")
    if isinstance(kind, str) and kind in _CALL_TYPES:
        return _CALL_TYPES[kind]
    if "done" in value and items(member(value.get("message"), "tool_calls")):
        return "ollama"
    if items(value.get("tool_calls")) or _is_chat_call(value):
        return "openai"
    for key in ("functionCall", "function_call"):
        call = member(value, key)
        if isinstance(call, dict) and "arguments" not in call:
            return "gemini"
    if items(value.get("functionCalls")) or items(value.get("function_calls")):
        return "gemini"
    for key in _HOLDERS:
        held = member(value, key)
        if key in _ALTERNATIVES:
            held = next(iter(items(held)), None)
        if found := _dialect_of(held, depth + 1):
            return found
    return ""


def _described(message: object, value: JsonValue) -> str:
    """Describe what was handed over by its type and the names of its members, never by its contents."""
    if message is None:
        return "None"
    if isinstance(value, dict):
        names = ", ".join(str(key)[:40] for key in list(value)[:_KEYS_SHOWN])
        what = "an object" if isinstance(message, dict) else type(message).__name__
        return f"{what} with {names}" if names else f"{what} without members"
    if isinstance(value, list):
        kinds = ", ".join(dict.fromkeys(type(item).__name__ for item in value[:_KEYS_SHOWN]))
        return f"a list of {kinds}" if kinds else "an empty list"
    return f"a {type(message).__name__}"
