"""The restricted level: what the kernel can hold without a supervisor of our own. Linux only.

A throw-away thread gives up root, takes the Landlock rules and the filter, and starts the program by the
ordinary way; the program inherits what the thread gave up, and the host gives up nothing. There is no fork of
the host and no code between fork and exec.

What this level cannot do: it has no mount namespace, so protected paths are held by carving the folders that
hold them (``rules.py``), and like the portable level it does not find a descendant that left its group and
its tree. The kernel's own limits, that on processes apart, are set just after the start.
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from toolcrib.errors import shortage
from toolcrib.model import End, Ending, Level
from toolcrib.sandbox import FILES_FIX, Cancel, Standing, Start, _exchange, _kernel, _standing, portable
from toolcrib.sandbox._guard import Guard
from toolcrib.sandbox._scratch import Scratch
from toolcrib.sandbox.ground import Surroundings
from toolcrib.sandbox.rules import KernelRules, Rlimit

_RULESET_S: Final = 2.0


class Restricted:
    """Runs programs inside Landlock and seccomp."""

    level = Level.RESTRICTED

    def __init__(self, surroundings: Surroundings, scratch: Scratch) -> None:
        self._surroundings = surroundings
        self._scratch = scratch
        self._guard = Guard()
        self._rulesets: dict[str, tuple[KernelRules, float, int]] = {}

    def run(self, start: Start, cancel: Cancel) -> Ending:
        no = _exchange.refused(start, self.level, cancel)
        if no is not None:
            return no
        began = time.monotonic()
        folder = ""
        try:
            folder = self._scratch.take()
            return self._run(start, cancel, folder, began)
        except (OSError, RuntimeError) as error:  # RuntimeError: no more threads for this user
            return _unrestricted(error)
        finally:
            if folder:
                self._scratch.give_back(folder)

    def open(self, start: Start) -> Standing | Ending:
        no = _exchange.refused(start, self.level, Cancel())
        if no is not None:
            return no
        began = time.monotonic()
        folder = ""
        opened: list[int] = []
        made: Standing | None = None
        try:
            folder = self._scratch.take()
            rules = self._surroundings.rules(start, folder)
            if rules.unavailable:
                return Ending(end=End.UNAVAILABLE, reason=rules.unavailable, hint=rules.hint)
            if rules.uid is not None:
                os.chown(folder, rules.uid, rules.uid if rules.gid is None else rules.gid)
            if rules.fs_handled:
                opened.append(_kernel.landlock_ruleset(rules))
            thread = _Starter(start, folder, rules, opened[0] if opened else None, opened, standing=True)
            self._guard.prepare()
            thread.start()
            thread.join()
            if not isinstance(thread.outcome, subprocess.Popen):
                return _exchange.not_started(start, thread.outcome, began)
            self._limit_or_end(thread.outcome, start, folder, rules)
            made = _standing.Watched(
                thread.outcome,
                start,
                scratch=folder,
                layers=(self.level.value, *rules.layers),
                guard=self._guard,
                finish=partial(self._scratch.give_back, folder),
            )
            return made
        except (OSError, RuntimeError) as error:
            return _unrestricted(error)
        finally:
            _kernel.close_all(opened)
            if folder and made is None:
                self._scratch.give_back(folder)

    def close(self) -> None:
        _kernel.close_all(fd for _, _, fd in self._rulesets.values())
        self._rulesets.clear()
        self._guard.close()
        self._scratch.close()

    def _run(self, start: Start, cancel: Cancel, folder: str, began: float) -> Ending:
        rules = self._surroundings.rules(start, folder)
        if rules.unavailable:
            return Ending(end=End.UNAVAILABLE, reason=rules.unavailable, hint=rules.hint)
        swapped = _exchange.changed(start)
        if swapped is not None:
            return Ending(end=End.DENIED, reason=f"{swapped} changed after it was checked")
        if rules.uid is not None:
            os.chown(folder, rules.uid, rules.uid if rules.gid is None else rules.gid)
        sealed: list[int] = []
        ruleset = self._ruleset(rules, folder, began) if rules.fs_handled else None
        try:
            thread = _Starter(start, folder, rules, ruleset, sealed)
            self._guard.prepare()
            thread.start()
            thread.join()
            if isinstance(thread.outcome, subprocess.Popen):
                self._limit_or_end(thread.outcome, start, folder, rules)
                ending = _exchange.watch(
                    thread.outcome, start, cancel, began=began, scratch=folder, guard=self._guard
                )
            elif thread.restricted:
                ending = _exchange.not_started(start, thread.outcome, began)
            else:
                return _unrestricted(thread.outcome)
            return replace(ending, layers=(self.level.value, *rules.layers))
        finally:
            _kernel.close_all(sealed)

    def _limit_or_end(
        self, process: subprocess.Popen[bytes], start: Start, folder: str, rules: KernelRules
    ) -> None:
        """What cannot be limited does not run: nobody would watch it."""
        try:
            _limit_from_outside(process.pid, rules)
        except BaseException:
            _exchange.Exchange(process, start, folder, self._guard).finish()
            raise

    def _ruleset(self, rules: KernelRules, folder: str, now: float) -> int:
        """The ruleset of this scratch folder's last call, if it was alike: making one takes a while.

        Only one call has the folder at a time. A path that was removed and made anew since then is another
        one to the kernel, and gets no rights until the ruleset is made again.
        """
        kept = self._rulesets.get(folder)
        if kept is not None and kept[0] == rules and now - kept[1] < _RULESET_S:
            return kept[2]
        made = _kernel.landlock_ruleset(rules)
        self._rulesets[folder] = (rules, now, made)
        if kept is not None:
            os.close(kept[2])
        return made


class _Starter(threading.Thread):
    """The throw-away thread. What it gives up is gone when it ends."""

    def __init__(
        self,
        start: Start,
        folder: str,
        rules: KernelRules,
        ruleset: int | None,
        sealed: list[int],
        *,
        standing: bool = False,
    ) -> None:
        super().__init__(name="restricted", daemon=True)
        self._what = start
        self._folder = folder
        self._rules = rules
        self._ruleset = ruleset
        self._sealed = sealed
        self._standing = standing
        self.restricted = False
        self.outcome: subprocess.Popen[bytes] | OSError | ValueError = OSError("the thread did not run")

    def run(self) -> None:
        try:
            if self._rules.drop_capabilities and os.geteuid() == 0:
                _kernel.become(self._rules.uid, self._rules.gid)
            _kernel.no_new_privileges()
            _kernel.restrict_thread(self._ruleset, self._rules.seccomp)
            self.restricted = True
            with _few_processes(self._rules):
                self.outcome = portable.spawn(self._what, self._folder, self._sealed, standing=self._standing)
        except (OSError, ValueError) as error:  # ValueError: a NUL character
            self.outcome = error


def _unrestricted(error: Exception) -> Ending:
    why = error.strerror if isinstance(error, OSError) else None
    is_spent = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    short = shortage(error)
    hint = FILES_FIX if is_spent else short[1] if short else None
    return Ending(end=End.UNAVAILABLE, reason=f"cannot be restricted: {why or error}", hint=hint)


_HOST_LIMITS: Final = threading.Lock()


@contextmanager
def _few_processes(rules: KernelRules) -> Iterator[None]:
    """Let what is started meanwhile inherit the limit on processes.

    Attack: a fork bomb goes off before limits are set from outside, and every process it made by then is
    free of them. The host itself is held to the limit for that moment, which leaves it room (``rlimits``).
    """
    number = int(Rlimit.NPROC)
    most = dict(rules.rlimits).get(number)
    if most is None:
        yield
        return
    with _HOST_LIMITS:
        soft, hard = resource.getrlimit(number)
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft == resource.RLIM_INFINITY or wanted < soft:
            resource.setrlimit(number, (wanted, hard))
        try:
            yield
        finally:
            resource.setrlimit(number, (soft, hard))


def _limit_from_outside(pid: int, rules: KernelRules) -> None:
    """Not by the thread that started it, whose filter lets it limit nobody else.

    Where the program belongs to another user, by a thread that is that user: root may lack the right to limit
    what belongs to others.
    """
    if rules.uid is None:
        limit(pid, rules)
        return

    def as_that_user() -> None:
        with suppress(OSError):
            _kernel.become(rules.uid, rules.gid)
            limit(pid, rules)

    thread = threading.Thread(target=as_that_user, name="limits", daemon=True)
    thread.start()
    thread.join()


def limit(pid: int, rules: KernelRules) -> None:
    """Set the kernel's own limits of a process that was just started; never above what it has."""
    for number, value in rules.rlimits:
        with suppress(OSError, ValueError):
            _, hard = resource.prlimit(pid, number)
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.prlimit(pid, number, (most, most))
