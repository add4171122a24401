"""The console's pages about what happens, asked for as a browser without scripts asks for them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.journal import work
from toolcrib import app
from toolcrib.config import Environment, resolve
from toolcrib.doors._crew import Crew
from toolcrib.doors._entrance import Guest, Right
from toolcrib.doors._events import Events
from toolcrib.doors._health import Health
from toolcrib.doors.console._serving import Serving
from toolcrib.doors.console.routes import console
from toolcrib.errors import Kind
from toolcrib.journal.audit import open_audit
from toolcrib.model import Effect, Reach

ANN = Guest(name="ann")
CONFIG = """
[[source]]
path = "tools.json"

[[policy]]
match = { name = "drop" }
decision = "ask"
because = "<b>a person</b> looks first"
"""
PROGRAM = """#!/bin/sh
cat
"""


class Pages:
    """A server whose pages can be asked for."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.state.mkdir(mode=0o700)
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        tools = [
            {"name": name, "description": f"Does {name}.", "schema": schema, "command": ["./tools/bin/echo"]}
            for name in ("echo", "drop")
        ]
        (folder / "tools" / "bin").mkdir(parents=True)
        (folder / "tools" / "bin" / "echo").write_text(PROGRAM, encoding="utf-8")
        (folder / "tools" / "bin" / "echo").chmod(0o755)
        (folder / "tools.json").write_text(json.dumps({"tools": tools}), encoding="utf-8")
        (folder / "toolcrib.toml").write_text(CONFIG, encoding="utf-8")
        environment = Environment.read({"PATH": "/usr/bin:/bin", "HOME": str(folder / "home")})
        config = resolve(environment, cwd=str(folder), file="toolcrib.toml", state="state")
        self.crib = app.open(config, environment=environment)
        self.events = Events()
        self.crew = Crew(self.crib, self.events)
        self.health = Health(self.crib, self.crew, self.events)

    def get(self, path: str, guest: Guest = ANN, *, status: int = 200) -> str:
        pages = console(
            Serving(crib=self.crib, events=self.events, crew=self.crew, health=self.health.report)
        )

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            await pages({**scope, "guest": guest}, receive, send)

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=answer)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.get(path)

        response = asyncio.run(ask())
        assert response.status_code == status, response.text
        assert "style=" not in response.text, "the content policy forbids it"
        return response.text


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    made = Pages(tmp_path)
    with made.crib:
        yield made


def told(state: Path, count: int, *, kind: Kind | None = None, prefix: str = "c") -> None:
    audit = open_audit(str(state))
    for at in range(count):
        call = work.call(f"{prefix}{at:03d}", caller="bob" if at % 2 else "ann")
        error = None if kind is None else work.failed("no", kind)
        audit.begin(call, work.FACTS)
        audit.end(call, work.result(call.id, error=error, spent=work.spent(5.0), isolation=("landlock",)))
    audit.close()


def calls_on(page: str) -> list[str]:
    return re.findall(r'data-call="([^"]*)"', page)


def test_calls_are_listed_with_their_outcome_and_layers(pages: Pages) -> None:
    assert "No call yet" in pages.get("/calls")
    result = pages.crib.call("echo", {"text": "hello"})
    assert result.error is None, result
    pages.crib.call("nobody")
    page = pages.get("/calls")
    assert calls_on(page)[1] == result.call_id
    assert "manifest:" in page
    assert "unknown_tool" in page
    assert ", ".join(result.isolation) in page


def test_the_audit_is_paged_and_narrowed(pages: Pages) -> None:
    told(pages.state, 60)
    told(pages.state, 3, kind=Kind.TIMED_OUT, prefix="late")
    first = pages.get("/audit")
    assert len(calls_on(first)) == 50
    (older,) = re.findall(r'rel="next" href="([^"]*)"', first)
    second = pages.get(older.replace("&amp;", "&"))
    assert [*calls_on(first), *calls_on(second)] == [
        *(f"late{at:03d}" for at in (2, 1, 0)),
        *(f"c{at:03d}" for at in reversed(range(60))),
    ]
    assert 'rel="next"' not in second
    assert calls_on(pages.get("/audit?outcome=timed_out")) == ["late002", "late001", "late000"]
    assert calls_on(pages.get("/audit?outcome=failed&caller=bob")) == ["late001"]
    assert calls_on(pages.get("/audit?tool=nothing")) == []
    assert len(calls_on(pages.get("/audit?since=1h"))) == 50


@pytest.mark.parametrize("query", ["before=x_y", "before=nan_", "outcome=<script>", "since=no", "span=%00"])
def test_conditions_that_are_none_do_no_harm(pages: Pages, query: str) -> None:
    told(pages.state, 1)
    assert "<script>" not in pages.get(f"/audit?{query}")


def test_charts_say_in_words_and_numbers_what_they_draw(pages: Pages) -> None:
    told(pages.state, 8)
    told(pages.state, 2, kind=Kind.FAILED, prefix="bad")
    for span in ("1h", "24h", "7d", "30d"):
        page = pages.get(f"/audit?span={span}")
        assert page.count("<svg") == 2
        assert "10 calls ended in the last" in page
        assert "2 of them failed (20.0%)" in page
        assert re.search(r'<td class="figure-cell">\d+</td>', page)
        assert 'class="lower"' in page
        assert "p95" in page


def test_a_record_is_shown_whole(pages: Pages) -> None:
    result = pages.crib.call("echo", {"text": "hello"})
    page = pages.get(f"/audit/{result.call_id}")
    assert re.findall(r'<h2 id="record-\d+">(\w+)', page) == ["begin", "end"]
    assert "tools/bin/echo" in page
    assert "arguments_digest" in page
    assert "No such call" in pages.get(f"/audit/{result.call_id[:6]}", status=404)


def test_the_journal_is_verified_and_the_first_bad_record_named(pages: Pages) -> None:
    told(pages.state, 2)
    assert "Whole." in pages.get("/audit/verify")
    (segment,) = work.segment_paths(pages.state)
    content = bytearray(segment.read_bytes())
    content[content.index(b"c001")] ^= 1
    segment.write_bytes(content)
    page = pages.get("/audit/verify")
    assert "Broken." in page
    assert "First bad record" in page
    assert segment.stem.split(".")[0] in page


def test_questions_show_all_that_is_asked_and_nothing_of_it_is_markup(pages: Pages) -> None:
    asked = pages.crib.call("drop", {"text": "<img src=x> \u202e and <b>more</b>"}, caller="<i>bob</i>")
    assert asked.error is not None
    assert asked.error.kind is Kind.NEEDS_APPROVAL
    page = pages.get("/approvals")
    assert "&lt;b&gt;a person&lt;/b&gt; looks first" in page
    assert "&lt;img src=x&gt;" in page
    assert "<img src=x>" not in page
    assert "<i>bob</i>" not in page
    assert "\u202e" not in page
    approval = asked.error.details["approval_id"]
    assert f'data-approval="{approval}"' in page
    pages.crib.answer(approval, "deny", because="not today", by="ann")
    page = pages.get("/approvals")
    assert "data-approval=" not in page
    assert "not today" in page
    assert "denied" in page


def test_pages_need_their_rights(pages: Pages) -> None:
    result = pages.crib.call("echo", {"text": "hello"})
    nobody = Guest(name="eve", rights=frozenset({Right.CALL}))
    for path in ("/calls", "/audit", "/audit/verify", f"/audit/{result.call_id}", "/approvals"):
        pages.get(path, nobody, status=403)


def test_what_is_beyond_a_reach_is_not_on_the_pages(pages: Pages) -> None:
    """Attack: a guest with a narrow reach who learns from records and questions what else there is."""
    hidden = pages.crib.call("echo", {"text": "hello"})
    pages.crib.call("drop", {"text": "hello"})
    assert "manifest:" in pages.get("/calls")
    assert "data-approval=" in pages.get("/approvals")
    near = Guest(name="eve", reach=Reach(tools=("nothing-*",), effects=frozenset(Effect)))
    assert "manifest:" not in pages.get("/calls", near)
    audit = pages.get("/audit", near)
    assert "manifest:" not in audit
    assert "No call ended in the last 24 hours." in audit
    assert "data-approval=" not in pages.get("/approvals", near)
    pages.get(f"/audit/{hidden.call_id}", near, status=404)
    assert str(pages.state) not in pages.get("/health", near)


def test_health_names_level_layers_sources_and_the_journal(pages: Pages) -> None:
    page = pages.get("/health")
    assert pages.crib.hands.sandbox.level.value in page
    assert "landlock" in page.lower()
    assert "2 tools" in page
    assert str(pages.state) in page
    assert "up for" in page
