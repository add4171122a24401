"""Programs that stay: started once inside a permit, spoken to over three pipes, ended with all they started.

The levels share this file. What a level holds for one call (rules, environment, limits) it holds here for as
long as the program lives; there is no deadline, because whoever talks to the program has one for each
question. Nothing here knows what is said over the pipes.

Where the host itself dies, the program sees the end of its stdin, which is how such programs are told to go,
and is killed: by its supervisor, or at the weaker levels by their guard (``_guard.py``).
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from toolcrib.model import HeldName
from toolcrib.sandbox import Start, _exchange, _kernel

if TYPE_CHECKING:
    import subprocess

    from toolcrib.sandbox._guard import Guard

SAMPLE_S: Final = 1.0
"""How often the memory, the processes and the scratch folder of a program that stays are looked at."""

_DEATH_S: Final = 5.0


class _Service(Protocol):
    """What the supervised level offers for a program that stays."""

    def ended(self, timeout_s: float = 0.0) -> bool: ...

    @property
    def ending(self) -> str: ...

    @property
    def held(self) -> tuple[HeldName, ...]: ...

    def is_held(self) -> bool: ...

    def kill(self) -> None: ...


class _Piped:
    """What both kinds do with their pipes. ``stop`` ends the program; it is called once."""

    def __init__(self) -> None:
        self.stdin = self.stdout = self.stderr = -1
        self._lock = threading.Lock()
        self._is_closed = False

    def stop(self) -> None:
        raise NotImplementedError

    def hang_up(self) -> None:
        with self._lock:
            if self.stdin >= 0:
                _kernel.close_all((self.stdin,))
                self.stdin = -1

    def close(self) -> None:
        self.hang_up()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self.stop()
        _kernel.close_all((self.stdout, self.stderr))


class Supervision(_Piped):
    """A program that the spawner supervises: its whole tree ends with it, with us, or with the host."""

    def __init__(self, service: _Service, pipes: tuple[int, int, int], layers: tuple[str, ...]) -> None:
        super().__init__()
        self.stdin, self.stdout, self.stderr = pipes
        self.layers = layers
        self.held = service.held
        self._service = service

    def is_held(self) -> bool:
        return self._service.is_held()

    def ended(self, timeout_s: float = 0.0) -> bool:
        return self._service.ended(timeout_s)

    @property
    def ending(self) -> str:
        return self._service.ending

    def stop(self) -> None:
        self._service.kill()


class Watched(_Piped):
    """A program of a level without a supervisor: a thread of ours looks after it."""

    held: tuple[HeldName, ...] = ()

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        start: Start,
        *,
        scratch: str,
        layers: tuple[str, ...],
        finish: Callable[[], None],
        guard: Guard | None = None,
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        super().__init__()
        self.layers = layers
        self._exchange = _exchange.Exchange(process, start, scratch, guard)
        self._finish = finish
        self._ending = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="standing", daemon=True)
        held: list[int] = []
        try:
            # Copies, so that nobody closes what another thread is reading from.
            for pipe in (process.stdin, process.stdout, process.stderr):
                held.append(os.dup(pipe.fileno()))
            self.stdin, self.stdout, self.stderr = held
            self._stop_read, self._stop_write = os.pipe()
            held += (self._stop_read, self._stop_write)
            for pipe in (process.stdin, process.stdout, process.stderr):
                pipe.close()
            process.stdin = process.stdout = process.stderr = None
            self._thread.start()
        except BaseException:
            # No descriptors or threads are left: a program that nobody watches must not run.
            _kernel.close_all(held)
            self._exchange.finish()
            raise

    def _watch(self) -> None:
        exchange = self._exchange
        reason = ""
        try:
            exchange.exit = _exchange.ExitWatch(exchange.process.pid)
            waiting = select.poll()
            waiting.register(exchange.exit.fileno(), select.POLLIN)
            waiting.register(self._stop_read, select.POLLIN)
            while not exchange.exit.ended:
                found = dict(waiting.poll(SAMPLE_S * 1000))
                if self._stop_read in found:
                    reason = "stopped"
                    break
                exchange.exit.ended = exchange.exit.fileno() in found
                if not exchange.exit.ended and (over := exchange.counted()):
                    reason = f"stopped: {over}"
                    break
        except OSError as error:
            reason = f"cannot be watched: {error.strerror or error}"
        finally:
            status, _ = exchange.finish()
            if not reason:
                reason = "contact was lost" if status is None else _words(status)
            self._ending = reason
            self._finish()
            self._over.set()

    def is_held(self) -> bool:
        return True  # nothing is held by mounts: a file that is replaced is another one to Landlock

    def ended(self, timeout_s: float = 0.0) -> bool:
        return self._over.wait(timeout_s)

    @property
    def ending(self) -> str:
        return self._ending

    def stop(self) -> None:
        with suppress(OSError):
            os.write(self._stop_write, b"x")
        self._thread.join(_DEATH_S)
        _kernel.close_all((self._stop_read, self._stop_write))


def _words(status: int) -> str:
    return f"killed by signal {status - 128}" if status > 128 else f"exit status {status}"
