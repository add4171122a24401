"""How the tables came to be, step by step. Steps are only ever added: a store remembers how many it has
taken."""

from __future__ import annotations

from typing import Final

MIGRATIONS: Final = (
    """
    CREATE TABLE kept (
        shelf TEXT NOT NULL,
        key TEXT NOT NULL,
        value BLOB NOT NULL,
        version INTEGER NOT NULL,
        PRIMARY KEY (shelf, key)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE TABLE counted (newest INTEGER NOT NULL) STRICT",
    "INSERT INTO counted (newest) VALUES (0)",
)
