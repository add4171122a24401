"""The vault: values of secrets, in the system's keyring where there is one, else in one encrypted file of the
state folder.

Which of them a tool's variables refer to is ``secrets.py``. Nothing here hands anything to a tool
(``runtimes/`` does) or takes it out of answers (``journal/redaction.py`` does). No value ever stands in a
message, a record or a ``repr``.

The file: every value is sealed by itself (AES-256-GCM, its name and time bound to it), and an HMAC holds over
the whole, so that nothing in it can be changed, swapped, added or removed by who does not have the key. Names
and times are not hidden. An older copy of the whole file cannot be told from the present one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from shlex import quote
from typing import Any, Final, Protocol

from msgspec import Struct

from toolcrib import former, jsontext
from toolcrib.errors import StoreError, UsageError
from toolcrib.jsontext import JsonObject
from toolcrib.store import private
from toolcrib.trust.secrets import PASSPHRASE

NAME_CHARS_MAX: Final = 128
VALUE_BYTES_MAX: Final = 16 << 10
SECRETS_MAX: Final = 256
FILE_BYTES_MAX: Final = 8 << 20
PASSPHRASE_CHARS_MIN: Final = 8
SERVICE: Final = "toolcrib"

_NAME: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_.-]{{0,{NAME_CHARS_MAX - 1}}}")
_FORMAT: Final = 2
_KEY_BYTES: Final = 32
_SCRYPT: Final = {"n": 1 << 15, "r": 8, "p": 1}
_SCRYPT_N_MAX: Final = 1 << 17
_SCRYPT_MEMORY_MAX: Final = 256 << 20


class Ring(Protocol):
    """The system's keyring, as the package ``keyring`` offers it."""

    def get_password(self, service: str, name: str) -> str | None: ...

    def set_password(self, service: str, name: str, value: str) -> None: ...

    def delete_password(self, service: str, name: str) -> None: ...


class Locked(StoreError):
    """The vault has a passphrase, and it was not given."""


class Entry(Struct, frozen=True, kw_only=True):
    """A secret as people see it. Its value is nowhere in it."""

    name: str
    at: float
    """When it was set."""
    where: str
    """``file`` or ``keyring``."""


class _Held(Struct, frozen=True):
    """The file as it was read: names in the open, values sealed."""

    key: JsonObject
    entries: Mapping[str, JsonObject]
    whole: str

    def body(self) -> bytes:
        return jsontext.canonical({"format": _FORMAT, "key": self.key, "entries": {**self.entries}})


def check_name(name: str) -> None:
    """Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            "a secret's name is letters, digits, dots, dashes and underscores, at most "
            f"{NAME_CHARS_MAX} characters, and begins with a letter or an underscore",
            "toolcrib secret set GITHUB_TOKEN",
        )


def check_value(value: str) -> None:
    """Raises UsageError. The value itself is never told."""
    size = len(value.encode("utf-8", "surrogatepass"))
    if not value or size > VALUE_BYTES_MAX:
        raise UsageError(f"a secret has 1 to {VALUE_BYTES_MAX:,} bytes (got {size:,})")
    if "\0" in value or any(0xD800 <= ord(char) <= 0xDFFF for char in value):
        raise UsageError("a secret is text in UTF-8 without NUL: no variable could carry it otherwise")


class Vault:
    """The secrets of a state folder. Touches nothing before it is asked; usable from any thread."""

    def __init__(
        self,
        state: str,
        *,
        passphrase: Callable[[], str | None] = lambda: None,
        ring: Callable[[], Ring | None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``passphrase`` is asked where one is needed. ``ring`` is the system's keyring, or None."""
        self._folder = os.path.join(state, "vault")
        self._path = os.path.join(self._folder, "vault.json")
        self._keys = os.path.join(state, "keys")
        self._key_path = os.path.join(self._keys, "vault.key")
        self._passphrase = passphrase
        self._ring = ring
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[object, _Held | None] = (None, None)
        self._verified: _Held | None = None
        self._derived: tuple[str, bytes] = ("", b"")

    # -- looking --------------------------------------------------------------------------------------------

    def holds(self, name: str) -> bool:
        """Whether there is a secret of that name. Needs no key; one look where the file did not change."""
        held = self._held()
        return held is not None and name in held.entries

    def has_passphrase(self) -> bool:
        """Whether there is a vault that only a passphrase opens."""
        held = self._held()
        return held is not None and held.key.get("kind") == "scrypt"

    def get(self, name: str) -> str | None:
        """A value; None where there is none. Raises StoreError where it cannot be had."""
        held = self._held()
        entry = held.entries.get(name) if held is not None else None
        if held is None or entry is None:
            return None
        key = self._key_of(held.key)
        self._verify(held, key)
        if entry.get("where") == "keyring":
            return self._from_ring(name)
        aead = import_module("cryptography.hazmat.primitives.ciphers.aead")
        exceptions = import_module("cryptography.exceptions")
        try:
            nonce, sealed = _bytes(entry["nonce"]), _bytes(entry["sealed"])
            plain: bytes = aead.AESGCM(_sub(key, "seal")).decrypt(nonce, sealed, _bound(name, entry["at"]))
            return plain.decode("utf-8")
        except (exceptions.InvalidTag, KeyError, TypeError, ValueError):
            raise self._tampered() from None

    def listed(self) -> tuple[Entry, ...]:
        """What there is, by name. Raises StoreError, also where somebody else changed the file."""
        held = self._held()
        if held is None:
            return ()
        self._verify(held, self._key_of(held.key))
        return tuple(
            Entry(name=name, at=entry["at"] / 1000, where=str(entry.get("where", "file")))
            for name, entry in sorted(held.entries.items())
        )

    # -- changing -------------------------------------------------------------------------------------------

    def set(self, name: str, value: str) -> Entry:
        """Keep a value, in the place of an older one. Raises UsageError and StoreError."""
        check_name(name)
        check_value(value)
        self._make_folders()
        with private.locked(os.path.join(self._folder, "lock")):
            held = self._held()
            if held is None:
                held = _Held(self._new_key(), {}, "")
                key = self._key_of(held.key)
            else:
                key = self._key_of(held.key)
                self._verify(held, key)
            if name not in held.entries and len(held.entries) >= SECRETS_MAX:
                raise StoreError(f"the vault holds {SECRETS_MAX} secrets already", "remove some")
            at = int(self._clock() * 1000)
            ring = self._ring()
            if ring is not None:
                self._asked(lambda: ring.set_password(SERVICE, self._ring_name(name), value))
                entry: JsonObject = {"at": at, "where": "keyring"}
            else:
                aead = import_module("cryptography.hazmat.primitives.ciphers.aead")
                nonce = os.urandom(12)
                sealed = aead.AESGCM(_sub(key, "seal")).encrypt(nonce, value.encode(), _bound(name, at))
                entry = {"at": at, "nonce": _text(nonce), "sealed": _text(sealed)}
            self._write(_Held(held.key, {**held.entries, name: entry}, ""), key)
        return Entry(name=name, at=at / 1000, where=str(entry.get("where", "file")))

    def remove(self, name: str) -> bool:
        """Forget a value. Whether there was one."""
        if not self.holds(name):
            return False
        with private.locked(os.path.join(self._folder, "lock")):
            held = self._held()
            if held is None or name not in held.entries:
                return False
            key = self._key_of(held.key)
            self._verify(held, key)
            if held.entries[name].get("where") == "keyring" and (ring := self._ring()) is not None:
                self._asked(lambda: ring.delete_password(SERVICE, self._ring_name(name)))
            left = {other: entry for other, entry in held.entries.items() if other != name}
            self._write(_Held(held.key, left, ""), key)
        return True

    # -- the file -------------------------------------------------------------------------------------------

    def _held(self) -> _Held | None:
        stamp = _stamp(self._path)
        if stamp is None:
            return None
        with self._lock:
            if self._seen[0] == stamp:
                return self._seen[1]
        private.folder(self._folder)
        content = private.read(self._path, FILE_BYTES_MAX)
        held = self._parsed(content) if content is not None else None
        with self._lock:
            self._seen = (stamp, held)
        return held

    def _parsed(self, content: bytes) -> _Held:
        parsed = jsontext.read(content)
        value = parsed.value
        if parsed.defect is not None or parsed.duplicates or not isinstance(value, dict):
            raise self._tampered()
        if value.get("format") == former.VAULT_FORMAT:
            raise StoreError(
                f"{self._path}: {former.WRITTEN}, so its values cannot be read",
                f"mv {quote(self._path)} {quote(self._path)}.former\n"
                "and set each secret again: toolcrib secret set NAME",
            )
        if value.get("format") != _FORMAT:
            raise StoreError(
                f"{self._path}: it was written by another version of toolcrib", "use that version"
            )
        key, entries, whole = value.get("key"), value.get("entries"), value.get("whole")
        if (
            not isinstance(key, dict)
            or not isinstance(entries, dict)
            or not isinstance(whole, str)
            or len(entries) > SECRETS_MAX
            or not all(_NAME.fullmatch(name) and _is_entry(entry) for name, entry in entries.items())
        ):
            raise self._tampered()
        return _Held(key, entries, whole)

    def _verify(self, held: _Held, key: bytes) -> None:
        if self._verified is held:
            return
        if not hmac.compare_digest(held.whole, _mac(held, key)):
            if held.key.get("kind") == "scrypt":
                self._derived = ("", b"")
                raise Locked(
                    f"{self._path}: the passphrase is wrong, or somebody else changed the file",
                    f"give the right one in {PASSPHRASE}",
                )
            raise self._tampered()
        self._verified = held

    def _write(self, held: _Held, key: bytes) -> None:
        whole = {"format": _FORMAT, "key": held.key, "entries": {**held.entries}, "whole": _mac(held, key)}
        private.replace(self._path, jsontext.compact(whole))

    def _tampered(self) -> StoreError:
        return StoreError(
            f"{self._path}: it does not fit its key: somebody else changed it, or the key",
            "put a backup of both in place, or move it away and set the secrets again",
        )

    # -- keys -----------------------------------------------------------------------------------------------

    def _make_folders(self) -> None:
        private.folder(self._folder)
        private.folder(self._keys)

    def _new_key(self) -> JsonObject:
        """How a vault that does not exist yet will be locked: by a passphrase where one is given."""
        passphrase = self._passphrase()
        if not passphrase:
            private.make(self._key_path, os.urandom(_KEY_BYTES))
            return {"kind": "file"}
        if len(passphrase) < PASSPHRASE_CHARS_MIN:
            raise UsageError(f"a passphrase has at least {PASSPHRASE_CHARS_MIN} characters")
        return {"kind": "scrypt", "salt": _text(os.urandom(16)), **_SCRYPT}

    def _key_of(self, described: JsonObject) -> bytes:
        if described.get("kind") == "file":
            key = private.read(self._key_path, _KEY_BYTES)
            if key is None or len(key) != _KEY_BYTES:
                raise StoreError(
                    f"{self._key_path}: the vault's key is missing",
                    "put it back from a backup; without it the vault cannot be read",
                )
            return key
        if described.get("kind") != "scrypt":
            raise self._tampered()
        salt, cost = described.get("salt"), [described.get(name) for name in _SCRYPT]
        n, r, p = (value if type(value) is int else 0 for value in cost)
        # Attack: a planted file whose passphrase takes all memory to try.
        if not isinstance(salt, str) or not 2 <= n <= _SCRYPT_N_MAX or r != 8 or p != 1 or n & (n - 1):
            raise self._tampered()
        if self._derived[0] == f"{salt} {n}":
            return self._derived[1]
        passphrase = self._passphrase()
        if not passphrase:
            raise Locked(f"{self._path}: it has a passphrase", f"give it in {PASSPHRASE}")
        secret = passphrase.encode("utf-8", "surrogateescape")
        try:
            salted = _bytes(salt)
        except ValueError:
            raise self._tampered() from None
        key = hashlib.scrypt(secret, salt=salted, n=n, r=r, p=p, maxmem=_SCRYPT_MEMORY_MAX, dklen=_KEY_BYTES)
        self._derived = (f"{salt} {n}", key)
        return key

    # -- the system's keyring -------------------------------------------------------------------------------

    def _ring_name(self, name: str) -> str:
        """Two state folders do not share a value."""
        return f"{hashlib.sha256(os.path.realpath(self._folder).encode()).hexdigest()[:16]}/{name}"

    def _from_ring(self, name: str) -> str:
        ring = self._ring()
        if ring is None:
            raise StoreError(
                f"the secret {name!r} is in the system's keyring, which cannot be used here",
                "pip install '.[keyring]' (in a clone of Toolcrib) and unlock the keyring, or set it again",
            )
        value: str | None = self._asked(lambda: ring.get_password(SERVICE, self._ring_name(name)))
        if value is None:
            raise StoreError(
                f"the secret {name!r} is gone from the system's keyring", f"toolcrib secret set {name}"
            )
        return value

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - each backend has errors of its own
            # Never its text: a backend may repeat what it was given.
            raise StoreError(
                f"the system's keyring cannot be used ({type(error).__name__})", "unlock it, and try again"
            ) from None


def system_ring() -> Ring | None:
    """The system's keyring, where the extra is installed and there is one that keeps anything."""
    try:
        keyring = import_module("keyring")
    except ImportError:
        return None
    try:
        backend = keyring.get_keyring()
        works = float(getattr(backend, "priority", 0)) > 0
    except Exception:  # noqa: BLE001 - backends that ask a desktop which is not there raise anything
        return None
    return backend if works else None


# -- small parts --------------------------------------------------------------------------------------------


def _sub(key: bytes, purpose: str) -> bytes:
    """One key for each purpose, so that what is made for one is worth nothing for another."""
    return hmac.digest(key, f"toolcrib vault {_FORMAT} {purpose}".encode(), "sha256")


def _mac(held: _Held, key: bytes) -> str:
    return hmac.digest(_sub(key, "whole"), held.body(), "sha256").hex()


def _bound(name: str, at: int) -> bytes:
    """Attack: values that are swapped inside the file, so that a tool is handed another one's secret."""
    return jsontext.canonical([_FORMAT, name, at])


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or type(entry.get("at")) is not int:
        return False
    if entry.get("where") == "keyring":
        return set(entry) == {"at", "where"}
    return set(entry) == {"at", "nonce", "sealed"} and all(
        isinstance(entry[part], str) for part in ("nonce", "sealed")
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _stamp(path: str) -> tuple[int, int, int, int] | None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = (error.strerror or "cannot be read").lower()
        raise StoreError(f"{path}: {why}", "make the state folder readable for the host's user") from None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
