"""The former name of this program: what is still called so is refused, never passed over.

A configuration, a lock or a record that nobody reads any more would fail open. Each reader of a renamed file
asks here, and names the command that moves it. Delete this module and its callers after the first release.
"""

from __future__ import annotations

from shlex import quote
from typing import Final

FORMER_NAME: Final = "toolwright"  # the former name, here alone
NAME: Final = "toolcrib"

WRITTEN: Final = f"it was written under the former name ({FORMER_NAME})"
JOURNAL_SEED: Final = f"{FORMER_NAME} journal 1\n".encode()
"""What the first record of a segment built on."""
ANCHOR_VERSION: Final = 1
VAULT_FORMAT: Final = 1


def name_of(name: str) -> str:
    """Return the former name of a file, a folder or a variable."""
    return name.replace(NAME, FORMER_NAME).replace(NAME.upper(), FORMER_NAME.upper())


def key_of(key: str) -> str:
    """Return the key, as it is now, of one of our own tools. Other keys stay as they are."""
    rest = key.removeprefix(f"{FORMER_NAME}:")
    return key if rest == key else f"{NAME}:{rest}"


def key_in(value: object) -> str | None:
    """Return the first text in a table that means one of our own tools by its former key."""
    if isinstance(value, str):
        return value if key_of(value.removeprefix("!")) != value.removeprefix("!") else None
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return next(filter(None, map(key_in, value)), None) if isinstance(value, list) else None


def moved(former: str, path: str, then: str = "") -> tuple[str, str]:
    """Return the message about a file or folder under its former name, and the command that moves it."""
    what = f"{former}: this is the former name of {path.rpartition('/')[2]}, and it is not read any more"
    return what, "\n".join(filter(None, (f"mv {quote(former)} {quote(path)}", then)))
