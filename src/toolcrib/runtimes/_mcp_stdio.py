"""A server as a process: one message per line on its stdin and stdout, its complaints on stderr.

One thread reads for all who ask. A line that is too long, a flood of messages or a broken message ends the
connection with a reason; the process is ended with everything it started. Lines that are no JSON at all are
passed over: many servers greet people on their stdout.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from toolcrib import mcp_wire as wire
from toolcrib.jsontext import JsonObject
from toolcrib.model import HeldName
from toolcrib.runtimes import _mcp_client as client
from toolcrib.sandbox import NEVER, NOT_STARTED, Cancel, Standing

STDERR_BYTES_KEPT: Final = 64 << 10

_CHUNK_BYTES: Final = 64 << 10
_STEP_S: Final = 0.05
_LAST_WORDS_S: Final = 0.3
_REPLY_S: Final = 5.0
_CANCEL_S: Final = 1.0
_JOIN_S: Final = 2.0


class StdioLine:
    """The connection to one server process."""

    def __init__(
        self,
        standing: Standing,
        limits: client.WireLimits,
        *,
        changed: Callable[[], None],
        ended: Callable[[str], None],
    ) -> None:
        """``changed``: its tools are others now. ``ended``: the connection is over, and why. Both are called
        by the thread that reads."""
        self._standing = standing
        self._limits = limits
        self._changed = changed
        self._ended = ended
        self._desk = client.Desk(limits)
        self._writing = threading.Lock()
        self._stderr = bytearray()
        self._is_closed = False
        self._host = os.getpid()
        self._closing = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="mcp-reader", daemon=True)
        held: tuple[int, ...] = ()
        try:
            os.set_blocking(standing.stdin, False)
            held = self._wake_read, self._wake_write = os.pipe()
            self._reader.start()
        except BaseException:  # no descriptors or threads are left: nobody else knows of the process
            standing.close()
            for end in held:
                os.close(end)
            raise

    @property
    def layers(self) -> tuple[str, ...]:
        return self._standing.layers

    @property
    def held(self) -> tuple[HeldName, ...]:
        return self._standing.held

    def is_held(self) -> bool:
        return self._standing.is_held()

    @property
    def why_closed(self) -> str | None:
        if self._host != os.getpid():
            return "this process is a copy of the one that started the server"
        return self._desk.why_closed

    @property
    def is_busy(self) -> bool:
        return self._desk.is_busy

    def stderr(self) -> bytes:
        """The last that it complained about."""
        return bytes(self._stderr)

    # -- asking ---------------------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        params: JsonObject,
        *,
        deadline: float,
        cancel: Cancel,
        headers: Mapping[str, str] | None = None,
        heard: client.Heard | None = None,
    ) -> client.Answer:
        waiting = self._desk.take_number(heard)
        try:
            self._write(client.question(waiting.number, method, params), deadline, cancel)
            return waiting.wait(deadline, cancel)
        except (client.Late, client.Stopped) as late:
            if late.sent and method not in ("initialize", "server/discover"):
                why = "cancelled" if isinstance(late, client.Stopped) else "the time is up"
                self._take_back(waiting.number, why)
            raise
        finally:
            self._desk.forget(waiting)

    def tell(self, method: str, *, deadline: float, cancel: Cancel) -> None:
        self._write(wire.notification(method), deadline, cancel)

    def listen(self, greeting: client.Greeting) -> None:
        """The older era tells unasked. The stateless one is asked, by a question that stays open."""
        if greeting.is_modern and greeting.changes:
            with suppress(client.Unanswered):
                message = client.question("listen", "subscriptions/listen", client.listening())
                self._write(message, time.monotonic() + _REPLY_S, NEVER)

    def _take_back(self, number: int, why: str) -> None:
        """Tell the server that nobody waits for an answer any more. Attack: a server that does not read, so
        that its callers come late: whoever gave up does not wait, a thread of its own does."""
        message = wire.notification("notifications/cancelled", {"requestId": number, "reason": why})
        if self._writing.acquire(blocking=False):
            try:
                # Shorter than what a pipe takes whole or not at all, so no half of it can go out.
                if len(message) < select.PIPE_BUF and not self._is_closed:
                    os.write(self._standing.stdin, message + b"\n")
                    return
            except BlockingIOError:
                pass
            except OSError:  # it is gone, and the thread that reads says so
                return
            finally:
                self._writing.release()

        def tell() -> None:
            with suppress(client.Unanswered):
                self._write(message, time.monotonic() + _CANCEL_S, NEVER)

        with suppress(RuntimeError):  # no more threads for this user: it is not told
            threading.Thread(target=tell, name="mcp-cancel", daemon=True).start()

    def _write(self, message: bytes, deadline: float, cancel: Cancel) -> None:
        """Raises Unanswered; ``sent`` is False only where no byte of the message went out."""
        left = memoryview(message + b"\n")
        whole = len(left)
        while not self._writing.acquire(timeout=_STEP_S):
            self._check(deadline, cancel, sent=False)
        try:
            while left:
                if self._is_closed:
                    raise client.Unanswered("the connection was closed", sent=len(left) < whole)
                try:
                    left = left[os.write(self._standing.stdin, left) :]
                except BlockingIOError:
                    self._check(deadline, cancel, sent=len(left) < whole)
                    waiting = select.poll()
                    waiting.register(self._standing.stdin, select.POLLOUT)
                    waiting.poll(_STEP_S * 1000)
                except OSError as error:
                    why = self._why_deaf(error, deadline)
                    raise client.Unanswered(why, sent=len(left) < whole) from None
        except (client.Late, client.Stopped) as late:
            if late.sent:  # half a line went out: whatever came after it would be misread
                self._end("it stopped reading in the middle of a message")
            raise
        finally:
            self._writing.release()

    def _why_deaf(self, error: OSError, deadline: float) -> str:
        """Why nothing can be written any more: how the server ended, which the reader is about to find out,
        and not what the kernel calls its pipe."""
        if self._reader is not threading.current_thread():
            self._reader.join(min(_LAST_WORDS_S * 2, max(0.0, deadline - time.monotonic())))
        if isinstance(error, BrokenPipeError):
            return self._desk.why_closed or "it closed its stdin"
        return self._desk.why_closed or f"it cannot be written to: {(error.strerror or 'unknown').lower()}"

    @staticmethod
    def _check(deadline: float, cancel: Cancel, *, sent: bool) -> None:
        if cancel.is_set:
            raise client.Stopped("cancelled", sent=sent)
        if time.monotonic() >= deadline:
            raise client.Late("it does not read its stdin", sent=sent)

    # -- the thread that reads ------------------------------------------------------------------------------

    def _read(self) -> None:
        why = "the connection ended"
        try:
            why = self._read_all()
        except client.Unanswered as broken:
            why = broken.why
        except OSError as error:
            why = f"it cannot be read from: {(error.strerror or 'unknown').lower()}"
        finally:
            self._last_words()
            self._desk.close(why)
            self._ended(why)

    def _read_all(self) -> str:
        stdout, stderr = self._standing.stdout, self._standing.stderr
        waiting = select.poll()
        for fd in (stdout, stderr, self._wake_read):
            waiting.register(fd, select.POLLIN)
        held = bytearray()
        while True:
            for fd, _ in waiting.poll():
                if fd == self._wake_read:
                    return self._desk.why_closed or "it was closed"
                chunk = os.read(fd, _CHUNK_BYTES)
                if fd == stderr:
                    self._keep(chunk)
                    if chunk:
                        self._desk.count(0, len(chunk))
                    else:
                        waiting.unregister(stderr)
                elif not chunk:
                    return self._how_it_ended()
                else:
                    held = self._lines(held, chunk)

    def _lines(self, held: bytearray, chunk: bytes) -> bytearray:
        """Take whole lines out of what came; the rest is given back."""
        if b"\n" not in chunk:
            held += chunk
        else:
            *lines, rest = (bytes(held) + chunk).split(b"\n")
            for line in lines:
                self._take(line)
            held = bytearray(rest)
        if len(held) > self._limits.message_bytes_max:
            raise client.Unanswered(
                f"it sent a message of more than {self._limits.message_bytes_max} bytes", sent=True
            )
        return held

    def _take(self, line: bytes) -> None:
        line = line.strip()
        if not line:
            self._desk.count(1, 1)
            return
        if line[:1] not in (b"{", b"["):
            self._keep(line[:1000] + b"\n")  # no message, but perhaps a word for people
            self._desk.count(1, len(line))
            return
        messages = client.read(line)
        if isinstance(messages, str):
            if self._desk.spoil(line, f"its answer cannot be read: {messages}"):
                return
            raise client.Unanswered(f"it sent broken JSON: {messages}", sent=True)
        for message in messages:
            if "method" in message and "id" in message:
                self._desk.count(1, len(line))
                told = client.reply_to(message)
                if told is not None:
                    # By a deadline of its own: a server that does not listen must not hold up its reader.
                    with suppress(client.Late):
                        self._write(told, time.monotonic() + _REPLY_S, NEVER)
            else:
                self._desk.hand_in(message, len(line))
                if client.is_changed_list(message):
                    self._changed()

    def _keep(self, chunk: bytes) -> None:
        self._stderr += chunk
        del self._stderr[: max(0, len(self._stderr) - STDERR_BYTES_KEPT)]

    def _how_it_ended(self) -> str:
        if self._standing.ended(_LAST_WORDS_S):
            how = self._standing.ending
            return f"it {how}" if how.startswith(NOT_STARTED) else f"it ended ({how})"
        return "it closed its stdout"

    def _last_words(self) -> None:
        """What lies in stderr when all is over."""
        waiting = select.poll()
        with suppress(OSError):
            waiting.register(self._standing.stderr, select.POLLIN)
            for _ in range(STDERR_BYTES_KEPT // 4096):
                if not waiting.poll(0):
                    return
                chunk = os.read(self._standing.stderr, _CHUNK_BYTES)
                if not chunk:
                    return
                self._keep(chunk)

    # -- the end --------------------------------------------------------------------------------------------

    def _end(self, why: str) -> None:
        """Wake the reader, who says so to everybody."""
        self._desk.close(why)
        with suppress(OSError):
            os.write(self._wake_write, b"x")

    def close(self, grace_s: float = 0.0) -> None:
        """End the server and all it started. With a grace it may end by itself first."""
        with self._closing:
            if self._wake_write < 0:
                return
            if self._host != os.getpid():  # a copy of the host: the server is the original's
                return
            self._is_closed = True
            is_free = self._writing.acquire(timeout=_JOIN_S)  # nobody may be writing while it is closed
            self._standing.hang_up()
            if is_free:
                self._writing.release()
            if grace_s:
                self._standing.ended(grace_s)
            self._end("it was closed")
            if self._reader is not threading.current_thread():
                self._reader.join(_JOIN_S)
            self._standing.close()
            if not self._reader.is_alive():
                os.close(self._wake_read)
                os.close(self._wake_write)
                self._wake_write = -1
