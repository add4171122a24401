"""The store as calls see it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from toolcrib.errors import StoreError
from toolcrib.model import Disabled
from toolcrib.store.disabled import switch_off
from toolcrib.store.keep import Keep
from toolcrib.store.sqlite import SqliteStore


def test_a_store_that_cannot_be_looked_at_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Attack: a store that is broken on purpose, to switch a tool on again."""
    path = tmp_path / "state.sqlite"
    keep = Keep(str(path))
    assert keep.disabled(1.0) == ()
    path.symlink_to(path)
    with pytest.raises(StoreError, match=r"state\.sqlite"):
        keep.disabled(2.0)


@pytest.mark.parametrize(
    "since_s",
    [
        pytest.param(0, id="at-its-beginning"),
        pytest.param(0.999, id="at-its-end-where-it-is-a-second-long"),
        pytest.param(-3600, id="before-the-clock-was-set-back"),
    ],
)
def test_attack_a_tool_switched_off_in_the_tick_in_which_the_store_was_looked_at(
    tmp_path: Path, since_s: float
) -> None:
    path = tmp_path / "state.sqlite"
    tick = 1_700_000_000_000_000_000
    with (
        closing(SqliteStore(str(path))) as store,
        closing(Keep(str(path), clock_ns=lambda: tick + int(since_s * 1e9))) as keep,
    ):
        store.put("other", "x", bytes(200_000), None)
        with closing(sqlite3.connect(path)) as beside:  # from then on the log is written over in place
            beside.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        log = Path(f"{path}-wal")

        def switched_off(tool: str) -> None:
            switch_off(store, Disabled(tool=tool, reason=""), 0.0)
            for file in (path, log):
                os.utime(file, ns=(tick, tick))

        switched_off("first")
        size = log.stat().st_size
        assert [off.tool for off in keep.disabled(1.0)] == ["first"]
        switched_off("second")
        assert log.stat().st_size == size
        assert [off.tool for off in keep.disabled(2.0)] == ["first", "second"]


def test_attack_a_tool_switched_off_while_somebody_looks_is_switched_off_for_the_next_who_asks(
    tmp_path: Path,
) -> None:
    """Attack: the look that was under way is taken for one that came after the switch."""
    path = str(tmp_path / "state.sqlite")
    keep: Keep

    def clock_ns() -> int:  # asked in the midst of a look, after the store was read
        if not switched:
            switched.append("read_file")
            store = SqliteStore(path)
            switch_off(store, Disabled(tool="read_file"), 1.0)
            store.close()
            keep.look_again()
        return 0

    switched: list[str] = []
    keep = Keep(path, clock_ns=clock_ns)
    assert keep.disabled(1.0) == ()
    assert [off.tool for off in keep.disabled(1.0)] == ["read_file"]
    keep.close()
