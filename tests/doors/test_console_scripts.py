"""What the console's own scripts do on the pages about tools, in a real browser at a real server: forms made
from schemas, results, searching while typing, switching, signing in.

The story of a first visit, and what a screen reader is told, are in test_browser.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.doors.browsers import WAIT_MS, launched
from tests.program import serving, toolcrib

REVERSED = "\u202ename"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "mode": {"enum": ["a", 3, None]},
        "count": {"type": "integer", "minimum": 1, "maximum": 10, "default": 3},
        "big": {"type": "integer"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "place": {"type": "object", "properties": {"street": {"type": "string"}}, "required": ["street"]},
        "any": {"anyOf": [{"type": "string"}, {"type": "object"}]},
        REVERSED: {"type": "string"},
    },
    "required": ["title", "mode"],
}
ECHO = '#!/bin/sh\nprintf \'{"said": "<img src=x onerror=alert(1)>\\\\u202e", "got": \'\ncat\nprintf "}"\n'
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def write(folder: Path, more: str = "") -> None:
    programs = folder / "tools" / "bin"
    programs.mkdir(parents=True)
    (programs / "echo").write_text(ECHO, encoding="utf-8")
    (programs / "echo").chmod(0o755)
    tools = [
        {"name": "echo", "description": "Say it again.", "schema": SCHEMA, "command": ["./tools/bin/echo"]},
        *(
            {"name": name, "description": f"Do {name}.", "schema": {}, "command": ["./tools/bin/echo"]}
            for name in ("asked", "empty", "other")
        ),
    ]
    (folder / "tools.json").write_text(json.dumps({"tools": tools}), encoding="utf-8")
    rule = '[[policy]]\nmatch = { name = "asked" }\ndecision = "ask"\nbecause = "a person looks"\n'
    (folder / "toolcrib.toml").write_text(f'{more}[[source]]\npath = "."\n{rule}', encoding="utf-8")
    for name in ("state", "home"):
        (folder / name).mkdir(mode=0o700)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    arguments = ("--quiet", "--config", "toolcrib.toml", "--state", "state", "serve")
    with serving(*arguments, cwd=folder, home=folder / "home", USER="ann") as started:
        yield f"http://{started.address}"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("forms")
    write(folder)
    with served(folder) as address:
        yield address


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with launched(chromium) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(f"a script of the tool ran: {dialog.message}"))
    page.on(
        "console",
        lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None,
    )
    yield page
    context.close()
    assert wrong == []


def tool(page: Page, address: str, name: str) -> None:
    page.goto(address)
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.locator("form[data-try]")).to_be_visible()  # its script has made it ready


def field(page: Page, name: str) -> Any:
    return page.locator(f"[data-name='{json.dumps(name)}'] [data-value]").first


def raw(page: Page) -> str:
    return page.locator("#raw").input_value()


def test_a_form_sends_what_was_filled_in_and_leaves_out_the_rest(page: Page, address: str) -> None:
    tool(page, address, "echo")
    assert json.loads(raw(page)) == {"title": ""}
    field(page, "title").fill("Hello")
    field(page, "mode").select_option(label="3")
    field(page, "big").fill("12345678901234567890")
    field(page, "deep").select_option(label="false")
    for item in ("one", "two", "three", "four"):
        page.get_by_role("button", name="Add an item").click()
        if item != "four":  # there may be three
            page.keyboard.type(item)
    page.get_by_role("button", name="Remove number 2").click()
    field(page, "street").fill("Main St")
    field(page, "any").fill('{"x": 1}')
    page.get_by_label("\\u202ename").fill("v")  # as it is shown; its name travels as it is
    wanted = {
        "title": "Hello",
        "mode": 3,
        "big": 12345678901234567890,
        "deep": False,
        "tags": ["one", "three"],
        "place": {"street": "Main St"},
        "any": {"x": 1},
        REVERSED: "v",
    }
    assert json.loads(raw(page)) == wanted
    assert "\u202e" not in raw(page)
    with page.expect_request("**/call") as asked:
        page.get_by_role("button", name="Run", exact=True).click()
    sent = json.loads(asked.value.post_data or "")
    assert sent == {"arguments": wanted}
    result = page.get_by_label("Result")
    expect(result).to_contain_text("12345678901234567890")
    expect(result.locator(".badge").first).to_have_text("ok")


def test_the_form_and_its_json_say_the_same(page: Page, address: str) -> None:
    tool(page, address, "echo")
    page.get_by_role("tab", name="JSON").click()
    page.locator("#raw").fill('{"title": "T", "mode": null, "tags": ["a", "b"], "strange": [1]}')
    page.get_by_role("tab", name="Form").click()
    expect(field(page, "title")).to_have_value("T")
    assert page.locator("[data-items] input").evaluate_all("all => all.map((each) => each.value)") == [
        "a",
        "b",
    ]
    field(page, "count").fill("7")
    assert json.loads(raw(page)) == {
        "title": "T",
        "mode": None,
        "tags": ["a", "b"],
        "count": 7,
        "strange": [1],
    }
    page.get_by_role("tab", name="JSON").click()
    page.locator("#raw").fill('{"title": 5')
    expect(page.locator("[data-raw-told]")).to_contain_text("not JSON yet")
    page.locator("#raw").fill('{"title": 5, "mode": "a"}')
    expect(page.locator("[data-raw-told]")).to_contain_text("What stands here is what runs")
    page.get_by_role("button", name="Run", exact=True).click()
    result = page.get_by_label("Result")
    expect(result.locator(".badge").first).to_have_text("invalid_arguments")
    expect(result).to_contain_text("title")


def test_a_browser_asks_for_what_is_missing_before_it_sends_anything(page: Page, address: str) -> None:
    tool(page, address, "echo")
    calls: list[str] = []
    page.on("request", lambda request: calls.append(request.url) if request.url.endswith("/call") else None)
    page.get_by_role("button", name="Run", exact=True).click()
    assert page.evaluate("document.activeElement.closest('[data-name]').dataset.name") == '"title"'
    assert calls == []


def test_a_dry_run_runs_nothing_and_a_question_leads_to_the_approvals(page: Page, address: str) -> None:
    tool(page, address, "empty")
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_label("Result").locator(".badge").first).to_have_text("would run")
    tool(page, address, "asked")
    page.get_by_role("button", name="Run", exact=True).click()
    result = page.get_by_label("Result")
    expect(result.locator(".badge").first).to_have_text("needs_approval")
    expect(result.get_by_role("link", name="Answer it")).to_have_attribute("href", "/approvals")


def test_attack_what_a_tool_returns_is_text_and_only_pictures_are_drawn(page: Page, address: str) -> None:
    script = "PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+"
    blocks = [
        {"kind": "image_block", "media_type": "image/png", "data": PICTURE},
        {"kind": "image_block", "media_type": "image/svg+xml", "data": script},
        {"kind": "image_block", "media_type": 'image/png" onerror="alert(1)', "data": PICTURE},
        {"kind": "image_block", "media_type": "text/html", "data": script},
        {"kind": "audio_block", "media_type": "audio/wav", "data": "UklGRiQAAABXQVZF"},
        {"kind": "audio_block", "media_type": "audio/wav", "data": "javascript:alert(1)"},
        {"kind": "resource_link", "uri": "javascript:alert(1)", "name": "<b>click</b>"},
    ]
    document: dict[str, Any] = {
        "call_id": 'x"><script>alert(1)</script>', "key": "k", "ok": False,
        "content": "<script>alert(1)</script>\u202ereversed", "blocks": blocks, "data": {"<b>": "\u2066"},
        "error": {
            "kind": "failed", "message": "<img src=x onerror=alert(1)>", "hint": "\u200b", "details": None,
        },
        "spent": {"duration_ms": 1.5, "output_bytes": 3, "truncated": False},
        "isolation": ["<i>"], "notes": [],
    }  # fmt: skip

    def answer(route: Route) -> None:
        route.fulfill(status=502, content_type="application/json", body=json.dumps(document))

    page.route("**/call", answer)
    tool(page, address, "empty")
    page.get_by_role("button", name="Run", exact=True).click()
    result = page.get_by_label("Result")
    expect(result).to_contain_text("<script>alert(1)</script>\\u202ereversed")
    assert result.locator("img").evaluate_all("all => all.map((each) => each.src.slice(0, 22))") == [
        "data:image/png;base64,"
    ]
    expect(result.locator("img")).to_have_js_property("naturalWidth", 1)
    assert result.locator("audio").count() == 1
    assert result.locator("script, b, i, svg, iframe, [onerror]").count() == 0
    links = result.locator("a").evaluate_all("all => all.map((each) => each.getAttribute('href'))")
    assert links == ["/audit/" + quote(document["call_id"], safe="!'()*")]
    assert not {"\u202e", "\u2066", "\u200b"} & set(result.inner_text())


def test_the_catalog_narrows_while_one_types(page: Page, address: str) -> None:
    page.goto(address)
    page.evaluate("window.stays = true")
    rows = page.locator("tbody tr:visible")
    expect(rows).to_have_count(4)
    page.keyboard.press("/")
    page.keyboard.type("OTH")
    expect(rows).to_have_count(1)
    expect(page.locator("[data-count]")).to_have_text("1")
    expect(page.locator("#said")).to_have_text("1 shown")
    assert page.url.endswith("?q=OTH")
    page.get_by_label("Effect").select_option("change")
    expect(rows).to_have_count(1)
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.locator("[data-nothing]")).to_be_visible()
    assert page.evaluate("window.stays"), "it was not loaded again"


def test_a_tool_is_switched_off_with_a_reason_and_on_again(page: Page, address: str) -> None:
    tool(page, address, "other")
    page.get_by_label("Reason").fill("being <b>moved</b>")
    page.get_by_role("button", name="Switch off").click()
    expect(page.locator(".note.warn").first).to_contain_text("being <b>moved</b>")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_label("Result").locator(".badge").first).to_have_text("denied")
    page.get_by_role("button", name="Switch on").click()
    expect(page.get_by_role("button", name="Switch off")).to_be_visible()


def test_the_theme_is_chosen_and_remembered(page: Page, address: str) -> None:
    page.goto(address)
    switch = page.get_by_role("button", name="Theme: as the system")
    switch.click()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    page.get_by_role("button", name="Theme: light").click()
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"


@pytest.mark.parametrize(
    ("system", "chosen", "ground"),
    [
        ("light", "system", "rgb(246, 246, 243)"),
        ("light", "dark", "rgb(20, 23, 26)"),
        ("dark", "system", "rgb(20, 23, 26)"),
        ("dark", "light", "rgb(246, 246, 243)"),
    ],
)
def test_the_theme_is_the_systems_until_one_is_chosen(
    page: Page, address: str, system: Literal["light", "dark"], chosen: str, ground: str
) -> None:
    page.emulate_media(color_scheme=system)
    page.goto(address)
    for _ in range(["system", "light", "dark"].index(chosen)):
        page.locator("[data-theme-switch]").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground


def test_tabs_are_walked_with_the_arrow_keys(page: Page, address: str) -> None:
    tool(page, address, "echo")
    page.get_by_role("tab", name="openai", exact=True).focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="openai-responses")).to_be_focused()
    page.keyboard.press("End")
    expect(page.get_by_role("tab", name="mcp")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tabpanel", name="mcp")).to_contain_text("inputSchema")


def test_whoever_needs_a_token_signs_in_with_it_and_out_again(page: Page, tmp_path: Path) -> None:
    write(tmp_path, '[serve]\nhosts = ["tools.test"]\n')
    options = ("--config", "toolcrib.toml", "--state", "state")
    made = toolcrib(*options, "token", "create", "bob", cwd=tmp_path, home=tmp_path / "home")
    assert made.status == 0, made
    token = made.out.strip()
    with served(tmp_path) as address:
        page.goto(f"{address}/problems")
        assert page.url.endswith("/login")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("not known here")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Tools")
        expect(page.locator(".who")).to_have_text("bob")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        page.goto(address)
        assert page.url.endswith("/login")
