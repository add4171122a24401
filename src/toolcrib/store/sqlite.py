"""The store in one SQLite file: write-ahead log, synced at every change, ours alone.

Versions are unique in the file, so a value that was removed and put again never passes for the old one.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from toolcrib.errors import StoreError
from toolcrib.store import ABSENT, Conflict, Versioned, private
from toolcrib.store.migrations import MIGRATIONS

BUSY_S: Final = 10.0
"""How long a change waits for another host's."""
_AGAIN_S: Final = 0.01

_Answer = TypeVar("_Answer")
_making: Final = threading.Lock()
"""Held while a store is made: nobody of this process has it open yet."""


class SqliteStore:
    """A store in ``path``; made where it is missing. Usable from any thread, and by several hosts at once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection = self._opened()

    # -- the protocol ---------------------------------------------------------------------------------------

    def put(self, shelf: str, key: str, value: bytes, version: int | None) -> int:
        def change(connection: sqlite3.Connection) -> int:
            self._expect(connection, shelf, key, version)
            (fresh,) = connection.execute(
                "UPDATE counted SET newest = newest + 1 RETURNING newest"
            ).fetchone()
            connection.execute(
                "INSERT INTO kept (shelf, key, value, version) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (shelf, key) DO UPDATE SET value = excluded.value, version = excluded.version",
                (shelf, key, value, fresh),
            )
            return int(fresh)

        return self._changed(change)

    def get(self, shelf: str, key: str) -> Versioned | None:
        def look(connection: sqlite3.Connection) -> Versioned | None:
            row = connection.execute(
                "SELECT value, version FROM kept WHERE shelf = ? AND key = ?", (shelf, key)
            ).fetchone()
            return None if row is None else Versioned(bytes(row[0]), int(row[1]))

        return self._asked(look)

    def keys(self, shelf: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        def look(connection: sqlite3.Connection) -> Sequence[str]:
            rows = connection.execute(
                "SELECT key FROM kept WHERE shelf = ? AND key > ? ORDER BY key LIMIT ?", (shelf, after, limit)
            )
            return [str(key) for (key,) in rows]

        return self._asked(look)

    def remove(self, shelf: str, key: str, version: int | None) -> None:
        def change(connection: sqlite3.Connection) -> None:
            self._expect(connection, shelf, key, version)
            connection.execute("DELETE FROM kept WHERE shelf = ? AND key = ?", (shelf, key))

        self._changed(change)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    # -- below it -------------------------------------------------------------------------------------------

    def _expect(self, connection: sqlite3.Connection, shelf: str, key: str, version: int | None) -> None:
        if version is None:
            return
        row = connection.execute(
            "SELECT version FROM kept WHERE shelf = ? AND key = ?", (shelf, key)
        ).fetchone()
        found = ABSENT if row is None else int(row[0])
        if found != version:
            raise Conflict(f"{shelf}/{key}: changed meanwhile (version {found}, expected {version})")

    def _asked(self, question: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        with self._lock:
            try:
                return question(self._connection)
            except sqlite3.Error as error:
                raise self._broken(error) from None

    def _changed(self, change: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        with self._lock:
            connection = self._connection
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    answer = change(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._broken(error) from None
            return answer

    def _opened(self) -> sqlite3.Connection:
        path = self._path
        try:
            private.make_folders(os.path.dirname(path))
            # Attack: a link in place of the store, or a umask that lets others read what we keep.
            # A file that is there is looked at and never opened: closing it would give up the locks of every
            # other connection of this process, the next program would take itself for the only one and throw
            # the log away, and what it revoked, switched off or approved would never be seen here.
            with _making, suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise StoreError(f"{path}: it is not a file of your own", "move it away")
            if status.st_mode & 0o077:
                os.chmod(path, 0o600)
        except OSError as error:
            why = (error.strerror or "cannot be opened").lower()
            raise StoreError(
                f"{path}: {why}", "name a state folder that can be written with --state"
            ) from None
        until = time.monotonic() + BUSY_S
        while True:
            try:
                return self._connected()
            except sqlite3.Error as error:
                # Of hosts that give a new store its log at once, SQLite refuses all but one without a wait.
                is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > until:
                    raise self._broken(error) from None
            time.sleep(_AGAIN_S)

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        (taken,) = connection.execute("PRAGMA user_version").fetchone()
        if taken == len(MIGRATIONS):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            (taken,) = connection.execute("PRAGMA user_version").fetchone()
            if taken > len(MIGRATIONS):
                raise StoreError(
                    f"{self._path}: it was written by a newer version of toolcrib",
                    "use that version, or another folder with --state",
                )
            for step in MIGRATIONS[taken:]:
                connection.execute(step)
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS):d}")
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _broken(self, error: sqlite3.Error) -> StoreError:
        if isinstance(error, sqlite3.OperationalError):
            # SQLite says only that it cannot be opened, also where no descriptor was left.
            hint = (
                "make room, mend its permissions, raise the limit of open files (ulimit -n) or of their size "
                "(ulimit -f), or wait for the program that holds it"
            )
        else:
            # Whoever has it open goes on with the file that was moved, and removes the log of the new one.
            hint = (
                f"it is damaged: stop what serves or calls tools, then move {self._path} and its -wal and "
                "-shm away (it is made anew), or put a backup in its place"
            )
        return StoreError(f"{self._path}: {error}", hint)
