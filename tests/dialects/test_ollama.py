"""What a format promises to forward unchanged is forwarded, also to Ollama, which ignores most of it."""

from __future__ import annotations

import pytest

from tests.strategies import make_tool
from toolcrib.dialects import ollama
from toolcrib.model import DeclareOptions


@pytest.mark.requirement("skill.tools.parameters-verbatim")
def test_keywords_of_the_author_s_own_are_sent() -> None:
    schema = {"type": "object", "x-ui": "wide", "properties": {"a": {"type": "string", "x-order": 1}}}
    (sent,) = ollama.declare([make_tool("t", schema)], DeclareOptions()).payload
    assert sent["function"]["parameters"] == schema
