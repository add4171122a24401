"""Models out and back: one module per provider, each of them pure.

A dialect declares tools in a provider's own form, reads the model's calls and writes their results. It says
what the form could not hold (``Loss``) and which tools it cannot take at all (``LeftOut``): one tool that a
provider refuses would cost all its neighbours, because the whole request fails.

Dialects never import each other; files that begin with ``_`` are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from toolcrib.dialects import anthropic, gemini, mcp, ollama, openai
from toolcrib.jsontext import JsonObject
from toolcrib.model import Declared, DeclareOptions, NameMap, Tool, ToolCall, ToolResult


class Dialect(Protocol):
    """What a dialect offers."""

    @property
    def NAME(self) -> str: ...

    def declare(self, tools: Sequence[Tool], options: DeclareOptions) -> Declared:
        """What goes into the request's ``tools``, the way back, and what got lost. Never raises."""
        ...

    def read_calls(self, message: object, names: NameMap) -> tuple[ToolCall, ...]:
        """Return the calls of a message, or of the whole response around it: JSON values, or an object of the
        provider's Python library. A message without calls gives an empty tuple. Raises UsageError if this is
        no message of the provider, or only a chunk of one."""
        ...

    def write_result(self, call: ToolCall, result: ToolResult) -> JsonObject:
        """The result of one call, as the conversation takes it."""
        ...


DIALECTS: dict[str, Dialect] = {
    dialect.NAME: dialect
    for dialect in (openai.CHAT, openai.RESPONSES, anthropic, gemini, ollama, mcp)
}  # fmt: skip
