"""Counters in the store: nothing is let through twice, by threads, processes or after a restart."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.program import WAIT_S
from tests.trust.test_budgets import charge
from toolcrib.errors import Kind, StoreError
from toolcrib.store.keep import Keep
from toolcrib.store.sqlite import SqliteStore
from toolcrib.trust import spending
from toolcrib.trust.budgets import used
from toolcrib.trust.spending import Spending


@pytest.fixture
def store(tmp_path: Path):
    opened = SqliteStore(str(tmp_path / "state" / "state.sqlite"))
    yield opened
    opened.close()


def over(store: SqliteStore) -> Spending:
    return Spending(lambda: store, lambda: store)


def test_64_callers_at_once_get_exactly_what_there_is(store: SqliteStore) -> None:
    asked, spent = charge(calls_max=40, within_s=3600.0), over(store)
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda _: spent.reserve([asked], 1000.0), range(64)))
    refused = [answer for answer in answers if answer is not None]
    assert len(refused) == 24
    assert {answer.kind for answer in refused} == {Kind.UNAVAILABLE}
    assert all(answer.again_s is not None and answer.again_s > 0 for answer in refused)
    assert used(spent.of([asked], 1000.0)["c"]) == (40, 0)


_PROCESS = """
import sys
from tests.trust.test_budgets import charge
from toolcrib.store.sqlite import SqliteStore
from toolcrib.trust.spending import Spending
store = SqliteStore(sys.argv[1])
spent = Spending(lambda: store, lambda: store)
asked = charge(calls_max=30, within_s=3600.0)
print(sum(spent.reserve([asked], 1000.0) is None for _ in range(20)))
"""


def test_processes_share_what_there_is_and_a_restart_gives_nothing_back(tmp_path: Path) -> None:
    path = str(tmp_path / "state" / "state.sqlite")
    root = str(Path(__file__).parent.parent.parent)
    command = [sys.executable, "-c", _PROCESS, path]
    running = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    got = [int(process.communicate(timeout=WAIT_S)[0]) for process in running]
    assert sum(got) == 30
    store = SqliteStore(path)
    assert over(store).reserve([charge(calls_max=30, within_s=3600.0)], 1001.0) is not None
    store.close()


def test_a_call_takes_from_all_its_budgets_or_from_none(store: SqliteStore) -> None:
    wide, narrow = charge(counter="wide", calls_max=10), charge(counter="narrow", calls_max=1)
    spent = over(store)
    assert spent.reserve([wide, narrow], 5.0) is None
    refused = spent.reserve([wide, narrow], 5.0)
    assert refused is not None
    counted = spent.of([wide, narrow], 5.0)
    assert (used(counted["wide"]), used(counted["narrow"])) == ((1, 0), (1, 0))


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"slots": 5}', b'{"slots": [[1, -5, 0]]}', b'{"slots": [[1]]}']
)
def test_attack_damage_makes_no_budget_whole_again_and_heals_after_its_time(
    damage: bytes, store: SqliteStore
) -> None:
    asked, spent = charge(calls_max=2), over(store)
    store.put(spending.SHELF, "c", damage, None)
    assert spent.reserve([asked], 100.0) is not None
    assert used(spent.of([asked], 100.0)["c"])[0] > 2
    assert spent.reserve([asked], 161.5) is None


def test_counters_that_count_no_longer_are_swept(store: SqliteStore) -> None:
    spent = over(store)
    store.put(spending.SHELF, "damaged", b"?", None)
    for number in range(3):
        assert Spending(lambda: store, lambda: store).reserve([charge(counter=f"old{number}")], 0.0) is None
    assert spent.reserve([charge(counter="new")], 1000.0) is None
    assert list(store.keys(spending.SHELF)) == ["damaged", "new"]


def test_whoever_only_looks_makes_no_store(tmp_path: Path) -> None:
    path = tmp_path / "state" / "state.sqlite"
    keep = Keep(str(path))
    assert Spending(keep.opened, keep.present).of([charge()], 0.0) == {}
    assert not path.parent.exists()


class _Contended:
    """A store in which somebody else is always faster."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    def put(self, shelf: str, key: str, value: bytes, version: int | None) -> int:
        self._store.put(shelf, key, value, None)
        return self._store.put(shelf, key, value, version)


def test_a_counter_that_is_never_free_ends_in_an_error_and_not_in_a_loop(store: SqliteStore) -> None:
    contended = _Contended(store)
    spent = Spending(lambda: contended, lambda: contended)
    with pytest.raises(StoreError):
        spent.reserve([charge(calls_max=10**9)], 0.0)
