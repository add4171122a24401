"""Bearer tokens: who may come in to a server, and how far.

A token is 256 random bits, shown once, when it is made; what is kept is its SHA-256. A slow hash would add
nothing: it protects secrets that can be guessed, and nobody guesses 256 bits, while every request would pay
for it. All tokens are one value of the store, so one look tells whether any changed.

What a request may do with one is decided by whoever lets it in (``doors/_entrance.py``).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.errors import StoreError, ToolcribError
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import Effect, Reach, Right
from toolcrib.paths import is_settled
from toolcrib.store import ABSENT, Conflict, Store, private
from toolcrib.store.keep import Keep

SHELF: Final = "tokens"
USES: Final = "token-uses"
PREFIX: Final = "tw_"
"""What every token begins with, so that people and scanners recognise one that got lost."""
TOKENS_MAX: Final = 1000
PATTERNS_MAX: Final = 100
USED_EVERY_S: Final = 3600.0
"""How exactly the last use is kept: no request writes to the store."""
CHARS_MIN: Final = 32
"""Of a token that somebody else made: fewer could be guessed."""
CHARS_MAX: Final = 512
_FILE_BYTES_MAX: Final = 64 * 1024
_ALL: Final = "all"
_TRIES: Final = 20
_OWNERS: Final = "this is the owner's name, or easily taken for it, and the owner calls without a token"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_VALUE: Final = re.compile(rf"[A-Za-z0-9._~+/=-]{{{CHARS_MIN},{CHARS_MAX}}}")


class TokenError(ToolcribError):
    """A token that is not there, or that cannot be made as asked."""

    exit_code = 64


class Token(Struct, frozen=True, kw_only=True):
    """One token, without its value. Moments are seconds since the epoch."""

    id: str
    name: str
    digest: str
    tools: tuple[str, ...] = ("*",)
    """Patterns of keys, as in grants."""
    effects: frozenset[Effect] = frozenset(Effect)
    rights: frozenset[Right] = frozenset(Right)
    created_at: float = 0.0
    expires_at: float | None = None

    @property
    def reach(self) -> Reach | None:
        """None: every tool there is."""
        if self.tools == ("*",) and len(self.effects) == len(Effect):
            return None
        return Reach(tools=self.tools, effects=self.effects)

    def is_over(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


def _is_none(_name: str) -> bool:
    return False


def digest_of(value: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


# -- made, listed, revoked ----------------------------------------------------------------------------------


def create(
    store: Store,
    name: str,
    *,
    now: float,
    tools: Sequence[str] = ("*",),
    effects: frozenset[Effect] = frozenset(Effect),
    rights: frozenset[Right] = frozenset(Right),
    for_s: float | None = None,
    is_owners: Callable[[str], bool] = _is_none,
) -> tuple[Token, str]:
    """Make a token. Its value is returned here and kept nowhere. ``is_owners``: whether a name is that of the
    owner, who calls without a token, or easily taken for it."""
    if _NAME.fullmatch(name) is None:
        raise TokenError(
            f"{name[:60]!r}: not a name for a token",
            "letters, digits and . _ @ -, at most 64 of them: it names the caller in every record",
        )
    if is_owners(name):
        raise TokenError(
            f"{name}: {_OWNERS}", "take another name, such as that of the program or the machine"
        )
    if len(tools) > PATTERNS_MAX or any(not 0 < len(pattern) <= 512 for pattern in tools):
        raise TokenError(f"{len(tools):,} patterns of tools, or one that is empty or too long")
    value = PREFIX + secrets.token_urlsafe(32)
    token = Token(
        id=secrets.token_hex(6),
        name=name,
        digest=digest_of(value),
        tools=tuple(tools) or ("*",),
        effects=effects,
        rights=rights,
        created_at=now,
        expires_at=None if for_s is None else now + for_s,
    )
    for _ in range(_TRIES):
        kept, version = _read(store)
        kept = tuple(old for old in kept if not old.is_over(now))  # the names of those are free again
        if any(old.name == name for old in kept):
            raise TokenError(f"{name}: there is a token of that name", f"toolcrib token revoke {name}")
        if len(kept) >= TOKENS_MAX:
            raise TokenError(f"there are {TOKENS_MAX:,} tokens already", "revoke some: token revoke NAME")
        if _written(store, (*kept, token), version):
            return token, value
    raise StoreError("the tokens change all the time", "try again")


def listed(store: Store) -> tuple[Token, ...]:
    """Every token, the expired ones too, in the order they were made."""
    return _read(store)[0]


def revoke(store: Store, which: str) -> Token:
    """Take a token away, by its id or its name."""
    for _ in range(_TRIES):
        kept, version = _read(store)
        found = next((token for token in kept if which in (token.id, token.name)), None)
        if found is None:
            raise TokenError(f"{which[:60]!r}: no such token", "toolcrib token list shows them")
        if _written(store, tuple(token for token in kept if token is not found), version):
            store.remove(USES, found.id, None)
            return found
    raise StoreError("the tokens change all the time", "try again")


def used_at(store: Store, token_id: str) -> float | None:
    """When it was last used, to the hour."""
    held = store.get(USES, token_id)
    try:
        return None if held is None else float(held.value)
    except ValueError:
        return None


def note_use(store: Store, token_id: str, now: float) -> None:
    store.put(USES, token_id, b"%d" % now, None)


def _read(store: Store) -> tuple[tuple[Token, ...], int]:
    held = store.get(SHELF, _ALL)
    return ((), ABSENT) if held is None else (_tokens(held.value), held.version)


def _written(store: Store, tokens: Sequence[Token], version: int) -> bool:
    try:
        store.put(SHELF, _ALL, jsontext.compact([_plain(token) for token in tokens]), version)
    except Conflict:  # another program made or revoked one meanwhile
        return False
    return True


def _plain(token: Token) -> JsonObject:
    return {
        "id": token.id,
        "name": token.name,
        "digest": token.digest,
        "tools": list(token.tools),
        "effects": sorted(token.effects),
        "rights": sorted(token.rights),
        "created_at": token.created_at,
        "expires_at": token.expires_at,
    }


def _tokens(value: bytes) -> tuple[Token, ...]:
    try:
        return tuple(_token(plain) for plain in jsontext.loads_own(value))
    except (ValueError, KeyError, TypeError, AttributeError):
        # Attack: damage that lets somebody in, or that looks as if nothing had been revoked.
        raise StoreError("the tokens in the store cannot be read", "revoke and make them anew") from None


def _token(plain: JsonValue) -> Token:
    assert isinstance(plain, dict)
    until = plain["expires_at"]
    return Token(
        id=str(plain["id"]),
        name=str(plain["name"]),
        digest=str(plain["digest"]),
        tools=tuple(str(pattern) for pattern in plain["tools"]),
        effects=frozenset(Effect(effect) for effect in plain["effects"]),
        rights=frozenset(Right(right) for right in plain["rights"]),
        created_at=float(plain["created_at"]),
        expires_at=None if until is None else float(until),
    )


# -- a file of tokens ---------------------------------------------------------------------------------------


def read_file(path: str, is_owners: Callable[[str], bool] = _is_none) -> tuple[Token, ...]:
    """The tokens of a file: one to a line, with or without a name before it. They may do everything.

    Raises StoreError where the file is not ours alone: a token that others can read is no secret.
    """
    content = private.read(path, _FILE_BYTES_MAX)
    if content is None:
        raise StoreError(f"{path}: there is no such file", "make one, chmod 600, a token on each line")
    found: dict[str, Token] = {}
    for number, name, value in _lines(path, content):
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            # The value is never shown: it may be a token with a slip of the pen in it.
            raise StoreError(
                f"{path}:{number}: neither TOKEN nor NAME TOKEN",
                f"a token has {CHARS_MIN} to {CHARS_MAX} letters, digits or . _ ~ + / = -",
            )
        if is_owners(name):
            raise StoreError(f"{path}:{number}: {name}: {_OWNERS}", "give the token another name")
        if name in found:
            raise StoreError(f"{path}:{number}: {name!r} stands there twice", "give each its own name")
        found[name] = Token(id=f"file:{name}", name=name, digest=digest_of(value))
    if not found:
        raise StoreError(f"{path}: there is no token in it", "put one on a line of its own")
    return tuple(found.values())


def _lines(path: str, content: bytes) -> Iterator[tuple[int, str, str]]:
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError:
        raise StoreError(f"{path}: it is not plain text", "one token on each line") from None
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name, value = (f"token-{number}", words[0]) if len(words) == 1 else (words[0], words[1])
        yield number, name, value if len(words) <= 2 else ""


# -- as a running server sees them --------------------------------------------------------------------------


class Tokens:
    """The tokens that count now: those of the store and those of a file. One thread at a time looks; any may
    ask meanwhile."""

    def __init__(
        self,
        keep: Keep | None = None,
        file: str | None = None,
        *,
        is_owners: Callable[[str], bool] = _is_none,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._keep = keep
        self._file = file
        self._is_owners = is_owners
        self._clock_ns = clock_ns
        self._stamp: object = None
        self._version: tuple[object, object] = (None, None)
        self._by_digest: dict[str, Token] = {}
        self._by_id: dict[str, Token] = {}
        self._noted: dict[str, float] = {}
        self.trouble: ToolcribError | None = None
        """Why nobody is let in: what cannot be read lets nobody in."""
        self.look()

    def look(self) -> bool:
        """Look whether anything changed, which costs a few stats. Whether something did."""
        try:
            stamp = self._stamps()
            if stamp == self._stamp:
                return False
            found, version = self._fresh()
        except ToolcribError as error:
            # Attack: make the store unreadable, and a revoked token lives on.
            is_new, self.trouble = self.trouble is None, error
            self._stamp, self._version = None, (None, None)
            self._by_digest, self._by_id = {}, {}
            return is_new
        self._stamp, self.trouble = stamp, None
        if version == self._version:
            return False
        self._version = version
        self._by_digest = {token.digest: token for token in found}
        self._by_id = {token.id: token for token in found}
        return True

    @property
    def count(self) -> int:
        return len(self._by_id)

    def find(self, value: str, now: float) -> Token | None:
        """The token of this value, where there is one that counts."""
        digest = digest_of(value)
        token = self._by_digest.get(digest)
        # Attack: learn a token by how long a wrong one takes. What is looked up is the digest of the guess,
        # which the guesser cannot steer, and equal ones are compared in constant time.
        if token is None or not hmac.compare_digest(token.digest, digest) or token.is_over(now):
            return None
        return token

    def known(self, token_id: str, now: float) -> Token | None:
        """The token of this id, where it still counts."""
        token = self._by_id.get(token_id)
        return None if token is None or token.is_over(now) else token

    def is_due(self, token: Token, now: float) -> bool:
        """Whether its use should be noted; not again within the hour."""
        if self._keep is None or token.id.startswith("file:"):
            return False
        if now - self._noted.get(token.id, 0.0) < USED_EVERY_S:
            return False
        self._noted[token.id] = now
        return True

    def note(self, token: Token, now: float) -> None:
        """Keep the moment of its last use. Writes to the disk, so not for an event loop."""
        if self._keep is not None:
            note_use(self._keep.opened(), token.id, now)

    def _stamps(self) -> object:
        held = None if self._keep is None else self._keep.stamp()
        return held, None if self._file is None else file_stamp(self._file, self._clock_ns())

    def _fresh(self) -> tuple[tuple[Token, ...], tuple[object, object]]:
        store = None if self._keep is None else self._keep.present()
        kept, version = ((), ABSENT) if store is None else _read(store)
        for token in kept:
            if self._is_owners(token.name):
                # Attack: a token for less that reads the owner's results, hears of the owner's calls, and
                # calls under what was approved for the owner. A caller is its name.
                raise TokenError(
                    f"{token.name}: {_OWNERS}",
                    f"toolcrib token revoke {token.id}\nand make one of another name",
                )
        if self._file is None:
            return kept, (version, None)
        of_file = read_file(self._file, self._is_owners)
        names = {token.name for token in kept}
        for token in of_file:
            if token.name in names:
                # Attack: two callers of one name, whose records nobody can tell apart.
                raise TokenError(f"{token.name}: the store has a token of that name", "rename one of them")
        return (*kept, *of_file), (version, of_file)


def file_stamp(path: str, now_ns: int) -> object:
    """What differs whenever a file of tokens changed; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    # Attack: a token that is taken out of the file by an edit which keeps its size and sets its time back, or
    # which comes within the same tick of the file system's clock in which we looked, lives on. What changed
    # just now differs from everything.
    if not is_settled(status.st_ctime_ns, now_ns):
        return object()
    return status.st_ino, status.st_size, status.st_ctime_ns, status.st_mode
