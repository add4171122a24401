"""Calls as OpenTelemetry spans, by its conventions for generative AI: ``execute_tool NAME``.

Served calls and calls through the library have the same spans. This module is imported only if the extra
``otel`` is installed and the program has imported it. A span has the tool, the duration and how the call
ended; never arguments, results or messages.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import ProxyTracerProvider, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import toolcrib
from toolcrib.errors import Kind
from toolcrib.model import Tool, ToolCall, ToolResult

_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_NAME_CHARS_MAX: Final = 128
_SCOPE: Final = "toolcrib"
UNKNOWN: Final = "unknown"
_LOG: Final = logging.getLogger("toolcrib")
_TYPES: Final = {"python": "function", "capability": "function"}
"""By the conventions: a function runs on the host's side, an extension reaches out for what it does."""


class CallSpan:
    """One call's span, while it runs."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def current(self) -> AbstractContextManager[object]:
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def stop(self, error: BaseException) -> None:
        """End the span of a call that raised instead of giving a result."""
        self._span.set_attribute("error.type", type(error).__name__)
        self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        self._span.end()

    def end(self, result: ToolResult) -> None:
        self._tell(self._span, result)
        self._span.end()

    @staticmethod
    def _tell(span: trace.Span, result: ToolResult) -> None:
        error = result.error
        if not span.is_recording():
            return
        # Attack: names of tools that are none, each a series of its own wherever spans are counted.
        is_known = bool(result.key)
        if not is_known:
            span.update_name(f"execute_tool {UNKNOWN}")
            span.set_attribute("gen_ai.tool.name", UNKNOWN)
        else:
            format = result.key.partition(":")[0]
            span.set_attribute("gen_ai.tool.type", _TYPES.get(format, "extension"))
            span.set_attribute("toolcrib.tool.key", result.key)
        if error is not None:
            span.set_attribute("error.type", error.kind.value)
            if error.kind is not Kind.NEEDS_APPROVAL:
                span.set_status(Status(StatusCode.ERROR, error.kind.value))


class GenAiSpans:
    """Makes a span around each call."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, call: ToolCall, tool: Tool | None, *, parent: str | None) -> CallSpan:
        """Begin the span of a call, named by the tool, whether it was called by its name or by its key.
        ``parent``: the caller's traceparent; None: the span that is current."""
        name = (tool.name if tool is not None else call.tool)[:_NAME_CHARS_MAX]
        return CallSpan(
            self._tracer.start_span(
                f"execute_tool {name}",
                context=None if parent is None else self._context(parent),
                kind=SpanKind.INTERNAL,
                attributes={
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": name,
                    "gen_ai.tool.call.id": call.id,
                },
            )
        )

    def run(self, call: ToolCall, tool: Tool | None, work: Callable[[], ToolResult]) -> ToolResult:
        """Run a call inside a span of its own. An error of the tracing is logged; the call still runs."""
        try:
            span = self.begin(call, tool, parent=None)
            inside = span.current()
        except Exception:  # noqa: BLE001 - the program's own exporters and samplers may raise anything
            _LOG.exception("%s cannot be traced", call.id)
            return work()
        try:
            with inside:
                result = work()
        except BaseException as error:
            with _logged(call):
                span.stop(error)
            raise
        with _logged(call):
            span.end(result)
        return result

    def _context(self, parent: str) -> Context:
        """Attack: a header that is no traceparent. Without one that is, a call begins a trace of its own."""
        if not _PARENT.fullmatch(parent):
            return Context()
        return self._propagator.extract({"traceparent": parent}, Context())


@contextmanager
def _logged(call: ToolCall) -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - as above
        _LOG.exception("the end of %s cannot be traced", call.id)


def set_up(provider: TracerProvider | None = None) -> GenAiSpans | None:
    """Return the spans of a provider, or of the one that the program set up; None if there is none."""
    found = provider if provider is not None else trace.get_tracer_provider()
    if isinstance(found, (ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return _spans_of(found)


@lru_cache(maxsize=4)
def _spans_of(provider: TracerProvider) -> GenAiSpans:
    return GenAiSpans(provider.get_tracer(_SCOPE, toolcrib.__version__))
