"""Secrets out of text. Pure.

Two nets, with one idea of what a secret is. ``Cleaning`` takes the secrets that a call was handed out of
everything that came back, in every usual spelling, before anybody sees it: model, record, console, store.
``Redaction`` is for what is recorded: values of variables whose name says that they are secret, values handed
to a call, what looks like a well-known kind of credential, and what the host's own patterns find become one
fixed marker. Names stay: a record says which
variables a tool got, never what was in them. Both are nets below the rule that values are not told at all.

Neither stops a tool that hides a value in a spelling of its own.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl, unquote, unquote_to_bytes, urlsplit

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.jsontext import JsonValue
from toolcrib.model import BASE_ENV

MARKER: Final = "***REDACTED***"
VALUE_CHARS_MIN: Final = 4
"""A shorter value would blacken every other word, and say so what it is."""

GUESSED_CHARS_MIN: Final = 8
"""Of a value that a tool was handed and that only its variable's name calls a secret: what a tool gives back
is not changed for less."""
DIGITS_MIN: Final = 6
"""Of a value that is a number: a shorter one stands in too many others."""
LINE_CHARS_MIN: Final = 16
"""Of one line of a longer secret that is looked for by itself."""
_WORDS: Final = frozenset({"true", "false", "null", "none"})
"""Values that are words of JSON, whatever their variables are called."""

_SECRET_NAME: Final = re.compile(
    r"(?:^|_)(?:KEY|KEYS|APIKEY|TOKEN|TOKENS|SECRET|SECRETS|PASS|PASSWD|PASSWORD|PASSPHRASE|PWD|CREDENTIAL|"
    r"CREDENTIALS|AUTH|COOKIE|SESSION|PAT|DSN|WEBHOOK|BEARER|SIGNATURE|PRIVATE)(?:$|_)|"
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)$",
    re.IGNORECASE,
)
_NO_SECRETS: Final = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK", "XDG_SESSION_ID", "XDG_SESSION_TYPE"})
_EXACT: Final = frozenset(name for name in BASE_ENV if not name.endswith("*")) | _NO_SECRETS
_PREFIXES: Final = tuple(name[:-1] for name in BASE_ENV if name.endswith("*"))
_CACHED_MAX: Final = 256


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return name not in _NO_SECRETS and _SECRET_NAME.search(name) is not None


def shown_url(url: str) -> str:
    """A URL as it may be told and recorded: where it leads. Attack: a key in the query or before the host,
    which whoever reads a message, the record or the cache would learn."""
    head, mark, query = url.partition("#")[0].partition("?")
    scheme, colon, rest = head.partition("://")
    authority, slash, path = rest.partition("/")
    if "@" in authority:
        authority = f"{MARKER}@{authority.rpartition('@')[2]}"
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    told = "&".join(f"{name}={MARKER}" if equals else MARKER for name, equals, _ in pairs)
    return f"{scheme}{colon}{authority}{slash}{path}{mark}{told}"


def is_worth(value: str) -> bool:
    """Whether a value is looked for."""
    if len(value) < VALUE_CHARS_MIN or value.lower() in _WORDS:
        return False
    return len(value) >= DIGITS_MIN or not value.isdecimal()


def secret_parts(variables: Mapping[str, str]) -> dict[str, str]:
    """What of variables that a tool is handed is secret: values whose names say so, and passwords in URLs."""
    found = {
        name: value
        for name, value in variables.items()
        if len(value) >= GUESSED_CHARS_MIN and is_secret_name(name)
    }
    for name, value in variables.items():
        if "://" in value and name not in found:
            for number, part in enumerate(url_secrets(value)):
                found[f"{name} {number + 1}" if number else name] = part
    return found


def url_secrets(url: str) -> Iterator[str]:
    """The parts of a URL that may be secrets: the password, and values of its query."""
    with suppress(ValueError):
        parts = urlsplit(url)
        yield from (unquote(text) for text in (parts.password,) if text)
        yield from (text for name, text in parse_qsl(parts.query) if is_secret_name(name) or len(text) >= 16)


# -- what came back from a call -----------------------------------------------------------------------------


class Cleaning:
    """Takes the secrets that a call was handed out of what came back, and counts them.

    Attack: a tool or a server that repeats what it was handed, anywhere and in any usual spelling, and so
    tells it to the model, the record and the cache: as it is, in either case, percent-encoded, escaped as in
    JSON or in HTML, in base64 wherever it begins, in hexadecimal, in UTF-16, and broken over lines.

    A look that costs little comes first; the patterns are made only where it finds something.
    """

    def __init__(self, secrets: Mapping[str, str], *, named: bool = True) -> None:
        """``secrets`` by the names that take their place; ``named`` False: the marker does."""
        pairs = [(name, part) for name, value in secrets.items() for part in _parts(value)]
        # The longer one first: one may be the beginning of another.
        self._secrets = sorted(pairs, key=lambda pair: (-len(pair[1]), pair))
        self._named = named
        self.found: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def fresh(self, *, named: bool = True) -> Cleaning:
        """The same, with nothing counted yet: for one of the calls that share it, or for the record."""
        other = Cleaning({}, named=named)
        other._secrets = self._secrets
        return other

    def __call__(self, data: bytes) -> bytes:
        if not self._secrets or not data:
            return data
        looked = _Looked(data)
        for name, secret in self._secrets:
            for form in _forms(secret):
                if not looked.may_hold(form):
                    continue
                data, count = _spelling(form).subn(self._marker(name), data)
                if count:
                    self.found[name] = self.found.get(name, 0) + count
        return data

    def cut_end(self, data: bytes) -> bytes:
        """Data whose end was cut off, without the beginning of a secret that the cut went through."""
        for name, secret in self._secrets:
            for needle in (needle for form in _forms(secret) for needle in form.needles):
                at = data.find(needle[:VALUE_CHARS_MIN], max(0, len(data) - len(needle) + 1))
                while at >= 0:
                    if needle.startswith(data[at:]):
                        self.found[name] = self.found.get(name, 0) + 1
                        return data[:at] + self._marker(name)
                    at = data.find(needle[:VALUE_CHARS_MIN], at + 1)
        return data

    def cut_start(self, data: bytes) -> bytes:
        """Data whose beginning was cut off, without the end of a secret that the cut went through."""
        for name, secret in self._secrets:
            for needle in (needle for form in _forms(secret) for needle in form.needles):
                end = needle[-VALUE_CHARS_MIN:]
                at = data.rfind(end, 0, len(needle) - 1)
                while at >= 0:
                    if needle.endswith(data[: at + len(end)]):
                        self.found[name] = self.found.get(name, 0) + 1
                        return self._marker(name) + data[at + len(end) :]
                    at = data.rfind(end, 0, at + len(end) - 1)
        return data

    def text(self, text: str) -> str:
        if not self._secrets:
            return text
        return self(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def header(self, text: str) -> str:
        return self(text.encode("latin-1", "replace")).decode("latin-1")

    def blob(self, text: str) -> str:
        """Bytes in base64, which stay that."""
        if not self._secrets:
            return text
        with suppress(ValueError):
            plain = base64.b64decode(text, validate=True)
            clean = self(plain)
            if clean != plain:
                text = base64.b64encode(clean).decode("ascii")
        return self.text(text)  # it may be no base64 at all, whatever it looks like

    def value(self, value: JsonValue) -> JsonValue:
        """A JSON value whose texts are clean, the names of members too."""
        if not self._secrets or value is None:
            return value
        with suppress(TypeError, ValueError, RecursionError):  # what cannot be written is looked at in parts
            looked = _Looked(jsontext.compact(value))
            if not any(looked.may_hold(form) for _, secret in self._secrets for form in _forms(secret)):
                return value
        return self._walked(value)

    def _walked(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._walked(item) for item in value]
        if isinstance(value, dict):
            return {
                self.text(name): self.blob(item)
                if name in _BLOBS and isinstance(item, str)
                else self._walked(item)
                for name, item in value.items()
            }
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            clean = self.text(str(value))  # a secret that is a number
            return value if clean == str(value) else clean
        return value

    def notes(self) -> tuple[str, ...]:
        """What the caller should know."""
        if not self.found:
            return ()
        count = sum(self.found.values())
        what = "a secret was" if count == 1 else f"{count} secrets were"
        return (f"{what} taken out of what came back: {', '.join(sorted(map(_shown, self.found)))}",)

    def _marker(self, name: str) -> bytes:
        return f"[secret {_shown(name)}]".encode("ascii") if self._named else MARKER.encode("ascii")


_BLOBS: Final = ("data", "blob")
"""Members that hold bytes in base64 where content is what MCP says."""
_NAME_SHOWN: Final = r"[A-Za-z0-9_. -]{1,128}"


def _shown(name: str) -> str:
    """Attack: an author's name of a variable that goes on as an instruction to the model."""
    return name if re.fullmatch(_NAME_SHOWN, name) else "of its own"


def _parts(value: str) -> Iterator[str]:
    """What of a secret is looked for: the whole, and the lines of a long one."""
    stripped = value.strip()
    if is_worth(stripped):
        yield stripped
    if "\n" in stripped:
        lines = (line.strip() for line in stripped.splitlines())
        yield from (line for line in lines if len(line) >= LINE_CHARS_MIN and not line.startswith("-----"))


class _Looked:
    """Data, prepared for finding out quickly whether a secret may be in it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._flat = _flat(data)
        self._decoded: bytes | None = None
        if b"\\" in data or b"%" in data or b"&" in data:
            self._decoded = _decoded(data)

    def may_hold(self, form: _Form) -> bool:
        for needle, flat in zip(form.needles, form.flat, strict=True):
            if flat in self._flat or needle in self._data:
                return True
            if self._decoded is not None and flat in self._decoded:
                return True
        return False


def _flat(data: bytes) -> bytes:
    return data.lower().translate(None, b"\r\n")


_ESCAPES: Final = (
    (b"\\n", b""), (b"\\r", b""), (b"\\t", b"\t"), (b'\\"', b'"'), (b"\\/", b"/"), (b"\\\\", b"\\"),
)  # fmt: skip
_ENTITIES: Final = {
    '"': (b"&quot;", b"&#34;", b"&#x22;"),
    "'": (b"&#39;", b"&#x27;", b"&apos;"),
    "<": (b"&lt;", b"&#60;"),
    ">": (b"&gt;", b"&#62;"),
    "+": (b"&#43;", b"&#x2B;"),
    "=": (b"&#61;", b"&#x3D;"),
    "/": (b"&#47;", b"&#x2F;"),
    "&": (b"&amp;", b"&#38;"),
}
"""What pages make of characters that mean something to them: `&` last, since the others begin with one."""
_UNICODE: Final = rb"((?:\\u[0-9a-fA-F]{4})+)"


def _decoded(data: bytes) -> bytes:
    """Data without the escapes of JSON and of URLs."""
    if b"\\u" in data:
        data = re.sub(_UNICODE, lambda match: _letters(match[1]), data)
    for escaped, plain in _ESCAPES:
        data = data.replace(escaped, plain)
    if b"&" in data:
        for char, spellings in _ENTITIES.items():
            for spelling in spellings:
                data = data.replace(spelling, char.encode("ascii"))
    return _flat(unquote_to_bytes(data))


def _letters(escapes: bytes) -> bytes:
    units = bytes.fromhex(escapes.replace(b"\\u", b"").decode("ascii"))
    return units.decode("utf-16-be", "replace").encode("utf-8")


class _Form(Struct, frozen=True):
    """One way to write a secret: the bytes that tell it, and whether its letters may be escaped."""

    needles: tuple[bytes, ...]
    flat: tuple[bytes, ...]
    text: str
    """What a pattern is made of; empty: the one needle, byte for byte."""
    is_base64: bool = False


@lru_cache(maxsize=256)
def _forms(secret: str) -> tuple[_Form, ...]:
    """A secret's spellings: as it is, in base64, and in the wide letters of UTF-16."""
    plain = secret.encode("utf-8", "surrogateescape")
    spelled = [plain]
    with suppress(UnicodeEncodeError):  # how it goes into a header
        spelled.append(secret.encode("latin-1"))
    if not secret.isascii():  # letters whose case bytes do not know
        spelled += [form.encode("utf-8", "surrogateescape") for form in (secret.lower(), secret.upper())]
    found = [_form(spelled, secret)]
    found += [_form([core.encode("ascii")], core, is_base64=True) for core in _in_base64(plain)]
    found += [_form([secret.encode(wide, "surrogatepass")], "") for wide in ("utf-16-le", "utf-16-be")]
    if len(plain) >= _HEX_BYTES_MIN:
        found.append(_form([plain.hex().encode("ascii")], plain.hex()))
    return tuple(found)


_HEX_BYTES_MIN: Final = 6
"""Of a secret that is looked for in hexadecimal: a shorter one stands in digests by chance."""


def _form(needles: Sequence[bytes], text: str, *, is_base64: bool = False) -> _Form:
    unique = tuple(dict.fromkeys(needles))
    return _Form(unique, tuple(map(_flat, unique)), text, is_base64)


@lru_cache(maxsize=512)
def _spelling(form: _Form) -> re.Pattern[bytes]:
    if not form.text:
        return re.compile(re.escape(form.needles[0]))
    rest = rb"[A-Za-z0-9+/_-]?(?:=|%3[dD])*" if form.is_base64 else b""
    return re.compile(_spelled(form.text) + rest)


_BASE64_CHARS_MIN: Final = 5


def _in_base64(plain: bytes) -> Iterator[str]:
    """What base64 makes of a secret, wherever in a longer text it begins: the letters that are its alone."""
    found: dict[str, None] = {}
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + plain).decode("ascii")
        first = -(-before * 8 // 6)
        core = encoded[first : (before + len(plain)) * 8 // 6]
        if len(core) >= _BASE64_CHARS_MIN:
            found[core] = None
            found[core.replace("+", "-").replace("/", "_")] = None
    yield from found


_BREAK: Final = rb"(?:\r?\n|\\r\\n|\\n)?"


def _spelled(text: str) -> bytes:
    """A pattern for a text whose letters may be in either case, percent-encoded, or escaped as in JSON, and
    which may be broken over lines.

    Every alternative begins with a plain byte, so that a search passes quickly over other text.
    """
    return _BREAK.join(b"(?:" + b"|".join(_spellings(char)) + b")" for char in text)


def _spellings(char: str) -> list[bytes]:
    plain = char.encode("utf-8", "surrogateescape")
    found = set()
    for case in {char, char.lower(), char.upper()}:
        encoded = case.encode("utf-8", "surrogateescape")
        found |= {re.escape(encoded), _in_hex(b"%", encoded, 1)}
        found.add(_in_hex(rb"\\u", case.encode("utf-16-be", "surrogatepass"), 2))
    with suppress(UnicodeEncodeError):  # how it goes into a header
        found.add(re.escape(char.encode("latin-1")))
    if char in '"\\/':
        found.add(rb"\\" + re.escape(plain))
    if char in _CONTROLS:
        found.add(_CONTROLS[char])
    found |= set(_ENTITIES.get(char, ()))
    return sorted(found, key=lambda spelling: (-len(spelling), spelling))


_CONTROLS: Final = {"\n": rb"\\n", "\r": rb"\\r", "\t": rb"\\t"}


def _in_hex(mark: bytes, data: bytes, size: int) -> bytes:
    numbers = (data[at : at + size].hex() for at in range(0, len(data), size))
    either = (re.sub("[a-f]", lambda digit: f"[{digit[0]}{digit[0].upper()}]", number) for number in numbers)
    return b"".join(mark + number.encode("ascii") for number in either)


# -- what is recorded ---------------------------------------------------------------------------------------


class Redaction:
    """What has to go, and the way to do it."""

    def __init__(self, variables: Mapping[str, str] | None = None, patterns: Sequence[str] = ()) -> None:
        """``patterns`` are regular expressions; one that is none counts literally."""
        self._variables = dict(variables or {})
        self._patterns = tuple(_pattern(pattern) for pattern in patterns if pattern)
        always = (value for name, value in self._variables.items() if is_secret_name(name))
        self._always = frozenset(_worth(always))
        self._cached: dict[tuple[str, ...], tuple[re.Pattern[str], ...]] = {}

    def __call__(self, text: str, handed: tuple[str, ...] = ()) -> str:
        """The text without secrets; ``handed`` are the names of the variables that a tool got."""
        patterns = self._cached.get(handed)
        for pattern in self._compiled(handed) if patterns is None else patterns:
            text = pattern.sub(MARKER, text)
        return without_credentials(text)

    def _compiled(self, handed: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
        values = set(self._always)
        values.update(
            _worth(
                self._variables[name]
                for name in handed
                if name in self._variables and name not in _EXACT and not name.startswith(_PREFIXES)
            )
        )
        found = self._patterns
        if values:
            longest_first = sorted(values, key=lambda value: (-len(value), value))
            found = (re.compile("|".join(map(re.escape, longest_first))), *found)
        if len(self._cached) >= _CACHED_MAX:
            self._cached.clear()
        self._cached[handed] = found
        return found


_SHAPE_CHARS_MIN: Final = 15
"""The shortest credential that is known by its looks; in src/native/records.c as well."""
_REMEMBERED_CHARS_MAX: Final = 400
_SHAPES: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"A(?:KI|SI|BI|CC)A[A-Z0-9]{16}(?![A-Za-z0-9])"  # AWS
    r"|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}"
    r"|glpat-[A-Za-z0-9_-]{20,64}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,255}"  # Slack
    r"|AIza[A-Za-z0-9_-]{35}"  # Google
    r"|[sr]k_live_[A-Za-z0-9]{16,255}"  # Stripe
    r"|sk-(?:ant|proj)-[A-Za-z0-9_-]{20,255}"
    r"|npm_[A-Za-z0-9]{36}"
    r"|tw_[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"  # our own
    r")"
    # A cut may have taken its end, so a key without one goes up to the end of the text.
    r"|-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?s:.)*?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|(?s:.)*)"
)
"""Credentials that anybody knows by their looks, whoever's they are."""


def has_credential(text: str) -> bool:
    """Whether there is something in a text that looks like a well-known credential."""
    return without_credentials(text) != text


def without_credentials(text: str) -> str:
    """A text without what looks like a well-known credential."""
    if len(text) < _SHAPE_CHARS_MIN:
        return text
    return _looked_through(text) if len(text) <= _REMEMBERED_CHARS_MAX else _SHAPES.sub(MARKER, text)


@lru_cache(maxsize=1024)
def _looked_through(text: str) -> str:
    """Short texts come again: the names of tool, caller and arguments stand in the record of every call."""
    return _SHAPES.sub(MARKER, text)


def _worth(values: Iterable[str]) -> Iterable[str]:
    for value in values:
        if len(value) >= VALUE_CHARS_MIN:
            yield value
        stripped = value.strip()
        if stripped != value and len(stripped) >= VALUE_CHARS_MIN:
            yield stripped


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error:
        return re.compile(re.escape(text))
