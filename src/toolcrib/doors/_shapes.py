"""The JSON Schemas of what the HTTP API takes and gives: data, and nothing else.

They stand in ``/openapi.json`` under these names. What is sent to us is checked by them; what we send is
held against them by tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from toolcrib.dialects import DIALECTS
from toolcrib.doors._routes import shape
from toolcrib.errors import Kind
from toolcrib.journal.index import MARK
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import FORMATS, TIMEOUT_S_MAX, ApprovalState, Effect, Role, Severity, Trust
from toolcrib.trust.approvals import TEXT_CHARS_MAX, Answer

NAME_CHARS_MAX: Final = 512
MESSAGE_CHARS_MAX: Final = 100_000
PAGE_MAX: Final = 1000
PAGE: Final = 100
WAIT_S_MAX: Final = 3600.0
_PLAIN: Final = "^[^\\u0000-\\u001f\\u007f]*$"
"""Texts that are kept or recorded: no control characters."""
_LINES: Final = "^[^\\u0000]*$"


def record(members: JsonObject, *, optional: tuple[str, ...] = (), more: bool = False) -> JsonObject:
    """An object with these members, and no others unless said."""
    return {
        "type": "object",
        "properties": members,
        "required": [name for name in members if name not in optional],
        "additionalProperties": more,
    }


def listed(items: JsonValue) -> JsonObject:
    return {"type": "array", "items": items}


def one_of(values: Iterable[str]) -> JsonObject:
    return {"type": "string", "enum": [str(value) for value in values]}


def nullable(schema: JsonObject) -> JsonObject:
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


TEXT: Final[JsonObject] = {"type": "string"}
COUNT: Final[JsonObject] = {"type": "integer", "minimum": 0}
NUMBER: Final[JsonObject] = {"type": "number"}
FLAG: Final[JsonObject] = {"type": "boolean"}
ANY: Final[JsonObject] = {}
OBJECT: Final[JsonObject] = {"type": "object"}
TEXT_OR_NULL: Final = nullable(TEXT)
NUMBER_OR_NULL: Final = nullable(NUMBER)
NAME: Final[JsonObject] = {
    "type": "string",
    "minLength": 1,
    "maxLength": NAME_CHARS_MAX,
    "pattern": "^[^\\u0000-\\u001f\\u007f\\ufffd\\\\]*$",
    "not": {"pattern": "(^|/)\\.\\.?(/|$)"},
    "examples": ["get_time", "rye:text/outline-markdown"],
}
CALL_ID: Final[JsonObject] = {"type": "string", "pattern": "^[0-9a-z]{1,64}$"}
APPROVAL_ID: Final[JsonObject] = {"type": "string", "pattern": "^[0-9a-z]{4,64}$"}
PAGE_SIZE: Final[JsonObject] = {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE}
TOOL_CURSOR: Final[JsonObject] = {"type": "string", "pattern": "^(0|[1-9][0-9]{0,8})$"}
AUDIT_CURSOR: Final[JsonObject] = {"type": "string", "pattern": MARK, "maxLength": 150}
MOMENT: Final[JsonObject] = {
    "type": "string",
    "pattern": (
        "^(20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
        "(T([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\\.[0-9]{1,6})?)?Z?)?|[1-9][0-9]{0,5}[smhd])$"
    ),
    "examples": ["24h", "2026-01-31", "2026-01-31T12:00:00Z"],
}
FILTER: Final[JsonObject] = {
    "type": "string", "minLength": 1, "maxLength": NAME_CHARS_MAX, "pattern": _PLAIN,
}  # fmt: skip
DIALECT: Final = one_of(list(DIALECTS))
FORMAT: Final = one_of(FORMATS)
EFFECT: Final = one_of(Effect)
TRUST: Final = one_of(Trust)
MESSAGE: Final[JsonObject] = {"type": "string", "maxLength": MESSAGE_CHARS_MAX}
QUERY_MESSAGE: Final[JsonObject] = {"type": "string", "maxLength": 4000}
"""Longer ones do not fit into a query; POST /v1/select takes them."""
LIMIT: Final[JsonObject] = {"type": "integer", "minimum": 1, "maximum": 100_000}
OUTCOME: Final = one_of(["ok", "failed", *Kind])
WHAT: Final = one_of(["begin", "end", "run", "answer", "approved", "switch"])

_DURATION: Final[JsonObject] = {
    "type": "number", "exclusiveMinimum": 0, "maximum": TIMEOUT_S_MAX,
}  # fmt: skip
_REASON: Final[JsonObject] = {"type": "string", "maxLength": TEXT_CHARS_MAX, "pattern": _LINES}

CALL_BODY: Final = record(
    {
        "arguments": {**OBJECT, "description": "What the tool is handed; checked against its own schema."},
        "context": {
            **OBJECT,
            "description": "The call's context. It comes from the host, so it needs the right `admin`.",
        },
        "timeout_s": {**_DURATION, "description": "Stop the call after so long; wins over the tool's own."},
        "dry_run": {**FLAG, "description": "Find, check and decide; run nothing. Recorded all the same."},
        "idempotency_key": {
            "type": "string", "minLength": 1, "maxLength": 200, "pattern": _PLAIN,
            "description": "Calls with the same one run once; later ones get the first one's result.",
        },
        "approval_wait_s": {
            "type": "number", "minimum": 0, "maximum": WAIT_S_MAX,
            "description": "So long to wait for a person, should a rule ask. Also `Prefer: wait=N`.",
        },
    },
    optional=("arguments", "context", "timeout_s", "dry_run", "idempotency_key", "approval_wait_s"),
)  # fmt: skip
SELECT_BODY: Final = record(
    {
        "message": MESSAGE,
        "context": {**OBJECT, "description": "What the groups' context checks are asked about."},
        "limit": LIMIT,
        "explain": {**FLAG, "description": "Also say why the others were left out."},
    },
    optional=("context", "limit", "explain"),
)
ANSWER_BODY: Final = record(
    {
        "decision": one_of(Answer),
        "arguments": {**OBJECT, "description": "What the call runs with instead; with `approve` only."},
        "because": {**_REASON, "description": "Why, for the record; a refused model is told."},
        "for_s": {
            "type": "number", "exclusiveMinimum": 0, "maximum": 7 * 86_400,
            "description": "Let every call of the tool by this caller run for so long.",
        },
    },
    optional=("arguments", "because", "for_s"),
)  # fmt: skip
EXPLAIN_BODY: Final = record(
    {"arguments": {**OBJECT, "description": "Of the call to explain; left out: the tool as such."}},
    optional=("arguments",),
)
DISABLE_BODY: Final = record(
    {
        "for_s": {"type": "number", "exclusiveMinimum": 0, "maximum": 3650 * 86_400},
        "reason": {**_REASON, "maxLength": 500, "description": "What callers are told."},
    },
    optional=("for_s", "reason"),
)
ENABLE_BODY: Final = record({})

_RULED: Final[JsonObject] = {"rule": TEXT_OR_NULL, "because": TEXT}
_TOOL_MEMBERS: Final[JsonObject] = {
    "name": TEXT,
    "key": TEXT,
    "format": FORMAT,
    "description": TEXT,
    "version": TEXT_OR_NULL,
    "effect": EFFECT,
    "effect_from": TEXT,
    "trust": nullable(TRUST),
    "path": TEXT,
    "pointer": TEXT_OR_NULL,
    "role": one_of(Role),
    "deprecated": FLAG,
}
_CHOSEN: Final[JsonObject] = {"score": NUMBER_OR_NULL, "because": TEXT}
_RECORDS: Final = listed(shape("AuditRecord"))

SHAPES: Final[dict[str, JsonObject]] = {
    "Problem": {
        **record(
            {
                "type": TEXT,
                "title": TEXT,
                "status": {"type": "integer", "minimum": 400, "maximum": 599},
                "detail": TEXT,
                "hint": TEXT_OR_NULL,
            },
            optional=("hint",),
            more=True,
        ),
        "description": "RFC 9457: a request that never became a call.",
    },
    "ToolRow": record({**_TOOL_MEMBERS, **_CHOSEN}, optional=("score", "because")),
    "ToolPage": record(
        {
            "tools": listed({}),
            "next": TEXT_OR_NULL,
            "note": TEXT,
            "left_out": listed(record({"tool": TEXT, "because": TEXT})),
            "losses": listed(record({"tool": TEXT, "pointer": TEXT, "keyword": TEXT, "what": TEXT})),
        },
        optional=("note", "left_out", "losses"),
    ),
    "Tool": record(
        {
            **_TOOL_MEMBERS,
            "blocked_by": TEXT_OR_NULL,
            "line": nullable(COUNT),
            "scope": ANY,
            "spoken": TEXT,
            "aliases": listed(TEXT),
            "input_schema": ANY,
            "output_schema": ANY,
            "schema_form": TEXT,
            "invocation": OBJECT,
            "intake": OBJECT,
            "reply": TEXT,
            "needs": OBJECT,
            "selection": nullable(OBJECT),
            "retry": ANY,
            "chain": ANY,
            "notes": OBJECT,
            "enabled": FLAG,
        }
    ),
    "Result": record(
        {
            "call_id": TEXT,
            "key": TEXT,
            "ok": FLAG,
            "content": TEXT,
            "blocks": listed(OBJECT),
            "data": ANY,
            "error": nullable(
                record({"kind": one_of(Kind), "message": TEXT, "hint": TEXT_OR_NULL, "details": ANY})
            ),
            "spent": record({"duration_ms": NUMBER, "output_bytes": COUNT, "truncated": FLAG}),
            "isolation": listed(TEXT),
            "notes": listed(TEXT),
        }
    ),
    "Choice": record({"name": TEXT, "key": TEXT, **_CHOSEN}),
    "Selection": {
        "anyOf": [
            listed(shape("Choice")),
            record({"selected": listed(shape("Choice")), "left_out": listed(shape("Choice")), "note": TEXT}),
        ]
    },
    "Skills": record(
        {
            "context_mode": one_of(("full", "read_on_demand")),
            "instructions": TEXT,
            "skills": listed(
                record({"name": TEXT, "description": TEXT, "text": TEXT, "withheld": TEXT_OR_NULL})
            ),
        }
    ),
    "Problems": record(
        {
            "tools": COUNT,
            "problems": listed(
                record(
                    {
                        "code": TEXT,
                        "severity": one_of(Severity),
                        "path": TEXT,
                        "pointer": TEXT_OR_NULL,
                        "line": nullable({"type": "integer"}),
                        "message": TEXT,
                        "hint": TEXT_OR_NULL,
                    }
                )
            ),
        }
    ),
    "AuditRecord": record(
        {"segment": TEXT, "number": COUNT, "time": TEXT, "what": TEXT, "ts": NUMBER, "call": TEXT}, more=True
    ),
    "AuditPage": record({"records": _RECORDS, "next": TEXT_OR_NULL}),
    "AuditCall": record({"call": TEXT, "status": TEXT, "records": _RECORDS}),
    "Verdict": record(
        {
            "ok": FLAG,
            "records": COUNT,
            "first_bad": nullable(record({"segment": TEXT, "record": COUNT, "why": TEXT})),
            "unsigned": COUNT,
            "torn": listed(TEXT),
            "former": listed(TEXT),
        }
    ),
    "Stats": record(
        {
            "events": COUNT,
            "calls": COUNT,
            "failed": COUNT,
            "median_ms": NUMBER_OR_NULL,
            "kinds": {"type": "object", "additionalProperties": COUNT},
            "cost": {"type": "object", "additionalProperties": NUMBER},
            "interrupted": COUNT,
            "tools": listed(
                record(
                    {
                        "key": TEXT,
                        "calls": COUNT,
                        "failed": COUNT,
                        "median_ms": NUMBER,
                        "slowest_ms": NUMBER,
                        "latency": TEXT_OR_NULL,
                        "too_slow": FLAG,
                    }
                )
            ),
            "window_s": NUMBER,
            "bucket_s": NUMBER,
            "buckets": listed(
                record(
                    {
                        "start": TEXT,
                        "calls": COUNT,
                        "failed": COUNT,
                        "p50_ms": NUMBER_OR_NULL,
                        "p95_ms": NUMBER_OR_NULL,
                        "p99_ms": NUMBER_OR_NULL,
                    }
                )
            ),
        }
    ),
    "Approval": record(
        {
            "id": TEXT,
            "key": TEXT,
            "arguments": OBJECT,
            "caller": TEXT,
            "asked_at": TEXT,
            "because": TEXT,
            "state": one_of(ApprovalState),
            "question": TEXT,
            "call_id": TEXT,
            "until": TEXT,
            "standing": FLAG,
            "edited": nullable(OBJECT),
            "answer": nullable(record({"by": TEXT, "at": TEXT, "because": TEXT_OR_NULL})),
            "used_by": TEXT_OR_NULL,
        }
    ),
    "ResultPart": record(
        {"call": TEXT, "bytes": COUNT, "offset": COUNT, "text": TEXT, "next_offset": nullable(COUNT)}
    ),
    "Explanation": record(
        {
            "key": TEXT,
            "caller": TEXT,
            "effect": EFFECT,
            "effect_from": TEXT,
            "decision": one_of(["allow", "ask", "deny"]),
            **_RULED,
            "permit": nullable(OBJECT),
            "message": TEXT_OR_NULL,
            "hint": TEXT_OR_NULL,
            "budgets": listed(
                record(
                    {
                        **_RULED,
                        "calls_left": nullable(COUNT),
                        "cost_left": NUMBER_OR_NULL,
                        "within_s": NUMBER,
                        "again_s": NUMBER_OR_NULL,
                    }
                )
            ),
            "approvals": listed(
                record(
                    {
                        "id": TEXT,
                        "state": one_of(ApprovalState),
                        "until": NUMBER,
                        "any_arguments": FLAG,
                        "edited": FLAG,
                        "answered_by": TEXT_OR_NULL,
                    }
                )
            ),
            "depends": listed(record({**_RULED, "decision": TEXT})),
            "notes": listed(TEXT),
        }
    ),
    "Switched": record({"tool": TEXT, "enabled": FLAG, "until": TEXT_OR_NULL, "reason": TEXT_OR_NULL}),
    "Health": {**record({"status": TEXT}, more=True), "description": "How the server stands."},
}
