"""The console in a real browser: Debian's chromium, driven by Playwright, at a real ``toolcrib serve``.

The story of somebody who opens it for the first time, on a phone and on a desk, by day and by night; with the
keyboard alone; without scripts. What the pages ask for, complain about or hide from a screen reader counts.

With ``SCREENSHOTS=DIR`` the images of the documentation are written there (``make screenshots``).
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from tests.doors.browsers import WAIT_MS, launched
from tests.program import serving, toolcrib
from toolcrib.errors import Kind
from toolcrib.journal.audit import open_audit
from toolcrib.model import CallFacts, Spent, ToolCall, ToolError, ToolResult

ROOT = Path(__file__).parent.parent.parent
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
SHOTS = os.environ.get("SCREENSHOTS", "")
SHOT_BYTES_MAX = 150_000
DOCUMENT = {"path": "examples/manifest/tools.json"}

RULES = """
[[policy]]
match = { name = "machine_info" }
decision = "ask"
because = "it tells about this machine"

[[policy]]
match = { name = "json_get" }
decision = "ask"
because = "a person looks which part is read"
"""


# -- a server, and a browser --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """A host with the examples, as `make run` serves them."""

    address: str
    folder: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(ROOT / "examples", folder / "examples")
    config = folder / "examples" / "toolcrib.toml"
    config.write_text(config.read_text(encoding="utf-8") + RULES, encoding="utf-8")
    (folder / "state").mkdir(mode=0o700)
    (folder / "home").mkdir(mode=0o700)
    remember(folder / "state")
    names = {"USER": "ann", "LOGNAME": "ann"}
    options = ["--config", "examples/toolcrib.toml", "--state", "state"]
    keys = [str(path) for path in (folder / "examples" / "keys").glob("*.toml")]
    assert toolcrib("trust", *keys, cwd=folder, home=folder / "home").status == 0
    with serving("--quiet", *options, "serve", cwd=folder, home=folder / "home", **names) as started:
        yield Served(f"http://{started.address}", folder)


def remember(state: Path) -> None:
    """A day of calls that another host made and recorded, so that there is something to look back on."""
    at = [0.0]
    audit = open_audit(str(state), clock=lambda: at[0])
    chance, now = random.Random(6), time.time()
    names = ["manifest:manifest/get_time", "manifest:manifest/csv_query", "skill:git/git_status"]
    for hour in range(23, 0, -1):
        for number in range(round(9 + 8 * math.sin(hour / 3.5)) + chance.randrange(4)):
            key, ms = chance.choice(names), chance.lognormvariate(3.2, 0.8)
            name = key.rpartition("/")[2]
            call = ToolCall(id=f"{hour:02d}{number:02d}earlier", tool=name, arguments={}, caller="agent")
            error = ToolError(kind=Kind.FAILED, message="exit 1") if chance.random() < 0.08 else None
            at[0] = now - hour * 3600 + chance.random() * 1800
            audit.begin(call, CallFacts(door="mcp", key=key, format=key.partition(":")[0], catalog="1"))
            layers = ("landlock", "seccomp", "spawner")
            audit.end(
                call,
                ToolResult(
                    call_id=call.id, key=key, error=error, spent=Spent(duration_ms=ms), isolation=layers
                ),
            )
    audit.close()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with launched(chromium) as browser:
        yield browser


@dataclass
class Visit:
    """Somebody at the console, and whatever their browser complained about."""

    address: str
    context: BrowserContext
    complaints: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def open(self, path: str) -> Page:
        page = self.context.new_page()
        page.on("console", lambda said: self._hear(said.type, said.text, said.location.get("url", "")))
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.goto(self.address + path)
        return page

    def _hear(self, kind: str, text: str, url: str) -> None:
        # A call that waits for a person is answered with 409, and the browser writes that down.
        if kind in ("error", "warning") and not ("status of 409" in text and url.endswith("/call")):
            self.complaints.append(f"{kind}: {text} ({url})")

    def note(self, request: Request) -> None:
        self.asked.add(request.url)

    def check(self) -> None:
        """Attack: a page that asks others for something, or tries what the content policy forbids."""
        assert self.complaints == []
        foreign = [url for url in self.asked if not url.startswith((self.address + "/", "data:"))]
        assert foreign == []


VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`content policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


@contextmanager
def visiting(browser: Browser, served: Served, **more: Any) -> Iterator[Visit]:
    context = browser.new_context(**more)
    context.set_default_timeout(WAIT_MS)
    visit = Visit(served.address, context)
    context.on("request", visit.note)
    if more.get("java_script_enabled", True):
        context.add_init_script(VIOLATIONS)
    try:
        yield visit
        visit.check()
    finally:
        context.close()


def is_narrow(page: Page) -> bool:
    """Whether nothing sticks out at the side."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def shoot(page: Page, name: str) -> None:
    """An image for the documentation, where one is asked for."""
    if not SHOTS:
        return
    page.mouse.move(0, 0)
    path = Path(SHOTS, f"{name}.png")
    page.screenshot(path=path, animations="disabled", caret="hide")
    assert path.stat().st_size <= SHOT_BYTES_MAX, f"{path}: {path.stat().st_size} bytes"


# -- the story ----------------------------------------------------------------------------------------------


BROKEN_WORDS = """cells => cells.filter((cell) => {
  const word = document.createRange();
  word.selectNodeContents(cell);
  return new Set([...word.getClientRects()].map((line) => Math.round(line.top))).size > 1;
}).map((cell) => cell.textContent)"""


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_no_word_of_the_parameters_is_broken(browser: Browser, served: Served, size: dict[str, int]) -> None:
    with visiting(browser, served, viewport=size) as visit:
        page = visit.open(f"/tools/{quote('manifest:manifest/get_time', safe='')}")
        table = "section[aria-labelledby=takes] tbody"
        assert page.locator(f"{table} tr").count() == 2
        assert page.eval_on_selector_all(f"{table} th code, {table} td.words", BROKEN_WORDS) == []


@pytest.mark.parametrize(("size", "theme"), [(PHONE, "dark"), (DESK, "light")], ids=["phone", "desk"])
def test_from_the_catalog_to_the_audit(
    browser: Browser, served: Served, size: dict[str, int], theme: str
) -> None:
    is_shown = size is DESK
    with visiting(browser, served, viewport=size, color_scheme=theme) as visit:
        live = visit.open("/calls")
        expect(live.locator("#calls")).to_have_attribute("data-live", "yes")

        # List, search, open.
        page = visit.open("/")
        rows = page.locator("tbody tr:visible")
        assert rows.count() > 20
        if is_shown:
            shoot(page, "console-catalog")
        page.get_by_label("Search").fill("current time zone")
        expect(rows).to_have_count(1)
        page.get_by_role("link", name="get_time").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("get_time")

        # Try it: a real run.
        page.get_by_label("timezone").fill("UTC")
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator("[data-result]")).to_contain_text("UTC")
        if is_shown:
            page.get_by_role("heading", level=1).scroll_into_view_if_needed()
            shoot(page, "console-tool")

        # It was seen live.
        first = live.locator("#calls tbody tr").first
        expect(first).to_contain_text("get_time")
        expect(first).to_contain_text("ok")
        expect(first).to_contain_text("ann")
        expect(first).to_contain_text("http")

        # A call that waits for a person, who says yes.
        approvals = visit.open("/approvals")
        expect(approvals.locator("html")).to_have_attribute("data-live", "yes")
        page.goto(served.address + "/?q=machine_info")
        page.get_by_role("link", name="machine_info").click()
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator("[data-result]")).to_contain_text("approv")
        question = approvals.locator("[data-approval]")
        expect(question).to_have_count(1)
        expect(question).to_contain_text("it tells about this machine")
        assert is_narrow(approvals)
        if is_shown:
            shoot(approvals, "console-approvals")
        question.get_by_label("Reason").fill("asked by phone")
        question.get_by_role("button", name="Approve").click()
        expect(question).to_have_count(0)
        expect(approvals.locator("[data-answered]")).to_contain_text("asked by phone")
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator("[data-result]")).to_contain_text("linux", ignore_case=True)
        expect(live.locator("#calls tbody tr").first).to_contain_text("machine_info")
        if size is PHONE:
            shoot(live, "console-calls-phone")
        assert is_narrow(live)

        # It is in the audit, which is whole.
        page.goto(served.address + "/audit?tool=machine_info&outcome=ok")
        expect(page.locator("tbody tr[data-call]").first).to_contain_text("machine_info")
        page.get_by_role("button", name="Verify the journal").click()
        expect(page.locator("[data-verdict]")).to_contain_text("Whole.")
        assert is_narrow(page)
        if is_shown:
            page.goto(served.address + "/audit")
            shoot(page, "console-audit")
        page.locator("tbody tr[data-call] time").first.click()
        expect(page.locator(".record h2").first).to_contain_text("begin")
        expect(page.locator(".record h2").last).to_contain_text("end")
        assert is_narrow(page)


def test_an_answer_can_edit_and_refuse(browser: Browser, served: Served) -> None:
    with visiting(browser, served, viewport=DESK) as visit:
        for text in ("/tools/0/name", "/tools/1/name"):
            answer = httpx.post(
                f"{served.address}/v1/tools/json_get/call",
                json={"arguments": {**DOCUMENT, "pointer": text}},
                timeout=30,
            )
            assert answer.status_code == 409, answer.text
        page = visit.open("/approvals")
        edited = page.locator("[data-approval]").filter(has_text="/tools/0/name")
        edited.get_by_text("Let it run with other arguments").click()
        arguments = edited.get_by_label("Arguments, as one JSON object")
        for wrong, told in (
            ("{", "not JSON"),
            ("[]", "one JSON object"),
            ('{"path": 5}', "do not fit"),
        ):
            arguments.fill(wrong)
            edited.get_by_role("button", name="Approve").click()
            expect(edited.get_by_role("alert")).to_contain_text(told)
        visit.complaints.clear()  # the browser writes down that the last one was refused
        arguments.fill(json.dumps({**DOCUMENT, "pointer": "/tools/2/name"}))
        edited.get_by_role("button", name="Approve").click()
        expect(edited).to_have_count(0)
        refused = page.locator("[data-approval]").filter(has_text="/tools/1/name")
        refused.get_by_label("Reason").fill("look it up")
        refused.get_by_role("button", name="Deny").click()
        expect(refused).to_have_count(0)
        for text, status in (("/tools/0/name", 200), ("/tools/1/name", 403)):
            answer = httpx.post(
                f"{served.address}/v1/tools/json_get/call",
                json={"arguments": {**DOCUMENT, "pointer": text}},
                timeout=30,
            )
            assert answer.status_code == status, answer.text


def test_live_calls_pause_and_filter(browser: Browser, served: Served) -> None:
    def call(name: str) -> None:
        httpx.post(f"{served.address}/v1/tools/{name}/call", json={"arguments": {}}, timeout=30)

    with visiting(browser, served, viewport=DESK) as visit:
        page = visit.open("/calls")
        rows = page.locator("#calls tbody tr")
        expect(page.locator("#calls")).to_have_attribute("data-live", "yes")
        call("get_time")
        expect(rows.first).to_contain_text("get_time")
        page.get_by_role("button", name="Pause").click()
        call("no_such_tool")
        expect(page.locator("[data-live]").first).to_contain_text("came since")
        expect(rows.first).to_contain_text("get_time")
        page.get_by_role("button", name="Go on").click()
        expect(rows.first).to_contain_text("unknown_tool")
        page.get_by_label("Outcome").select_option("unknown_tool")
        expect(page.locator("#calls tbody tr:visible").filter(has_text="get_time")).to_have_count(0)
        page.get_by_label("Outcome").select_option("")
        page.get_by_label("Show only").fill("get_time")
        expect(page.locator("#calls tbody tr:visible").filter(has_text="no_such_tool")).to_have_count(0)
        expect(page.locator("#calls tbody tr:visible").first).to_contain_text("get_time")


@pytest.mark.parametrize("width", [360, 720, 768, 1000])
def test_calls_with_long_names_stay_within_the_window(browser: Browser, served: Served, width: int) -> None:
    for name in ("w" * 64, "get_time"):
        httpx.post(f"{served.address}/v1/tools/{name}/call", json={"arguments": {}}, timeout=30)
    with visiting(browser, served, viewport={"width": width, "height": 800}) as visit:
        for path in ("/calls", "/audit"):
            page = visit.open(path)
            row = page.locator("tbody tr[data-call]").filter(has_text="get_time").first
            expect(row).to_contain_text("landlock")
            assert is_narrow(page), path
            box = row.bounding_box()
            assert box
            # Layers are many words; beside everything else they once made a row as high as the window.
            assert box["height"] <= 200, (path, box)
        assert page.evaluate(
            "[...document.querySelectorAll('.began')].every((cell) => cell.scrollWidth <= cell.clientWidth)"
        )


@pytest.mark.parametrize("width", [768, 1280])
def test_the_way_to_every_page_is_in_sight(browser: Browser, served: Served, width: int) -> None:
    with visiting(browser, served, viewport={"width": width, "height": 800}) as visit:
        ways = visit.open("/").get_by_role("navigation").first
        assert ways.evaluate("(nav) => nav.scrollWidth <= nav.clientWidth")


def test_what_a_caller_writes_is_never_markup(browser: Browser, served: Served) -> None:
    """Attack: a name that is markup, so that it acts in the browser of whoever watches the calls."""
    with visiting(browser, served, viewport=DESK) as visit:
        page = visit.open("/calls")
        expect(page.locator("#calls")).to_have_attribute("data-live", "yes")
        name = "<img src=x onerror=alert(1)>"
        path = f"/v1/tools/{quote(name, safe='')}/call"
        assert httpx.post(served.address + path, json={"arguments": {}}, timeout=30).status_code == 404
        expect(page.locator("#calls tbody tr").first).to_contain_text(name)
        page.reload()
        expect(page.locator("#calls tbody tr").first).to_contain_text(name)
        assert page.locator("#calls img").count() == 0


def test_the_content_policy_lets_nothing_of_others_run(browser: Browser, served: Served) -> None:
    """Attack: markup that came through all the same. Also shows that the other tests would see it."""
    with visiting(browser, served, viewport=DESK) as visit:
        page = visit.open("/health")
        page.evaluate(
            """() => {
              const script = document.createElement("script");
              script.textContent = "window.ran = true";
              const image = document.createElement("img");
              image.src = "http://127.0.0.1:9/pixel";
              document.body.append(script, image);
            }"""
        )
        page.wait_for_function("() => document.images.length > 0 && document.images[0].complete")
        assert page.evaluate("() => window.ran") is None
        told = " ".join(visit.complaints)
        assert "script-src" in told
        assert "img-src" in told
        visit.complaints.clear()
        visit.asked = {url for url in visit.asked if not url.endswith("/pixel")}


def test_the_keyboard_is_enough(browser: Browser, served: Served) -> None:
    with visiting(browser, served, viewport=DESK) as visit:
        page = visit.open("/")
        page.keyboard.press("Tab")
        expect(page.get_by_text("Skip to content")).to_be_focused()
        page.keyboard.press("/")
        expect(page.get_by_label("Search")).to_be_focused()
        page.keyboard.type("get_time")
        expect(page.locator("tbody tr:visible")).to_have_count(1)
        tab_to(page, 'a[href*="get_time"]')
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("get_time")
        tab_to(page, "input, textarea")
        page.keyboard.type("UTC")
        tab_to(page, "[data-run]")
        page.keyboard.press("Enter")
        expect(page.locator("[data-result]")).to_contain_text("UTC")


def tab_to(page: Page, selector: str, tries: int = 60) -> None:
    for _ in range(tries):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"{tries} tabs do not lead to {selector}")


# -- every page ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paths(served: Served) -> list[str]:
    """Every page there is, each with something on it."""
    arguments = {"arguments": {**DOCUMENT, "pointer": "/tools/3/name"}}
    httpx.post(f"{served.address}/v1/tools/json_get/call", json=arguments, timeout=30)
    done = httpx.post(f"{served.address}/v1/tools/get_time/call", json={"arguments": {}}, timeout=30).json()
    listed = httpx.get(f"{served.address}/v1/tools?page_size=100", timeout=30).json()["tools"]
    named = {tool["name"]: tool["key"] for tool in listed}
    tools = [f"/tools/{quote(named[name], safe='')}" for name in ("get_time", "csv_query")]
    return [
        "/", *tools, "/skills", "/problems", "/calls", "/approvals", "/audit", f"/audit/{done['call_id']}",
        "/audit/verify", "/health", "/no-such-page",
    ]  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_has_a_serious_fault_for_those_who_cannot_see_or_point(
    browser: Browser, served: Served, paths: list[str], theme: str, npm_packages: Path
) -> None:
    axe = (npm_packages / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    size = DESK if theme == "light" else PHONE
    faults = []
    with visiting(browser, served, viewport=size, color_scheme=theme) as visit:
        page = visit.open("/health")
        for path in paths:
            page.goto(served.address + path)
            for details in page.locator("details").all():
                details.evaluate("each => { each.open = true; }")
            assert is_narrow(page), path
            page.evaluate(axe)
            found = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
            assert found["passes"], path
            faults += [
                f"{path}: {each['impact']}: {each['id']}: {each['help']}: {node['html'][:160]}"
                for each in found["violations"]
                if each["impact"] in ("serious", "critical")
                for node in each["nodes"][:3]
            ]
        visit.complaints = [each for each in visit.complaints if "/no-such-page" not in each]
    assert faults == []


def test_without_scripts_everything_can_be_read(browser: Browser, served: Served, paths: list[str]) -> None:
    with visiting(browser, served, viewport=DESK, java_script_enabled=False) as visit:
        page = visit.open("/?q=current+time+zone")
        expect(page.locator("tbody tr:visible")).to_have_count(1)
        page.get_by_role("link", name="get_time").click()
        expect(page.locator("main")).to_contain_text("IANA name")
        page.goto(served.address + "/audit?tool=get_time")
        expect(page.locator("tbody tr[data-call]").first).to_contain_text("get_time")
        page.get_by_role("button", name="Verify the journal").click()
        expect(page.locator("[data-verdict]")).to_contain_text("Whole.")
        page.goto(served.address + "/calls")
        expect(page.locator("#calls tbody tr").first).to_be_visible()
        page.goto(served.address + "/approvals")
        expect(page.locator("main")).to_contain_text("toolcrib approvals approve")
        page.goto(served.address + "/health")
        expect(page.locator("main")).to_contain_text("Isolation")
    assert "/health" in paths
