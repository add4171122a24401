"""What wraps a runtime: keys that run once, what must not be made, large results; more in test_engine.py."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.strategies import make_tool
from toolcrib import jsontext
from toolcrib.bound import BoundTool
from toolcrib.model import (
    Effect,
    End,
    Ending,
    HeldName,
    Permit,
    Reply,
    Retry,
    Run,
    ToolCall,
    ToolResult,
)
from toolcrib.model import TextBlock as Text
from toolcrib.runtimes import around
from toolcrib.runtimes.around import Limited, Once, Spill, Watched
from toolcrib.sandbox import Cancel, _placeholders
from toolcrib.store import Store
from toolcrib.store.leases import Leases
from toolcrib.store.sqlite import SqliteStore
from toolcrib.testing import ScriptedRuntime

ROOT = Path(__file__).parent.parent.parent
GOOD = Ending(end=End.EXITED, exit_status=0, stdout=b"fine", stdout_bytes=4)
TOOL = make_tool("add")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = SqliteStore(str(tmp_path / "state.sqlite"))
    yield opened
    opened.close()


@pytest.fixture
def leases(tmp_path: Path) -> Leases:
    return Leases(str(tmp_path / "running"))


def asked(key: str, number: int = 1) -> ToolCall:
    return ToolCall(id=f"c-{key}", tool="add", arguments={"n": number}, idempotency_key=key)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


# -- one run per idempotency key ----------------------------------------------------------------------------


def test_a_key_counts_for_a_day_and_may_then_be_used_for_something_else(store: Store, leases: Leases) -> None:
    clock, inner = Clock(), ScriptedRuntime([GOOD, GOOD])
    once = Once(inner, lambda: store, leases, clock)
    once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel())
    clock.now += around.LEDGER_S - 1
    assert once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel()).stdout == b"fine"
    assert len(inner.calls) == 1
    clock.now += 2
    assert once.run(BoundTool(TOOL), asked("k", 2), Permit(), Cancel()).stdout == b"fine"
    assert len(inner.calls) == 2
    assert once.run(BoundTool(TOOL), asked("k", 1), Permit(), Cancel()).end is End.REFUSED


def test_keys_that_no_longer_count_are_removed(store: Store, leases: Leases) -> None:
    clock = Clock()
    for number in range(5):
        Once(ScriptedRuntime([GOOD]), lambda: store, leases, clock).run(
            BoundTool(TOOL), asked(f"k{number}"), Permit(), Cancel()
        )
    assert len(store.keys("ledger")) == 5
    clock.now += around.LEDGER_S + 2
    Once(ScriptedRuntime([GOOD]), lambda: store, leases, clock).run(
        BoundTool(TOOL), asked("new"), Permit(), Cancel()
    )
    assert len(store.keys("ledger")) == 1
    assert len(store.keys("ledger-times")) == 1


def test_no_more_keys_are_remembered_than_there_is_room_for(store: Store, leases: Leases) -> None:
    """Attack: a caller with a new key for every call, until the disk is full."""
    for number in range(around.LEDGER_MAX + 3):
        store.put("ledger-times", f"{number:012d} gone{number}", b"", None)
    Once(ScriptedRuntime([GOOD]), lambda: store, leases, lambda: 5.0).run(
        BoundTool(TOOL), asked("k"), Permit(), Cancel()
    )
    left = store.keys("ledger-times", limit=2 * around.LEDGER_MAX)
    assert len(left) == around.LEDGER_MAX + 1  # the oldest three are gone, and there is a new one
    assert left[0].endswith("gone3")


def test_a_call_whose_key_is_in_progress_is_told_to_wait_for_it(store: Store, leases: Leases) -> None:
    entered, held = threading.Event(), threading.Event()

    class Holding:
        def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
            entered.set()
            held.wait(10)
            return GOOD

    once = Once(Holding(), lambda: store, leases)
    first = threading.Thread(
        target=lambda: once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel()), daemon=True
    )
    first.start()
    assert entered.wait(10)
    second = once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel())
    elsewhere = Once(ScriptedRuntime([]), lambda: store, leases).run(
        BoundTool(TOOL), asked("k"), Permit(), Cancel()
    )
    reading = replace(TOOL, effect=Effect.READ)
    harmless = Once(ScriptedRuntime([GOOD]), lambda: store, leases).run(
        BoundTool(reading), asked("k"), Permit(), Cancel()
    )
    held.set()
    first.join(10)
    assert (second.end, second.reason) == (
        End.UNAVAILABLE, "call c-k with this idempotency key is in progress",
    )  # fmt: skip
    assert (elsewhere.end, elsewhere.reason) == (second.end, second.reason)
    assert elsewhere.hint == "call again with the same key when it has ended, to get its result"
    assert harmless.stdout == b"fine"
    assert once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel()).stdout == b"fine"


RUNS = """
import os, sys, time
from tests.runtimes.test_around import BoundTool, TOOL, asked, GOOD, Once, Leases, Permit, Cancel, SqliteStore

class Holding:
    def run(self, *given):
        if sys.argv[2] != "forks" or os.fork() == 0:  # the copy lives on
            print("running", flush=True)
        sys.stdin.read()
        return GOOD

store = SqliteStore(f"{sys.argv[1]}/state.sqlite")
once = Once(Holding(), lambda: store, Leases(f"{sys.argv[1]}/running"))
print(once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel()).end.value, flush=True)
"""


@contextmanager
def another_host(folder: Path, how: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that runs the first call with the key, until its stdin ends."""
    with subprocess.Popen(
        [sys.executable, "-c", RUNS, str(folder), how],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as host:  # fmt: skip
        assert host.stdout is not None
        try:
            assert host.stdout.readline() == "running\n"
            yield host
        finally:
            host.kill()


IN_PROGRESS = (End.UNAVAILABLE, "call c-k with this idempotency key is in progress")


def test_a_call_whose_key_another_live_process_uses_is_told_that_it_runs(
    store: Store, leases: Leases, tmp_path: Path
) -> None:
    once = Once(ScriptedRuntime([]), lambda: store, leases)
    with another_host(tmp_path) as host:
        for _ in range(3):
            told = once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel())
            assert (told.end, told.reason) == IN_PROGRESS
        assert host.stdin is not None
        assert host.stdout is not None
        host.stdin.close()
        assert host.stdout.readline() == "exited\n"
    again = once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel())
    assert (again.stdout, again.notes) == (
        b"fine", ("answered by call c-k, which had the same idempotency key",),
    )  # fmt: skip
    assert os.listdir(tmp_path / "running") == []


@pytest.mark.battery("K06")
@pytest.mark.parametrize("how", ["", "forks"])
def test_a_call_whose_key_a_killed_process_used_has_an_unknown_outcome(
    store: Store, leases: Leases, tmp_path: Path, how: str
) -> None:
    """Also where a copy of it, made by fork, lives on."""
    once = Once(ScriptedRuntime([]), lambda: store, leases)
    with another_host(tmp_path, how) as host:
        assert once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel()).end is End.UNAVAILABLE
        host.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, host.pid, os.WEXITED | os.WNOWAIT)
        told = once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel())
    assert told.end is End.LOST
    assert "its host ended before it did" in told.reason


def test_a_call_that_ends_while_another_looks_answers_it(
    store: Store, leases: Leases, tmp_path: Path
) -> None:
    first = Once(ScriptedRuntime([GOOD]), lambda: store, leases)

    class Ends(Leases):
        """The first call ends between the look at its claim and the one at its lease."""

        def is_held(self, name: str) -> bool:
            store.put("ledger", claim, kept.value, None)
            return False

    first.run(BoundTool(TOOL), asked("k"), Permit(), Cancel())
    (claim,) = store.keys("ledger")
    found = store.get("ledger", claim)
    assert found is not None
    kept = found
    entry = jsontext.loads_own(kept.value)
    del entry["ending"]
    store.put("ledger", claim, jsontext.compact(entry), None)
    second = Once(ScriptedRuntime([]), lambda: store, Ends(str(tmp_path / "running")))
    assert second.run(BoundTool(TOOL), asked("k"), Permit(), Cancel()).stdout == b"fine"


def test_attack_a_call_that_was_denied_after_it_ran_runs_once(store: Store, leases: Leases) -> None:
    ran = Ending(end=End.DENIED, reason="hooks appeared while it ran", runs=(Run(argv=("t",)),))
    inner = ScriptedRuntime([ran, GOOD])
    once = Once(inner, lambda: store, leases)
    first, second = (once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel()) for _ in range(2))
    assert (first.end, second.end, len(inner.calls)) == (End.DENIED, End.DENIED, 1)


def test_of_calls_with_one_key_at_once_one_runs(store: Store, leases: Leases, tmp_path: Path) -> None:
    inner = ScriptedRuntime([GOOD])
    barrier = threading.Barrier(8)
    ends: list[Ending] = []

    def call() -> None:
        once = Once(inner, lambda: store, Leases(str(tmp_path / "running")))
        barrier.wait()
        ends.append(once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel()))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(inner.calls) == 1
    assert {ending.end for ending in ends} <= {End.EXITED, End.UNAVAILABLE}
    assert os.listdir(tmp_path / "running") == []


@pytest.mark.parametrize("kind", ["file", "link", "open"])
def test_nothing_runs_where_no_lease_can_be_held(store: Store, tmp_path: Path, kind: str) -> None:
    """Attack: a folder of another user in the place of ours, whose files others lock or take away."""
    place = tmp_path / "running"
    if kind == "file":
        place.write_bytes(b"")
    elif kind == "link":
        (tmp_path / "other").mkdir()
        place.symlink_to(tmp_path / "other")
    else:
        place.mkdir()
        place.chmod(0o777)
    inner = ScriptedRuntime([GOOD])
    told = Once(inner, lambda: store, Leases(str(place))).run(BoundTool(TOOL), asked("k"), Permit(), Cancel())
    assert (told.end, inner.calls) == (End.UNAVAILABLE, [])
    assert told.reason.startswith(f"the idempotency key cannot be kept: {place}")
    assert told.hint
    assert store.keys("ledger") == []


def test_marks_that_killed_hosts_left_are_removed_and_those_of_live_calls_stay(
    leases: Leases, tmp_path: Path
) -> None:
    long_ago = time.time() - 2 * 86_400
    with leases.taken() as name:
        for each in ("dead", name):
            path = tmp_path / "running" / each
            path.touch()
            os.utime(path, (long_ago, long_ago))
        (tmp_path / "running" / "young").touch()
        leases.sweep()
        assert sorted(os.listdir(tmp_path / "running")) == sorted([name, "young"])
        assert Leases(str(tmp_path / "running")).is_held(name)
        assert not leases.is_held("young")
        assert not leases.is_held("../state.sqlite")
    assert os.listdir(tmp_path / "running") == ["young"]


def test_what_is_given_again_is_what_was_given(store: Store, leases: Leases) -> None:
    first = Ending(
        end=End.RETURNED, stdout=b"\xff\0", stderr=b"e", stdout_bytes=2, stderr_bytes=1, value={"a": [1]},
        kind_of_value="dict", blocks=(Text(text="t"),), reason="r", hint="h",
    )  # fmt: skip
    once = Once(ScriptedRuntime([first]), lambda: store, leases)
    once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel())
    again = once.run(BoundTool(TOOL), asked("k"), Permit(), Cancel())
    assert replace(again, notes=()) == first
    assert again.notes == ("answered by call c-k, which had the same idempotency key",)


# -- repositories -------------------------------------------------------------------------------------------


class Doing:
    """A tool that does this, or a person who does it meanwhile."""

    def __init__(self, act: Callable[[], object], ending: Ending = GOOD) -> None:
        self._act = act
        self._ending = ending

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        self._act()
        return self._ending


def watched(act: Callable[[], object], permit: Permit, ending: Ending = GOOD) -> Ending:
    return Watched(Doing(act, ending)).run(BoundTool(TOOL), asked("k"), permit, Cancel())


def aside(path: Path) -> Path:
    """Where what had this name is now."""
    (found,) = path.parent.glob(f"{path.name}.toolcrib-*")
    return found


@pytest.mark.parametrize("as_folder", [False, True])
def test_what_must_not_exist_is_renamed_and_the_call_is_denied(tmp_path: Path, as_folder: bool) -> None:
    """Attack: a tool that makes the hooks folder which the user's next git command runs."""
    hooks = tmp_path.resolve() / "hooks"

    def make() -> None:
        if as_folder:
            (hooks / "deep").mkdir(parents=True)
        else:
            hooks.symlink_to("/etc/passwd")

    permit = Permit(forbidden=(str(hooks),))
    gave = replace(GOOD, value={"a": 1}, blocks=(Text(text="what it gave"),))
    ending = watched(make, permit, gave)
    assert (ending.end, ending.value, ending.blocks) == (End.DENIED, None, None)
    assert not os.path.lexists(hooks)
    moved = aside(hooks)
    assert (
        ending.reason == f"{hooks} appeared while it ran and is now {moved} (rename it back if you made it)"
    )
    assert (moved / "deep").is_dir() if as_folder else moved.readlink() == Path("/etc/passwd")
    assert watched(lambda: None, permit) is GOOD


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_attack_a_tool_locks_the_folder_of_what_it_made(tmp_path: Path) -> None:
    hooks = tmp_path.resolve() / "hooks"

    def make() -> None:
        hooks.mkdir()
        hooks.chmod(0o000)
        tmp_path.chmod(0o555)

    assert watched(make, Permit(forbidden=(str(hooks),))).end is End.DENIED
    assert not hooks.exists()
    assert aside(hooks).stat().st_mode & 0o777 == 0
    assert tmp_path.stat().st_mode & 0o777 == 0o555


def test_attack_a_folder_above_a_name_becomes_a_link_to_another_repository(tmp_path: Path) -> None:
    """The link goes, and not the other repository's folder that it leads to."""
    top, other = tmp_path.resolve() / "top", tmp_path.resolve() / "other"
    top.mkdir()
    (other / ".git").mkdir(parents=True)
    ending = watched(lambda: (top / "sub").symlink_to(other), Permit(forbidden=(str(top / "sub" / ".git"),)))
    assert ending.end is End.DENIED
    assert (other / ".git").is_dir()
    assert os.listdir(other) == [".git"]
    assert aside(top / "sub").readlink() == other


@pytest.mark.skipif(not os.path.isdir("/proc/self/fdinfo"), reason="there is no /proc; run on Linux")
def test_a_forbidden_name_that_cannot_be_renamed_is_said_to_be_there() -> None:
    number = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 500)
    os.close(number)
    path = f"/proc/{os.getpid()}/fdinfo/{number}"
    try:
        ending = watched(lambda: os.dup2(0, number), Permit(forbidden=(path,)))
    finally:
        os.close(number)
    assert ending.end is End.DENIED
    assert ending.reason.startswith(f"{path} appeared while it ran; remove it, for git obeys it (")


def test_what_was_there_before_the_call_is_left_alone(tmp_path: Path) -> None:
    """The user may have made it since the tool's ground was looked at."""
    hooks = tmp_path.resolve() / "hooks"
    hooks.mkdir()
    assert watched(lambda: None, Permit(forbidden=(str(hooks),))) is GOOD
    assert hooks.is_dir()


def test_what_a_person_makes_at_a_name_that_was_held_stays_and_the_call_succeeds(tmp_path: Path) -> None:
    config = tmp_path.resolve() / "config.worktree"
    ending = replace(GOOD, held=(HeldName(path=str(config), stamp=(1, 2, 3)),))
    permit = Permit(forbidden=(str(config),))
    assert watched(lambda: config.write_text("[a]\n", encoding="ascii"), permit, ending) == replace(
        ending, notes=(f"{config} changed while the tool ran: check it before you run git",)
    )
    assert config.read_text(encoding="ascii") == "[a]\n"
    assert watched(lambda: None, permit, replace(GOOD, held=())) == GOOD, "it was there before"


def test_a_placeholder_that_turns_into_something_where_nothing_holds_it_is_renamed(tmp_path: Path) -> None:
    """Attack: a tool of a host that cannot hold names writes into what another host has put there."""
    hooks = tmp_path.resolve() / "hooks"
    held = _placeholders.hold([str(hooks)])
    assert watched(lambda: (hooks / "pre-commit").touch(), Permit(forbidden=(str(hooks),))).end is End.DENIED
    assert os.listdir(aside(hooks)) == ["pre-commit"]
    held.close()


def test_nothing_is_renamed_after_a_call_of_which_nothing_ran_here(tmp_path: Path) -> None:
    hooks = tmp_path.resolve() / "hooks"
    elsewhere = replace(GOOD, held=None)
    assert watched(hooks.mkdir, Permit(forbidden=(str(hooks),)), elsewhere) is elsewhere
    assert hooks.is_dir()


def test_what_appeared_is_renamed_after_an_interrupt_as_well_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = tmp_path.resolve() / "hooks"

    def act() -> None:
        hooks.mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(act, Permit(forbidden=(str(hooks),)))
    assert str(aside(hooks)) in caplog.text


def test_a_protected_file_that_changed_is_noted(tmp_path: Path) -> None:
    config = tmp_path.resolve() / "config"
    config.touch()
    permit = Permit(git=(str(config.parent),), protected=(str(config),))

    def replace_it() -> None:
        (tmp_path / "config.lock").touch()
        (tmp_path / "config.lock").replace(config)

    ending = watched(replace_it, permit)
    assert ending.notes == (f"{config} changed while the tool ran: check it before you run git",)


LINKS = {
    "the log": ("logs/HEAD", "{out}"),
    "a folder of logs": ("logs/refs", "{out}"),
    "a message": ("COMMIT_EDITMSG", "../{name}"),
    "through another folder": ("index", "logs/../../{name}"),
    "what git obeys": ("logs/HEAD", "../config"),
    "what git would obey": ("logs/HEAD", "../hooks"),
}


@pytest.mark.parametrize("way", LINKS)
def test_attack_a_link_leads_the_users_git_out_of_the_repository(tmp_path: Path, way: str) -> None:
    folder, out = tmp_path.resolve() / ".git", tmp_path.resolve() / "out"
    (folder / "logs").mkdir(parents=True)
    (folder / "config").touch()
    out.mkdir()
    name, target = LINKS[way]
    permit = Permit(
        git=(str(folder),), protected=(str(folder / "config"),), forbidden=(str(folder / "hooks"),)
    )
    ending = watched(lambda: (folder / name).symlink_to(target.format(out=out, name=out.name)), permit)
    assert ending.end is End.DENIED
    assert str(folder / name) in ending.reason
    assert not (folder / name).is_symlink()


def test_links_that_stay_in_the_repository_or_were_there_before_are_left(tmp_path: Path) -> None:
    """An old repository has a HEAD that is a link, and a person's may have its logs elsewhere."""
    folder = tmp_path.resolve() / ".git"
    (folder / "refs" / "heads").mkdir(parents=True)
    (folder / "logs").symlink_to("/tmp")
    assert (
        watched(lambda: (folder / "HEAD").symlink_to("refs/heads/main"), Permit(git=(str(folder),))) is GOOD
    )
    assert (folder / "HEAD").is_symlink()
    assert (folder / "logs").is_symlink()


def test_attack_so_many_links_that_the_reason_has_no_end(tmp_path: Path) -> None:
    folder = tmp_path.resolve() / ".git"
    folder.mkdir()

    def make() -> None:
        for number in range(50):
            (folder / f"{number}\n{'x' * 200}").symlink_to("/" + "y" * 3000)

    ending = watched(make, Permit(git=(str(folder),)))
    assert ending.reason.endswith("; and 45 more")
    assert len(ending.reason) < 4000
    assert "\n" not in ending.reason
    assert os.listdir(folder) == []


def test_every_call_that_is_repeated_or_watched_goes_through_what_does_so() -> None:
    wrapped, bare = ScriptedRuntime([GOOD, GOOD]), ScriptedRuntime([GOOD])
    limited = Limited(wrapped, 1, bare)
    limited.run(BoundTool(replace(TOOL, retry=Retry(max_attempts=2))), asked("repeated"), Permit(), Cancel())
    limited.run(
        BoundTool(replace(TOOL, retry=None)), asked("watched"), Permit(forbidden=("/p/hooks",)), Cancel()
    )
    limited.run(BoundTool(replace(TOOL, retry=None)), asked("neither"), Permit(), Cancel())
    assert [call.id for _, call, _ in wrapped.calls] == ["c-repeated", "c-watched"]
    assert [call.id for _, call, _ in bare.calls] == ["c-neither"]


# -- large results ------------------------------------------------------------------------------------------


def test_a_long_result_is_kept_whole_and_can_be_paged(tmp_path: Path) -> None:
    spill = Spill(str(tmp_path / "results"), 1000)
    text = "é" * 5000
    given = ToolResult(call_id="c1", blocks=(Text(text=text),), data={"a": 1})
    short = spill(replace(TOOL, reply=Reply.PLAIN_TEXT), given)
    assert short.spent.truncated
    assert short.data is None
    assert len(short.content) < len(text)
    whole, offset = b"", 0
    while True:
        page, size = spill.page("c1", offset, 4096)
        if not page:
            break
        whole, offset = whole + page, offset + len(page)
    assert (whole.decode("utf-8"), size) == (text, len(text.encode("utf-8")))
    assert (tmp_path / "results" / "c1").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("reply", Reply)
def test_text_that_is_cut_stays_text_whatever_the_format(tmp_path: Path, reply: Reply) -> None:
    spill = Spill(str(tmp_path), 1000)
    given = ToolResult(call_id="c1", blocks=(Text(text="line\n" * 1000),))
    short = spill(replace(TOOL, reply=reply), given)
    assert short.content.startswith("line\nline\n")
    assert "\n… cut: the whole result has 5000 bytes. " in short.content


@pytest.mark.parametrize("call_id", ["../state.sqlite", "", "a/b", "c\0d", "gone"])
def test_a_page_of_what_is_no_result_is_refused(tmp_path: Path, call_id: str) -> None:
    """Attack: an id that is a path out of the folder of results."""
    (tmp_path / "state.sqlite").write_text("secret", encoding="utf-8")
    with pytest.raises(FileNotFoundError):
        Spill(str(tmp_path / "results"), 10).page(call_id, 0, 100)
