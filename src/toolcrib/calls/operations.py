"""A call of an API's operation as one HTTP request: every argument where and how its ``Placed`` says. Pure.

Arguments are data and stay data: a path argument never leaves its segment, a query value never becomes
another parameter, a header value never another header, a field never another part. What cannot be written
without changing its meaning is refused. Nothing here connects, and nothing looks up a secret: the runtime
adds the credentials.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import quote, unquote

from toolcrib.calls.requests import Outgoing
from toolcrib.errors import Kind
from toolcrib.jsontext import JsonObject, JsonValue, compact
from toolcrib.model import URL_CHARS_MAX, CallHttp, Place, Placed, ToolError

BODY_BYTES_MAX: Final = 32 << 20
PAIRS_MAX: Final = 10_000
"""How many fields one argument may become."""
DEPTH_MAX: Final = 32

_MARK: Final = re.compile(r"\{([^{}]*)\}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?|")
_RESERVED: Final = ":/?@!$'()*,;"
"""What ``allowReserved`` leaves as it is. Attack: with ``&``, ``=``, ``+`` and ``#`` among them a value would
become further parameters."""
_NOT_ARGUMENTS: Final = frozenset(
    {
        "authorization", "connection", "content-encoding", "content-length", "content-type", "cookie",
        "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
_DELIMITERS: Final = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}
_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_BODY_REQUIRED: Final = b'"body":"required"'

Pair = tuple[str, str]


class _Refused(Exception):
    """An argument that cannot be sent as it is."""

    def __init__(self, argument: str, message: str, kind: Kind = Kind.INVALID_ARGUMENTS) -> None:
        super().__init__(message)
        self.argument = argument
        self.message = message
        self.kind = kind


def operation_request(call: CallHttp, arguments: JsonObject) -> Outgoing | ToolError:
    """The request for checked arguments, or why there is none. Never raises, whatever the arguments."""
    if any(not credential.secret for credential in call.credentials):
        return ToolError(
            kind=Kind.UNAVAILABLE,
            message="the operation needs authentication, and no secret is configured for it",
            hint="the operator names one on the source of the API (`secret`)",
        )
    try:
        return _Request(call, arguments).outgoing()
    except _Refused as refused:
        where = f"{refused.argument}: " if refused.argument else ""
        return ToolError(kind=refused.kind, message=where + refused.message)


class _Request:
    """One request, put together."""

    def __init__(self, call: CallHttp, arguments: JsonObject) -> None:
        self.call = call
        self.arguments = arguments
        self.placed = call.placed or ()

    def outgoing(self) -> Outgoing:
        unknown = self.arguments.keys() - {placed.argument for placed in self.placed}
        if unknown:
            raise _Refused(min(unknown), "the operation has no such argument")
        url = self.path()
        query = "&".join(f"{name}={value}" for name, value in self.query())
        if query:
            url = f"{url}?{query}"
        if len(url) > URL_CHARS_MAX:
            raise _Refused(
                "", f"the address would have more than {URL_CHARS_MAX:,} characters", Kind.TOO_LARGE
            )
        headers = [*self.call.headers, *self.headers()]
        body = self.body()
        content = None
        if body is not None:
            content, media_type = body
            headers.append(("Content-Type", media_type))
            if len(content) > BODY_BYTES_MAX:
                raise _Refused("", f"the body would have more than {BODY_BYTES_MAX:,} bytes", Kind.TOO_LARGE)
        return Outgoing(method=self.call.method, url=url, headers=tuple(headers), body=content)

    def given(self, *places: Place) -> Iterator[tuple[Placed, JsonValue]]:
        """The arguments that go there; one that is null is not sent where there is no way to say null."""
        for placed in self.placed:
            if placed.place in places and placed.argument in self.arguments:
                value = self.arguments[placed.argument]
                says_null = placed.place in (Place.MEMBER, Place.BODY) or placed.media_type is not None
                if value is not None or says_null:
                    yield placed, value

    # -- the path -------------------------------------------------------------------------------------------

    def path(self) -> str:
        """The address with its marks filled.

        Attack: ``../admin``, ``%2F..``, ``?x=`` or ``#`` as a path argument, to reach another operation.
        """
        written = {placed.name: _segment(placed, value) for placed, value in self.given(Place.PATH)}
        names = {placed.name: placed.argument for placed in self.placed if placed.place is Place.PATH}

        def fill(mark: re.Match[str]) -> str:
            if mark[1] not in written:
                raise _Refused(names.get(mark[1], mark[1]), "the path needs it")
            return written[mark[1]]

        if not self.call.url.isascii():
            raise _Refused("", "the address of the operation is not one", Kind.UNAVAILABLE)
        start = self.call.url.find("/", self.call.url.find("://") + 3)
        if start < 0:
            return self.call.url
        segments = []
        for template in self.call.url[start:].split("/"):
            segment = _MARK.sub(fill, template)
            if segment != template and unquote(segment) in (".", ".."):
                argument = names.get(_MARK.findall(template)[0], "")
                raise _Refused(argument, "must not make a path's part of dots alone")
            segments.append(segment)
        return self.call.url[:start] + "/".join(segments)

    # -- the query ------------------------------------------------------------------------------------------

    def query(self) -> Iterator[Pair]:
        owned = {placed.name for placed in self.placed if placed.place is Place.QUERY}
        owned |= {one.name for one in self.call.credentials if one.place is Place.QUERY}
        for placed, value in self.given(Place.QUERY):
            _must_not_take(placed, value, owned)
            yield from _pairs(placed, value)

    # -- headers and cookies --------------------------------------------------------------------------------

    def headers(self) -> Iterator[Pair]:
        fixed = {name.lower() for name, _ in self.call.headers}
        fixed |= {one.name.lower() for one in self.call.credentials if one.place is Place.HEADER}
        for placed, value in self.given(Place.HEADER):
            name = placed.name
            if name.lower() in fixed or name.lower() in _NOT_ARGUMENTS or not _TOKEN.fullmatch(name):
                # Attack: an argument that says who sends the request, where to, or where it ends.
                raise _Refused(placed.argument, f'the header "{name[:60]}" is not set by arguments')
            written = _simple(placed, value, _in_header)
            if written is not None:
                if not _HEADER_VALUE.fullmatch(written):
                    # Attack: a line break in a value begins another header, or another request.
                    message = "a header takes printable ASCII without blanks around it"
                    raise _Refused(placed.argument, message)
                yield name, written
        cookies = [pair for placed, value in self.given(Place.COOKIE) for pair in _cookies(placed, value)]
        if cookies:
            yield "Cookie", "; ".join(f"{name}={value}" for name, value in cookies)

    # -- the body -------------------------------------------------------------------------------------------

    def body(self) -> tuple[bytes, str] | None:
        kind = self.call.media_type
        whole = list(self.given(Place.BODY))
        members = list(self.given(Place.MEMBER))
        if whole:
            placed, value = whole[0]
            if kind in (_FORM, _MULTIPART):
                if not isinstance(value, dict):
                    raise _Refused(placed.argument, "the body of a form must be an object")
                fields = [
                    (Placed(argument=placed.argument, place=Place.MEMBER, name=name, style="field"), item)
                    for name, item in value.items()
                ]
                return _form(fields) if kind == _FORM else _multipart(fields)
            return _content(placed, value, kind), kind
        is_required = _BODY_REQUIRED in self.call.settings
        if not members and not (is_required and any(one.place is Place.MEMBER for one in self.placed)):
            return None
        if kind == _FORM:
            owned = {placed.name for placed in self.placed if placed.place is Place.MEMBER}
            for placed, value in members:
                _must_not_take(placed, value, owned)
            return _form(members)
        if kind == _MULTIPART:
            return _multipart(members)
        return _json({placed.name: value for placed, value in members}, ""), kind


# -- values as text -----------------------------------------------------------------------------------------


def _text(value: JsonValue, argument: str) -> str:
    """A value as it stands in an address or a field; what is no plain value, as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return _json(value, argument).decode("utf-8")


def _json(value: JsonValue, argument: str) -> bytes:
    try:
        made = compact(value)
        made.decode("utf-8")
    except (TypeError, ValueError, RecursionError):
        raise _Refused(argument, "it cannot be written as JSON") from None
    return made


def _encoded(text: str, argument: str, *, safe: str = "") -> str:
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError:
        raise _Refused(argument, "it holds a lone surrogate, which is no character") from None


def _items(value: list[JsonValue]) -> list[JsonValue]:
    return [item for item in value if item is not None]


def _members(value: JsonObject) -> list[tuple[str, JsonValue]]:
    return [(key, item) for key, item in value.items() if item is not None]


def _simple(placed: Placed, value: JsonValue, write: Callable[..., str]) -> str | None:
    """The style ``simple``: items by commas. None where there is nothing to say."""
    whom = placed.argument
    if placed.media_type is not None:
        is_text = isinstance(value, str) and placed.media_type.startswith("text/")
        return write(str(value) if is_text else _json(value, whom).decode("utf-8"), whom, alone=True)
    if isinstance(value, list):
        items = [write(_text(item, whom), whom, alone=False) for item in _items(value)]
        return ",".join(items) if items else None
    if isinstance(value, dict):
        between = "=" if placed.explode else ","
        pairs = [
            f"{write(key, whom, alone=False)}{between}{write(_text(item, whom), whom, alone=False)}"
            for key, item in _members(value)
        ]
        return ",".join(pairs) if pairs else None
    return write(_text(value, whom), whom, alone=True)


def _in_path(text: str, argument: str, *, alone: bool) -> str:
    return _encoded(text, argument)


def _in_header(text: str, argument: str, *, alone: bool) -> str:
    if not alone and ("," in text or "=" in text or not text or text != text.strip()):
        message = "in a header, an item of a list must not be empty or hold a comma, = or blanks around it"
        raise _Refused(argument, message)
    return text


# -- the path -----------------------------------------------------------------------------------------------


def _segment(placed: Placed, value: JsonValue) -> str:
    """A path argument, percent-encoded to the last reserved character."""
    whom = placed.argument
    parts = _items(value) if isinstance(value, list) else [value]
    texts = [_text(part, whom) for part in parts if not isinstance(part, (dict, list))]
    texts += [str(text) for part in parts if isinstance(part, dict) for pair in part.items() for text in pair]
    for text in texts:
        if ".." in re.split(r"[/\\]", unquote(text)):
            # Attack: a server that decodes before it takes paths apart would go up from here.
            raise _Refused(whom, "must not have .. as a part of a path")
    bare = _simple(placed, value, _in_path)
    if not bare:
        raise _Refused(whom, "must not be empty: the path would be another one")
    if placed.media_type is not None or placed.style == "simple":
        return bare
    if placed.style == "label":
        return "." + _spread(placed, value, ".", bare)
    name = _encoded(placed.name, whom)
    if placed.explode and isinstance(value, list):
        return "".join(f";{name}={_encoded(_text(item, whom), whom)}" for item in _items(value))
    if placed.explode and isinstance(value, dict):
        return "".join(
            f";{_encoded(key, whom)}={_encoded(_text(item, whom), whom)}" for key, item in _members(value)
        )
    return f";{name}={bare}"


def _spread(placed: Placed, value: JsonValue, delimiter: str, bare: str) -> str:
    """A list or object of the style ``label``; spread ones are parted by dots instead of commas."""
    if not placed.explode or not isinstance(value, (list, dict)):
        return bare
    whom = placed.argument
    texts = [_text(item, whom) for item in _items(value)] if isinstance(value, list) else []
    if isinstance(value, dict):
        pairs = _members(value)
        texts = [text for key, item in pairs for text in (key, _text(item, whom))]
    if any("." in text for text in texts):
        raise _Refused(whom, "an item must not hold a dot, which parts the items")
    return bare.replace(",", delimiter)


# -- the query and forms ------------------------------------------------------------------------------------


def _pairs(placed: Placed, value: JsonValue) -> Iterator[Pair]:
    """An argument as the names and values of a query or a form, percent-encoded."""
    whom = placed.argument
    safe = _RESERVED if placed.reserved else ""
    name = _encoded(placed.name, whom)

    def write(item: JsonValue) -> str:
        return _encoded(_text(item, whom), whom, safe=safe)

    if placed.media_type is not None:
        is_text = isinstance(value, str) and placed.media_type.startswith("text/")
        text = str(value) if is_text else _json(value, whom).decode("utf-8")
        yield name, _encoded(text, whom)
    elif placed.style == "deepObject":
        for steps, item in _leaves(value, (), whom):
            yield name + "".join(f"%5B{_encoded(step, whom)}%5D" for step in steps), write(item)
    elif isinstance(value, list):
        items = _items(value)
        if len(items) > PAIRS_MAX:
            raise _Refused(whom, f"more than {PAIRS_MAX:,} items")
        if placed.explode:
            yield from ((name, write(item)) for item in items)
        elif items:
            yield (
                name,
                _DELIMITERS.get(placed.style, ",").join(_delimited(placed, item, safe) for item in items),
            )
    elif isinstance(value, dict) and placed.style != "field":
        members = _members(value)
        if placed.explode:
            yield from ((_encoded(key, whom), write(item)) for key, item in members)
        elif members:
            texts = [part for pair in members for part in pair]
            yield (
                name,
                _DELIMITERS.get(placed.style, ",").join(_delimited(placed, one, safe) for one in texts),
            )
    else:
        yield name, write(value)


def _must_not_take(placed: Placed, value: JsonValue, owned: set[str]) -> None:
    """Attack: members that spread into a query or a form and take the place of another parameter, or of the
    key that authenticates."""
    spreads = placed.style == "form" and placed.explode and placed.media_type is None
    taken = (owned - {placed.name}) & value.keys() if spreads and isinstance(value, dict) else None
    if taken:
        raise _Refused(placed.argument, f'a member must not be called "{min(taken)[:60]}"')


def _delimited(placed: Placed, item: JsonValue, safe: str) -> str:
    """An item of a list that is one value. Its delimiter is written in a way that an item's own is not."""
    whom = placed.argument
    text = _text(item, whom)
    own = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(placed.style)
    if own is not None and own in text:
        raise _Refused(whom, f'an item must not hold "{own}", which parts the items')
    return _encoded(text, whom, safe=safe.replace(",", ""))


def _leaves(
    value: JsonValue, steps: tuple[str, ...], argument: str
) -> Iterator[tuple[tuple[str, ...], JsonValue]]:
    """The plain values of an object, each with the way to it. Attack: nesting without an end."""
    stack: list[tuple[tuple[str, ...], JsonValue]] = [(steps, value)]
    count = 0
    while stack:
        way, item = stack.pop()
        count += 1
        if count > PAIRS_MAX or len(way) > DEPTH_MAX:
            raise _Refused(argument, f"more than {PAIRS_MAX:,} values, or {DEPTH_MAX} levels")
        if isinstance(item, dict):
            if any("[" in key or "]" in key for key in item):
                # Attack: a name with brackets that reads as another place.
                raise _Refused(argument, "a name must not hold brackets")
            stack += [((*way, key), one) for key, one in reversed(_members(item))]
        elif isinstance(item, list):
            stack += [((*way, str(number)), one) for number, one in reversed([*enumerate(_items(item))])]
        elif item is not None:
            yield way, item


def _form(fields: Sequence[tuple[Placed, JsonValue]]) -> tuple[bytes, str]:
    pairs = [pair for placed, value in fields for pair in _fields(placed, value)]
    return "&".join(f"{name}={value}" for name, value in pairs).encode("ascii"), _FORM


def _fields(placed: Placed, value: JsonValue) -> Iterable[Pair]:
    if value is None:
        # A form has no null: an empty value is how it unsets.
        return [(_encoded(placed.name, placed.argument), "")]
    return _pairs(placed, value)


def _cookies(placed: Placed, value: JsonValue) -> Iterator[Pair]:
    if not _TOKEN.fullmatch(placed.name):
        raise _Refused(placed.argument, "it cannot be the name of a cookie")
    for name, text in _pairs(placed, value):
        # Attack: members that spread into further cookies, such as the session's.
        if name != _encoded(placed.name, placed.argument):
            raise _Refused(placed.argument, "an object cannot be spread over cookies")
        yield placed.name, text


# -- bodies -------------------------------------------------------------------------------------------------


def _content(placed: Placed, value: JsonValue, media_type: str) -> bytes:
    if media_type == "application/json" or media_type.endswith("+json"):
        return _json(value, placed.argument)
    if not isinstance(value, str):
        raise _Refused(placed.argument, "must be text")
    if media_type.startswith("text/"):
        return _utf8(value, placed.argument)
    return _bytes(value, placed.argument)


def _utf8(text: str, argument: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise _Refused(argument, "it holds a lone surrogate, which is no character") from None


def _bytes(value: JsonValue, argument: str) -> bytes:
    try:
        return base64.b64decode(str(value), validate=True)
    except ValueError:
        raise _Refused(argument, "must be base64: its bytes are sent") from None


def _multipart(fields: Sequence[tuple[Placed, JsonValue]]) -> tuple[bytes, str]:
    """A form in parts. The same arguments always give the same bytes."""
    parts: list[tuple[bytes, bytes]] = []
    for placed, value in fields:
        whom = placed.argument
        for item in _items(value) if isinstance(value, list) and not _is_json(placed) else [value]:
            if item is None:
                continue
            # Attack: quotes and line breaks in a name would write headers of their own.
            name = re.sub(r'["\r\n]', lambda found: f"%{ord(found[0]):02X}", placed.name)
            head = f'Content-Disposition: form-data; name="{name}"'
            if (
                placed.media_type is not None
                and not placed.media_type.startswith("text/")
                and not _is_json(placed)
            ):
                content = _bytes(item, whom)
                head += f'; filename="{name}"\r\nContent-Type: {placed.media_type}'
            elif isinstance(item, (dict, list)) or _is_json(placed):
                content = _json(item, whom)
                head += f"\r\nContent-Type: {placed.media_type or 'application/json'}"
            else:
                content = _utf8(_text(item, whom), whom)
                head += f"\r\nContent-Type: {placed.media_type}" if placed.media_type else ""
            parts.append((_utf8(head, whom), content))
        if len(parts) > PAIRS_MAX:
            raise _Refused(whom, f"more than {PAIRS_MAX:,} parts")
    boundary = _boundary(parts)
    made = b"".join(b"--%s\r\n%s\r\n\r\n%s\r\n" % (boundary, head, content) for head, content in parts)
    return made + b"--%s--\r\n" % boundary, f"{_MULTIPART}; boundary={boundary.decode('ascii')}"


def _is_json(placed: Placed) -> bool:
    kind = placed.media_type
    return kind is not None and (kind == "application/json" or kind.endswith("+json"))


def _boundary(parts: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A line that stands in no part. Attack: a value that ends its part and begins another."""
    digest = hashlib.sha256()
    for head, content in parts:
        digest.update(b"%d %d " % (len(head), len(content)) + head + content)
    while any(
        digest.hexdigest().encode() in content or digest.hexdigest().encode() in head
        for head, content in parts
    ):
        digest.update(b"again")
    return digest.hexdigest().encode("ascii")
