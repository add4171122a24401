"""Tools that are an HTTP request: the author's method, URL and headers, the caller's arguments.

The order of one run: the permit, what the author configured, the request, its credentials, the exchange.
``calls/requests.py`` and ``calls/operations.py`` say what the request is, ``_http_client.py`` sends it.
Values of credentials are looked up here, go into the request and nowhere else.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote

from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.bound import BoundTool
from toolcrib.calls import operations, requests
from toolcrib.calls.replies import grant_lines
from toolcrib.calls.requests import Outgoing
from toolcrib.errors import Kind
from toolcrib.journal.redaction import Cleaning, is_secret_name, secret_parts
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import (
    CallHttp,
    End,
    Ending,
    Permit,
    Place,
    Run,
    Tool,
    ToolCall,
    ToolError,
)
from toolcrib.runtimes import Host, _prepared, project_of, vaulted, withheld
from toolcrib.runtimes._http_client import Answer, Contact, HttpClient, HttpLimits, Reach
from toolcrib.runtimes._http_request import SAFE, Request, Trouble, Unreached
from toolcrib.sandbox import Cancel
from toolcrib.trust.secrets import Withheld

TOLD_BYTES_MAX: Final = 2000
"""How much of the body of a failure is repeated."""
AGAIN_S_MAX: Final = 86_400.0
_DATE_CHARS_MAX: Final = 64
_DIGITS_MAX: Final = 9
_LAYERS: Final = ("addresses:checked",)

_ENDS: Final = {
    Trouble.REFUSED: End.DENIED,
    Trouble.MALFORMED: End.UNAVAILABLE,
    Trouble.UNREACHABLE: End.UNAVAILABLE,
    Trouble.UNTRUSTED: End.UNAVAILABLE,
    Trouble.TIMED_OUT: End.TIMED_OUT,
    Trouble.CANCELLED: End.CANCELLED,
    Trouble.LOST: End.LOST,
    Trouble.BROKEN: End.LOST,
    Trouble.TOO_LARGE: End.TOO_LARGE,
}


class HttpTools:
    """The runtime of ``CallHttp``."""

    def __init__(self, host: Host, client: HttpClient) -> None:
        self._host = host
        self._client = client

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        tool = bound.tool
        invocation = tool.invocation
        assert isinstance(invocation, CallHttp)
        if not permit.network:
            return Ending(
                end=End.DENIED,
                reason="outgoing requests are not permitted",
                hint=f"to permit them:\n{grant_lines(tool.key, ('net.http',))}",
            )
        project = project_of(tool, self._host)
        prepared = _prepared.prepare(tool, call, self._host, permit, project=project)
        if isinstance(prepared, Ending):
            return prepared
        described = prepared.http or invocation
        if described.placed is None:
            outgoing = requests.request(described, prepared.arguments)
        else:
            outgoing = operations.operation_request(described, prepared.arguments)
        if isinstance(outgoing, ToolError):
            end = End.REFUSED if outgoing.kind is Kind.INVALID_ARGUMENTS else End.UNAVAILABLE
            return Ending(end=end, reason=outgoing.message, hint=outgoing.hint)
        proofs = [entry.secret for entry in described.credentials]
        try:
            # A credential's name stands in a configuration that counts: naming it is the grant.
            own = [name for name in proofs if name in permit.env or "*" in permit.env]
            vault = self._host.secrets.values(
                dict.fromkeys((*vaulted(self._host, tool, permit), *self._host.secrets.candidates(own, own)))
            )
        except Withheld as no:
            return withheld(no)
        proven = self._proven(tool, described, outgoing, permit, vault)
        if isinstance(proven, Ending):
            return proven
        names = tuple(dict.fromkeys((*tool.needs.env, *proofs)))
        telling = [*proofs, *filter(is_secret_name, tool.needs.env)]
        known = {name: value for name in telling if (value := self._value(name, permit, vault))}
        cleaning = Cleaning({**secret_parts(prepared.env), **known, **vault})
        ending = self._sent(tool, proven, permit, cancel, cleaning)
        runs = tuple(replace(run, env_names=names) for run in ending.runs)
        notes = (*prepared.notes, *ending.notes, *cleaning.notes())
        return replace(ending, runs=runs, notes=notes, layers=_LAYERS)

    def close(self) -> None:
        self._client.close()

    # -- credentials ----------------------------------------------------------------------------------------

    def _value(self, name: str, permit: Permit, vault: Mapping[str, str]) -> str | None:
        """A secret of the vault, or a variable of the host, where the permit hands it over."""
        granted = name in permit.env or "*" in permit.env
        return vault.get(name) or self._host.variables.get(name) or None if granted else None

    def _proven(
        self, tool: Tool, call: CallHttp, outgoing: Outgoing, permit: Permit, vault: Mapping[str, str]
    ) -> Outgoing | Ending:
        """The request with its credentials."""
        headers, cookies, query = list(outgoing.headers), [], []
        for credential in call.credentials:
            value = self._value(credential.secret, permit, vault)
            if value is None:
                granted = credential.secret in permit.env or "*" in permit.env
                name = credential.secret
                return Ending(
                    end=End.UNAVAILABLE,
                    reason=f"the credential {name} is missing",
                    hint=f"toolcrib secret set {name}, or set it in the environment of the host"
                    if granted
                    else f"hand it over:\n{grant_lines(tool.key, (name,), of='env')}",
                )
            if credential.prefix == "Basic " and ":" in value:
                value = base64.b64encode(value.encode("utf-8")).decode("ascii")
            value = f"{credential.prefix}{value}"
            match credential.place:
                case Place.HEADER:
                    headers.append((credential.name, value))
                case Place.COOKIE:
                    cookies.append(f"{credential.name}={quote(value, safe='')}")
                case _:
                    query.append(f"{quote(credential.name, safe='')}={quote(value, safe='')}")
        if cookies:
            own = [value for name, value in headers if name.lower() == "cookie"]
            headers = [pair for pair in headers if pair[0].lower() != "cookie"]
            headers.append(("Cookie", "; ".join([*own, *cookies])))
        url = requests.added_query(outgoing.url, "&".join(query))
        return replace(outgoing, url=url, headers=tuple(headers))

    # -- the exchange ---------------------------------------------------------------------------------------

    def _sent(
        self, tool: Tool, outgoing: Outgoing, permit: Permit, cancel: Cancel, cleaning: Cleaning
    ) -> Ending:
        request = Request(
            method=outgoing.method, url=outgoing.url, headers=outgoing.headers, body=outgoing.body
        )
        try:
            answer = self._client.send(
                request,
                reach=Reach(private=permit.private),
                limits=HttpLimits(body_bytes_max=permit.limits.stdout_bytes_max),
                deadline=time.monotonic() + permit.limits.timeout_s,
                cancel=cancel,
            )
        except Unreached as unreached:
            return _unreached(tool, unreached, permit, cleaning)
        answer = _cleaned(answer, cleaning)
        runs = _runs(answer.contacts, is_cut=answer.truncated)
        received_bytes = answer.contacts[-1].received_bytes
        if answer.status >= 300:
            return replace(_failure(answer), runs=runs, stdout_bytes=received_bytes)
        if answer.truncated:
            over = permit.limits.stdout_bytes_max + 1
            return Ending(end=End.TOO_LARGE, stdout_bytes=max(received_bytes, over), runs=runs)
        value, notes = _value_of(answer)
        return Ending(
            end=End.RETURNED,
            value=value,
            kind_of_value=type(value).__name__,
            stdout_bytes=received_bytes,
            runs=runs,
            notes=notes,
        )


def _unreached(tool: Tool, unreached: Unreached, permit: Permit, cleaning: Cleaning) -> Ending:
    end = _ENDS[unreached.kind]
    hint = unreached.hint
    is_safe = bool(unreached.contacts) and unreached.contacts[0].method in SAFE
    if unreached.sent and not is_safe and end in (End.DENIED, End.UNAVAILABLE):
        end = End.LOST  # it was processed, and only its answer led where we do not go
    if unreached.kind is Trouble.BROKEN and is_safe:
        end = End.RAISED  # nothing was changed, so nothing about it is unknown
    if unreached.kind is Trouble.REFUSED and hint is not None:
        hint = f"{hint}:\n{grant_lines(tool.key, ('net.http', 'net.private'))}"
    if unreached.kind is Trouble.TIMED_OUT and not unreached.sent:
        hint = hint or "nothing was sent: the host did not answer in time"
    limit = permit.limits.stdout_bytes_max
    return Ending(
        end=end,
        reason=cleaning.text(unreached.why),
        hint=hint,
        again_s=0.0 if unreached.kind is Trouble.UNREACHABLE and not unreached.sent else None,
        stdout_bytes=limit + 1 if end is End.TOO_LARGE else 0,
        runs=_runs(_cleaned_contacts(unreached.contacts, cleaning), is_cut=end is End.TOO_LARGE),
    )


def _runs(contacts: Iterable[Contact], *, is_cut: bool) -> tuple[Run, ...]:
    """What the record says: who was asked, and how much came. No path, no query, no header, no body."""
    runs = []
    for contact in contacts:
        host = f"[{contact.host}]" if ":" in contact.host else contact.host
        where = f"connected to {contact.address}" if contact.address else "not connected"
        if contact.proxy:
            where = f"{where}, the proxy {contact.proxy}"
        status = f", status {contact.status}" if contact.status is not None else ", no answer"
        runs.append(
            Run(
                argv=(contact.method, f"{contact.scheme}://{host}:{contact.port}"),
                duration_ms=contact.duration_ms,
                stdout_bytes=contact.received_bytes,
                what="redirect",
                note=where + (status if contact.address else ""),
            )
        )
    if runs:
        runs[-1] = replace(runs[-1], what="call", truncated=is_cut)
    return tuple(runs)


# -- answers ------------------------------------------------------------------------------------------------


def _failure(answer: Answer) -> Ending:
    """An answer that is no success, in words that a model can act on."""
    said = f"HTTP {answer.status} {answer.reason}".rstrip()
    again_s: float | None = None
    hint = None
    if answer.status < 400:
        said = f"{said}: it leads elsewhere, and this request is not sent to another place"
        hint = "the author must name the final URL"
    elif text := answer.body[:TOLD_BYTES_MAX].decode("utf-8", "replace").strip():
        said = f"{said}: {text}{'…' if len(answer.body) > TOLD_BYTES_MAX else ''}"
    if answer.status in (429, 503):
        again_s = _again_s(answer.header("retry-after"), answer.header("date"))
        if answer.status == 429:
            again_s = again_s or 0.0
        if again_s is not None:
            hint = f"it asks to be called again in {again_s:g} s" if again_s else "call it again later"
    return Ending(end=End.RAISED, reason=said, hint=hint, again_s=again_s)


def _again_s(value: str | None, sent: str | None) -> float | None:
    """The seconds of a ``Retry-After``, which names them or a date. A date counts from the one at which the
    answer was sent, so that the server's clock need not be ours; without that, from now."""
    if value is None or not value.isascii() or len(value) > _DATE_CHARS_MAX:
        return None
    if value.isdigit():
        return min(float(value), AGAIN_S_MAX) if len(value) <= _DIGITS_MAX else None
    then, since = _date(value), _date(sent or "")
    if then is None:
        return None
    return round(min(max(then - (time.time() if since is None else since), 0.0), AGAIN_S_MAX), 3)


def _date(text: str) -> float | None:
    """A date of HTTP in seconds, or None. What it is read by raises many things for odd ones."""
    try:
        return parsedate_to_datetime(text[:_DATE_CHARS_MAX]).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _value_of(answer: Answer) -> tuple[JsonValue, tuple[str, ...]]:
    """The body as a value: JSON where it says so and is, text where it is text, else its bytes."""
    body = answer.body
    if not body:
        return None, ()
    media_type, charset = _media_type(answer.header("content-type"))
    notes: tuple[str, ...] = ()
    if media_type == "application/json" or media_type.endswith("+json"):
        parsed = jsontext.read(body)
        if parsed.defect is None and not parsed.duplicates:
            return parsed.value, ()
        notes = ("the answer says it is JSON and is not, so it is given as text",)
    try:
        return body.decode(charset or "utf-8"), notes
    except (UnicodeDecodeError, LookupError):
        if media_type.startswith("text/"):
            return body.decode("utf-8", "replace"), notes
    encoded: JsonObject = {"media_type": media_type, "base64": base64.b64encode(body).decode("ascii")}
    return encoded, notes


def _media_type(value: str | None) -> tuple[str, str | None]:
    media_type, _, rest = (value or "").lower().partition(";")
    charset = re.search(r'\bcharset="?([a-z0-9_-]+)', rest)
    return media_type.strip(), charset[1] if charset and charset[1] in _CHARSETS else None


_CHARSETS: Final = frozenset({"utf-8", "us-ascii", "iso-8859-1", "windows-1252", "utf-16"})
"""Attack: a charset that is one of Python's own codecs and does something else with the bytes."""


def _cleaned(answer: Answer, cleaning: Cleaning) -> Answer:
    """Attack: a server that repeats credentials anywhere in its answer: the status line, the content type,
    the body, the host of a redirect."""
    return replace(
        answer,
        reason=cleaning.header(answer.reason),
        headers=tuple((name, cleaning.header(value)) for name, value in answer.headers),
        body=cleaning(answer.body),
        contacts=_cleaned_contacts(answer.contacts, cleaning),
    )


def _cleaned_contacts(contacts: Iterable[Contact], cleaning: Cleaning) -> tuple[Contact, ...]:
    recording = cleaning.fresh(named=False)
    return tuple(replace(contact, host=recording.text(contact.host)) for contact in contacts)
