"""The official conformance suite, against a host whose tools bear the names it asks for.

What passes stands here and in docs/reference/mcp-conformance.md, which also says why the rest does not: one
that begins to pass, or stops, fails this test.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.mcp_hosts import CATALOG, host, package, run

TABLE = Path(__file__).parent.parent.parent / "docs" / "reference" / "mcp-conformance.md"
PASSES = {
    "server-initialize", "ping", "completion-complete", "tools-list", "tools-call-simple-text",
    "tools-call-image", "tools-call-audio", "tools-call-embedded-resource", "tools-call-mixed-content",
    "tools-call-error", "tools-call-with-progress", "tools-call-elicitation", "json-schema-2020-12",
    "server-sse-multiple-streams", "server-sse-polling", "resources-list", "resources-read-text",
    "resources-read-binary", "resources-templates-read", "prompts-list", "prompts-get-simple",
    "prompts-get-with-args", "prompts-get-embedded-resource", "prompts-get-with-image",
    "dns-rebinding-protection",
}  # fmt: skip
FAILS = {
    "logging-set-level", "tools-call-with-logging", "tools-call-sampling", "elicitation-sep1034-defaults",
    "elicitation-sep1330-enums", "resources-subscribe", "resources-unsubscribe",
}  # fmt: skip
_ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (passes|fails) \|", re.MULTILINE)


@pytest.fixture(scope="module")
def outcomes(npm_packages: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """Whether each scenario passed, as the suite itself counts: no check of it failed."""
    suite = package(npm_packages, "conformance", "dist/index.js")
    home = tmp_path_factory.mktemp("conformance")
    with host(CATALOG, home / "host", "served") as served:
        run([*suite, "server", "--url", served.url, "--suite", "all", "-o", str(home / "told")], home)
    found = {}
    for path in sorted((home / "told").glob("server-*/checks.json")):
        name = re.sub(r"-\d{4}-\d\d-\d\dT.*$", "", path.parent.name.removeprefix("server-"))
        checks = json.loads(path.read_text(encoding="utf-8"))
        found[name] = all(check["status"] != "FAILURE" for check in checks)
    return found


def test_what_passes_of_the_official_suite_is_what_we_say(outcomes: dict[str, bool]) -> None:
    assert {name for name, passed in outcomes.items() if passed} == PASSES
    assert {name for name, passed in outcomes.items() if not passed} == FAILS


def test_the_table_of_the_documentation_says_the_same() -> None:
    told = dict(_ROW.findall(TABLE.read_text(encoding="utf-8")))
    assert told == {**dict.fromkeys(PASSES, "passes"), **dict.fromkeys(FAILS, "fails")}
