"""Secrets out of text. Pure.

Values of variables whose name says that they are secret, values handed to a call, and what the host's own
patterns find become one fixed marker. Names stay: a record says which variables a tool got, never what was in
them. This is a net below the rule that values are not recorded at all, not a reason to record more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from toolwright.model import BASE_ENV

MARKER: Final = "***REDACTED***"
VALUE_CHARS_MIN: Final = 4
"""A shorter value would blacken every other word, and say so what it is."""

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
        return text

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
