"""Rye's signature lines: read, checked and written, byte for byte as the format's own signer does. Pure.

A signed file carries one line at a fixed place: ``# rye:signed:TIME:HASH:SIGNATURE:KEY``. The signature is
Ed25519 over the 64 characters of the hash, and the hash covers the text without that line and without a
shebang line. So shebang, time and kind of line ends are not covered; the lock file pins those.

Nothing here opens a file or knows which keys are trusted: ``keys.py`` does, and hands itself in as ``Keys``.
Whether a tool with a bad signature may run is policy's business.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Final, Protocol

from msgspec import Struct

from toolcrib.model import Trust, Vetted

HASH_FAMILY: Final = (".py", ".yaml", ".yml", ".json", ".sh", ".toml")
SLASH_FAMILY: Final = (".js", ".ts", ".mjs", ".cjs")
DOCUMENTS: Final = (".md",)
SUFFIXES: Final = (*HASH_FAMILY, *SLASH_FAMILY, *DOCUMENTS)
"""What can carry a signature."""

KEY_ID_CHARS: Final = 16
_SHOWN_CHARS: Final = 16
_SIGNATURE_CHARS: Final = 86
"""64 bytes in base64 without padding."""
_OWNER_CHARS_MAX: Final = 60
_KEYS_SHOWN_MAX: Final = 20

# Attack: what stands on this line is covered by no signature. U+2028 ends a comment for JavaScript, U+0085
# for YAML: whatever followed would be code that nobody signed. So the line is plain ASCII to its end.
_FIELDS: Final = (
    r"rye:signed:(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z):(?P<digest>[0-9a-f]{64})"
    r":(?P<signature>[A-Za-z0-9_-]+={0,2}):(?P<key>[0-9a-f]{16})"
    r"(?:\|(?P<provider>[A-Za-z0-9_-]+@[A-Za-z0-9_-]+))?"
)
_LINES: Final = {
    **dict.fromkeys(HASH_FAMILY, re.compile(rf"# {_FIELDS}(?:\r\n|\r|\n)")),
    **dict.fromkeys(SLASH_FAMILY, re.compile(rf"// {_FIELDS}(?:\r\n|\r|\n)")),
    **dict.fromkeys(DOCUMENTS, re.compile(rf"<!-- {_FIELDS} -->(?:\r\n|\r|\n)")),
}
_OLD: Final = r"(?:rye|kiwi-mcp):(?:validated|signed):"
_REMOVED: Final = {
    **dict.fromkeys(HASH_FAMILY, re.compile(rf"# {_OLD}[^\r\n]+(?:\r\n|\r|\n)")),
    **dict.fromkeys(SLASH_FAMILY, re.compile(rf"// {_OLD}[^\r\n]+(?:\r\n|\r|\n)")),
    **dict.fromkeys(DOCUMENTS, re.compile(rf"<!-- {_OLD}[^>\r\n]+-->(?:\r\n|\r|\n)")),
}
"""What a signer replaces and a hash leaves out: looser, since placeholders and older kinds count too."""
_LATER: Final = re.compile(r"(?:#|//|<!--)[ \t]*ryeos:signed:")
# Attack: the shebang is covered by no signature either, and the same characters would end it. A `coding:` in
# it would make Python read the signed bytes as other characters than the signer did.
_SHEBANG: Final = re.compile(r"#!/[\t -~]*(?:\r\n|\r|\n)")
_CODING: Final = re.compile(r"coding[:=][ \t]*+(?!utf-?8(?![-_.A-Za-z0-9]))", re.IGNORECASE)
_CONFIG: Final = "config:"

_PEM: Final = re.compile(
    r"-----BEGIN PUBLIC KEY-----\n(?P<body>[A-Za-z0-9+/=\n]{1,200})\n-----END PUBLIC KEY-----\n"
)
_PEM_CHARS_MAX: Final = 1000
_P: Final = 2**255 - 19
_L: Final = 2**252 + 27742317777372353535851937790883648493
_SMALL: Final = frozenset(
    {
        0,
        1,
        _P - 1,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    }
)
"""The y of the eight points of small order."""
_ED25519: Final = bytes.fromhex("302a300506032b6570032100")
"""What stands before the 32 bytes of the key in its DER form (RFC 8410)."""


class TrustedKey(Struct, frozen=True, kw_only=True):
    """A public key that the host trusts."""

    id: str
    public: bytes
    """The 32 bytes themselves: ids are short enough for two keys to share one."""
    owner: str = ""


class Keys(Protocol):
    """The keys that count for one file."""

    def find(self, key_id: str) -> Sequence[TrustedKey]:
        """Every trusted key of that id; none: it is not trusted."""
        ...

    def ids(self) -> Sequence[str]:
        """The ids of all trusted keys, for messages."""
        ...


class SignatureLine(Struct, frozen=True, kw_only=True):
    """What a signature line says. Nothing of it is verified, and the time never is."""

    time: str
    digest: str
    """64 hex digits."""
    signature: str
    """Base64url as it stands."""
    key: str
    provider: str = ""
    """``provider@user`` of the registry it came from, where it names one."""


class _Parts(Struct, frozen=True):
    """A text taken apart: what stands before the signature line, that line, and all that follows it."""

    shebang: str
    line: str
    body: str
    found: SignatureLine | None


# -- reading ------------------------------------------------------------------------------------------------


def read_line(text: str, suffix: str) -> SignatureLine | None:
    """The signature line of a file's text; None where there is none at its one right place."""
    return _parts(text, suffix, "tool:").found if suffix in SUFFIXES else None


def is_later(text: str) -> bool:
    """Whether the text carries a signature of the later ``ryeos:signed`` form, which is not verified here."""
    shebang = _SHEBANG.match(text)
    return _LATER.match(text, shebang.end() if shebang else 0) is not None


def digest(content: bytes, suffix: str, item: str = "tool:") -> str:
    """The hash that a signature of this content is over."""
    return _digest(_parts(_text(content), suffix, item).body, suffix)


def _text(content: bytes) -> str:
    """Every byte stays apart, also where they are no UTF-8: two contents never give one text."""
    return content.decode("utf-8", "surrogateescape")


def _parts(text: str, suffix: str, item: str) -> _Parts:
    shebang = ""
    if suffix in HASH_FAMILY and not item.startswith(_CONFIG):
        at_top = _SHEBANG.match(text)
        if at_top is not None and not _CODING.search(at_top.group()):
            shebang = at_top.group()
    start = len(shebang)
    removed = _REMOVED[suffix].match(text, start)
    line = removed.group() if removed else ""
    signed = _LINES[suffix].fullmatch(line)
    found = None
    if signed is not None:
        found = SignatureLine(
            time=signed["time"],
            digest=signed["digest"],
            signature=signed["signature"],
            key=signed["key"],
            provider=signed["provider"] or "",
        )
    return _Parts(shebang, line, text[start + len(line) :], found)


def _digest(body: str, suffix: str) -> str:
    if "\r" in body:
        body = body.replace("\r\n", "\n").replace("\r", "\n")
    if suffix in DOCUMENTS and body.startswith("---"):
        end = body.find("---", 3)
        if end >= 0:
            body = body[end + 3 :].strip()
    return hashlib.sha256(body.encode("utf-8", "surrogateescape")).hexdigest()


# -- checking -----------------------------------------------------------------------------------------------


def check(content: bytes, *, path: str, suffix: str, item: str, keys: Keys) -> Vetted:
    """What a file's signature is worth: in the order unsigned, hash, trusted key, signature.

    ``item`` is the file's address (``tool:ID``), as commands spell it. The texts are the format's own.
    """
    if suffix not in SUFFIXES:
        return Vetted(
            trust=Trust.UNSIGNED, message=unknown_suffix(suffix), hint="such a file cannot carry a signature"
        )
    text = _text(content)
    if is_later(text):
        return _later(path, item)
    parts = _parts(text, suffix, item)
    line = parts.found
    if line is None:
        return _unsigned(path, item)
    actual = _digest(parts.body, suffix)
    if actual != line.digest or not _is_utf8(text):
        return _modified(path, item, line.digest, actual)
    candidates = keys.find(line.key)
    if not candidates:
        return _untrusted(path, item, line.key, keys.ids())
    signature = _signature_bytes(line.signature)
    # Attack: a second key with the id of a trusted one. Each key of that id is tried, whole.
    if signature is None or not any(
        _verify(key.public, line.digest.encode("ascii"), signature) for key in candidates
    ):
        return _bad(path, line.key, candidates[0].owner)
    return Vetted(trust=Trust.SIGNED, signer=line.key)


def _verify(public: bytes, message: bytes, signature: bytes) -> bool:
    # By name: the library is slow to import, and most calls verify nothing.
    return bool(import_module("toolcrib.trust.ed25519").verify(public, message, signature))


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _signature_bytes(text: str) -> bytes | None:
    """The 64 bytes of a signature. With or without padding; every other spelling of them is refused.

    Attack: base64 has spare bits at its end, so that sixteen texts would be one signature.
    """
    if text.endswith("="):
        if not text.endswith("==") or len(text) != _SIGNATURE_CHARS + 2:
            return None
        text = text[:-2]
    if len(text) != _SIGNATURE_CHARS:
        return None
    signature = base64.urlsafe_b64decode(f"{text}==")
    return signature if _signature_text(signature) == text else None


def _signature_text(signature: bytes) -> str:
    return base64.urlsafe_b64encode(signature).decode("ascii").rstrip("=")


# -- the format's own words ---------------------------------------------------------------------------------


def unknown_suffix(suffix: str) -> str:
    return f"No signature format configured for extension '{suffix}'"


def _unsigned(path: str, item: str) -> Vetted:
    return Vetted(
        trust=Trust.UNSIGNED,
        message=f"Unsigned item: {path}\n  Kind: {item.partition(':')[0]}\n"
        f"  Expected: rye:signed: header\n  Fix: rye sign {item}",
        hint=f'toolcrib sign {item}, or let unsigned tools run: [trust] unsigned = "warn"',
    )


def _later(path: str, item: str) -> Vetted:
    return Vetted(
        trust=Trust.UNTRUSTED,
        message=f"Later signature format, not verified here: {path}\n  Kind: {item.partition(':')[0]}\n"
        "  Found: ryeos:signed: header\n  Expected: rye:signed: header",
        hint="files of the later rewrite are not loaded; keep a copy in the dated format",
    )


def _modified(path: str, item: str, expected: str, actual: str) -> Vetted:
    found = f"{actual[:_SHOWN_CHARS]}…" if actual != expected else "the text is not UTF-8"
    return Vetted(
        trust=Trust.TAMPERED,
        message=f"Content modified since signing: {path}\n  Expected hash: {expected[:_SHOWN_CHARS]}…\n"
        f"  Actual hash: {found}\n  Fix: Re-sign after editing:\n    rye sign {item}",
        hint=f"look at what changed before you sign it again: toolcrib sign {item}",
    )


def _untrusted(path: str, item: str, key: str, trusted: Sequence[str]) -> Vetted:
    shown = ", ".join(trusted[:_KEYS_SHOWN_MAX]) or "none"
    if len(trusted) > _KEYS_SHOWN_MAX:
        shown += f" and {len(trusted) - _KEYS_SHOWN_MAX} more"
    return Vetted(
        trust=Trust.UNTRUSTED,
        message=f"Untrusted key {key} for {path}\n  Item signed by: {key}\n  Trusted keys: {shown}\n"
        f"  Fix: Add this key to your trust store, or re-sign:\n    rye sign {item}",
        hint=f"once you know whose key it is: toolcrib trust {key}",
    )


def _bad(path: str, key: str, owner: str) -> Vetted:
    by = f"{key} ({owner})" if owner else key
    return Vetted(
        trust=Trust.TAMPERED,
        message=f"Ed25519 signature verification failed: {path}\n  Signed by: {by}\n"
        "  This may indicate the file was tampered with after signing",
        hint="get the file anew from where it came from",
    )


# -- writing ------------------------------------------------------------------------------------------------


def sign(
    content: bytes, suffix: str, item: str, *, time: str, key_id: str, signature_of: SignatureOf
) -> tuple[bytes, str]:
    """The content with its signature line, and that line without its end. Every other byte stays.

    Raises ValueError where such a file cannot carry one.
    """
    if suffix not in SUFFIXES:
        raise ValueError(unknown_suffix(suffix))
    text = _text(content)
    if not _is_utf8(text):
        raise ValueError("it is not UTF-8 text")
    parts = _parts(text, suffix, item)
    hashed = _digest(parts.body, suffix)
    signature = _signature_text(signature_of(hashed.encode("ascii")))
    before, after = ("<!--", " -->") if suffix in DOCUMENTS else ("#" if suffix in HASH_FAMILY else "//", "")
    line = f"{before} rye:signed:{time}:{hashed}:{signature}:{key_id}{after}"
    return f"{parts.shebang}{line}\n{parts.body}".encode(), line


class SignatureOf(Protocol):
    """Makes a signature of 64 bytes over a message."""

    def __call__(self, message: bytes, /) -> bytes: ...


# -- public keys as text ------------------------------------------------------------------------------------


def plain_pem(text: str) -> str:
    """The text of a public key as its id is computed from it: stripped, and ended by one LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip() + "\n"


def key_id(pem: str) -> str:
    """The short name of a public key: 64 bits, so that it finds a key and proves nothing."""
    return hashlib.sha256(plain_pem(pem).encode("utf-8", "surrogatepass")).hexdigest()[:KEY_ID_CHARS]


def public_of(pem: str) -> bytes | None:
    """The 32 bytes of an Ed25519 public key; None where the text is none."""
    found = _PEM.fullmatch(plain_pem(pem)) if len(pem) <= _PEM_CHARS_MAX else None
    if found is None:
        return None
    try:
        der = base64.b64decode(found["body"].replace("\n", ""), validate=True)
    except ValueError:
        return None
    return der[len(_ED25519) :] if der.startswith(_ED25519) and len(der) == len(_ED25519) + 32 else None


def pem_of(public: bytes) -> str:
    """An Ed25519 public key as text."""
    body = base64.b64encode(_ED25519 + public).decode("ascii")
    return f"-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n"


def is_sound(public: bytes) -> bool:
    """Whether these bytes can be somebody's public key: spelt in the one right way, and of full order.

    Attack: a key of small order (all zero, for one), for which anybody can make signatures of anything.
    """
    return len(public) == 32 and _is_point(public)


def is_strict(signature: bytes) -> bool:
    """Whether these bytes are the one spelling of a signature.

    Attack: a second signature made from a first without the key, by adding the group's order to its number.
    """
    whole = len(signature) == 64 and int.from_bytes(signature[32:], "little") < _L
    return whole and _is_point(signature[:32])


def _is_point(encoded: bytes) -> bool:
    y = int.from_bytes(encoded, "little") & (2**255 - 1)
    return y < _P and y not in _SMALL
