"""The attacks of the security battery on parsing (area A) and on schemas (area H), one test or more for each.

Where a case and a requirement disagree, the requirement states what the format's users rely on and wins; the
test then shows the requirement's answer and, where there is one, the strict choice that gives the battery's.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import shared
from toolcrib import jsontext, schema
from toolcrib.calls import commands
from toolcrib.catalog import loading
from toolcrib.catalog.sources import Source
from toolcrib.dialects import DIALECTS
from toolcrib.model import NameMap, Rules, Schema, Severity, ToolError
from toolcrib.sandbox import discovery

# -- a declaration of each format ---------------------------------------------------------------------------

OBJECT: dict[str, Any] = {"type": "object", "properties": {}}


def manifest(arguments: Any = OBJECT) -> str:
    return json.dumps({"tools": [{"name": "a", "command": ["/bin/true"], "schema": arguments}]})


def timed(timeout: str) -> str:
    """A manifest with this text as the timeout of its tool."""
    return f'{{"tools":[{{"name":"a","command":["/bin/true"],"timeoutSec":{timeout}}}]}}'


def capability(arguments: Any = OBJECT) -> str:
    tool = {"name": "a", "description": "A", "input_schema": arguments}
    return json.dumps({"group": "g", "selection": {"strategy": "always"}, "tools": [tool]})


def skill(arguments: Any = OBJECT) -> str:
    return json.dumps(
        {
            "tools": [{"name": "a", "description": "A", "parameters": arguments}],
            "allowlist": {"git": ["status"]},
            "execution": [{"tool": "a", "binary": "git", "subcommand": "status", "args": []}],
        }
    )


SKILL_MD = "---\nname: named\ndescription: D\n---\nText.\n"


def rye_python(arguments: Any = OBJECT) -> str:
    return f'''"""Say hello."""
__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "hello"
__tool_description__ = "Says hello"
CONFIG_SCHEMA = {arguments!r}


def execute(params, project_path):
    return {{"success": True}}
'''


def rye_javascript(arguments: Any = OBJECT) -> str:
    return f"""export const __version__ = "1.0.0";
export const __tool_type__ = "javascript";
export const __executor_id__ = "rye/core/runtimes/node/node";
export const __category__ = "hello";
export const __tool_description__ = "Says hello";
export const CONFIG_SCHEMA = {json.dumps(arguments)};
export default async function (params, projectPath) {{ return {{success: true}}; }}
"""


def rye_yaml(arguments: Any = OBJECT, more: str = "") -> str:
    return f"""tool_id: a
tool_type: http
version: "1.0.0"
executor_id: rye/core/primitives/http_client
category: hello
description: Says hello
config_schema: {json.dumps(arguments)}
{more}
"""


def program(arguments: Any = OBJECT) -> str:
    return json.dumps({"name": "a", "description": "A", "parameters": arguments})


PLACES = {
    "manifest": ("tools.json", manifest),
    "capability": ("g_tools.json", capability),
    "skill": ("notes/tools.json", skill),
    "rye-python": (".ai/tools/hello/a.py", rye_python),
    "rye-javascript": (".ai/tools/hello/a.js", rye_javascript),
    "rye-yaml": (".ai/tools/hello/a.yaml", rye_yaml),
    "executable": ("bin/a-tool", program),
}
"""Every place where a format reads text, and a text that declares one tool there."""


class Loaded:
    """What a folder gave."""

    def __init__(self, folder: Path, rules: Rules | None = None, printed: bytes = b"") -> None:
        sources = [Source(path=str(folder), named=True)]
        if (folder / "bin").is_dir():
            sources.append(Source(path=str(folder / "bin"), format="executable", probe=True))
        start = time.process_time()
        report = loading.load(
            sources,
            rules or Rules(),
            loading.Machine(
                prober=lambda paths: discovery.probe_all(paths, env={"PATH": "/usr/bin:/bin"}),
                which=lambda name: name,
            ),
        )
        self.problems = report.problems
        self.took_s = time.process_time() - start
        self.tools = list(report.catalog.tools)
        self.skills = [found.name for found in report.catalog.skills]
        self.names = [tool.name for tool in self.tools]
        self.codes = [problem.code for problem in self.problems]
        self.errors = [problem.message for problem in self.problems if problem.severity is Severity.ERROR]
        self.said = "\n".join(problem.message for problem in self.problems)


def load(folder: Path, place: str, text: str | bytes, rules: Rules | None = None) -> Loaded:
    """Load a folder in which one file of a format stands."""
    name, _ = PLACES[place]
    content = text if isinstance(text, bytes) else text.encode("utf-8")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if place == "executable":  # what it prints lies beside it
        path.with_suffix(".out").write_bytes(content)
        path.write_text(f"#!/bin/sh\ncat '{path.with_suffix('.out')}'\n", encoding="utf-8")
        path.chmod(0o755)
    else:
        path.write_bytes(content)
    if place == "skill":
        (path.parent / "SKILL.md").write_text(SKILL_MD, encoding="utf-8")
    return Loaded(folder, rules)


@pytest.mark.parametrize("place", PLACES)
def test_the_declarations_of_this_file_load_when_nothing_attacks(tmp_path: Path, place: str) -> None:
    found = load(tmp_path, place, PLACES[place][1](OBJECT))
    assert len(found.names) == 1
    assert found.errors == []


# -- A: parsing ---------------------------------------------------------------------------------------------


@pytest.mark.battery("A01")
def test_a01_a_repeated_key_is_refused_with_its_name_and_place(tmp_path: Path) -> None:
    text = '{"tools":[\n{"name":"a","command":["./tools/bin/safe"],\n"command":["/bin/sh"]}]}'
    found = load(tmp_path, "manifest", text)
    assert found.tools == []
    (problem,) = found.problems
    assert (problem.code, problem.line) == ("manifest.root.duplicate-members", 3)
    assert problem.message == 'tool[0] "a": duplicate key "command"'


@pytest.mark.battery("A01")
@pytest.mark.parametrize(
    ("place", "key"),
    [
        ("capability", '"name": "a"'),
        ("skill", '"allowlist": {"git": ["status"]}'),
        ("executable", '"name": "a"'),
        ("rye-yaml", "executor_id: rye/core/primitives/http_client\n"),
    ],
)
def test_a01_no_format_takes_the_last_of_two(tmp_path: Path, place: str, key: str) -> None:
    text = PLACES[place][1](OBJECT).replace("'", '"')
    between = "" if key.endswith("\n") else ", "
    again = key.replace('"a"', '"b"').replace("http_client", "subprocess")
    repeated = text.replace(key, key + between + again)
    assert repeated.count(key.partition(":")[0]) == text.count(key.partition(":")[0]) + 1
    found = load(tmp_path, place, repeated)
    assert found.tools == []
    assert found.errors


@pytest.mark.battery("A02")
def test_a02_the_first_of_two_tools_of_one_name_is_kept_and_none_in_strict_mode(tmp_path: Path) -> None:
    tool = {"name": "a", "description": "A", "command": ["/bin/true"]}
    text = json.dumps({"tools": [tool, {**tool, "command": ["/bin/sh"]}]})
    found = load(tmp_path, "manifest", text)
    assert [tool.invocation.program for tool in found.tools] == ["/bin/true"]  # type: ignore[union-attr]
    assert found.errors == ['tool[1] "a": duplicate name']
    strict = load(tmp_path, "manifest", text, Rules(manifest_strict=True))
    assert strict.tools == []
    assert strict.errors == ['tool[1] "a": duplicate name']


DEEP = 100_000


@pytest.mark.battery("A04")
@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("manifest", '{"tools":' + "[" * DEEP + "]" * DEEP + "}"),
        ("manifest", "[" * DEEP),
        ("manifest", '{"a":' * DEEP),
        ("capability", '{"group":"g","tools":' + "[" * DEEP + "]" * DEEP + "}"),
        ("skill", '{"allowlist":' + "[" * DEEP),
        ("rye-yaml", "tool_id: " + "[" * DEEP),
        ("rye-yaml", "a: " + "{b: " * DEEP),
        ("rye-python", "X = " + "[" * DEEP + "]" * DEEP),
        ("rye-python", "X = " + "-" * DEEP + "1"),
        ("rye-python", "X = " + "f(" * DEEP),
        ("rye-python", "X = 1" + "+1" * DEEP),
        ("rye-javascript", "export const CONFIG_SCHEMA = " + "[" * DEEP + "]" * DEEP + ";"),
        ("rye-javascript", "export const CONFIG_SCHEMA = " + "{a: " * DEEP),
    ],
)
def test_a04_deep_nesting_is_a_clean_problem_at_once(tmp_path: Path, place: str, text: str) -> None:
    found = load(tmp_path, place, text)
    assert found.tools == []
    assert found.took_s < 0.5
    assert all(
        "Error" not in problem.message and "Traceback" not in problem.message for problem in found.problems
    )
    if place in ("manifest", "capability", "skill", "rye-yaml"):
        assert "nested more than 100 levels deep" in found.said


@pytest.mark.battery("A05")
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a05_numbers_that_json_does_not_have_are_refused_everywhere(tmp_path: Path, number: str) -> None:
    arguments = {"type": "object", "properties": {"x": {"maximum": "NUMBER"}}}
    for place, (_, text) in PLACES.items():
        if place in ("manifest", "capability", "skill", "executable"):
            found = load(tmp_path / place, place, text(arguments).replace('"NUMBER"', number))
            assert found.tools == [], place
            assert "number" in found.said, place
    sent = f'{{"x": {number}}}'
    called = {"id": "1", "type": "function", "function": {"name": "a", "arguments": sent}}
    (call,) = DIALECTS["openai"].read_calls({"tool_calls": [called]}, NameMap(keys={"a": "manifest:m/a"}))
    assert call.arguments is None
    assert "number" in str(call.defect)


@pytest.mark.battery("A05")
@pytest.mark.parametrize("number", [".nan", ".inf", "-.inf", "1.0e+999"])
def test_a05_yaml_has_no_such_numbers_either(tmp_path: Path, number: str) -> None:
    found = load(tmp_path, "rye-yaml", rye_yaml(more=f"config: {{limit: {number}}}"))
    assert found.tools == []
    assert "number" in found.said


@pytest.mark.battery("A06")
@pytest.mark.parametrize("place", ["manifest", "capability", "skill", "executable", "rye-yaml"])
def test_a06_five_thousand_digits_are_refused_and_four_thousand_are_not(tmp_path: Path, place: str) -> None:
    arguments = {
        "type": "object",
        "properties": {"x": {"type": "integer", "description": "X", "maximum": 12345}},
    }
    text = PLACES[place][1](arguments)
    long = load(tmp_path / "long", place, text.replace("12345", "9" * 5000))
    assert long.tools == []
    assert "more than 4300 digits" in long.said or place == "executable"
    fits = load(tmp_path / "fits", place, text.replace("12345", "9" * 4299))
    assert len(fits.tools) == 1
    assert fits.tools[0].input_schema is not None
    assert schema.complaints(fits.tools[0].input_schema, {"x": 10**4299}) != ()
    assert schema.complaints(fits.tools[0].input_schema, {"x": 5}) == ()


@pytest.mark.battery("A06")
def test_a06_a_timeout_of_four_thousand_digits_is_no_crash(tmp_path: Path) -> None:
    text = timed("9" * 4299)
    (tool,) = load(tmp_path, "manifest", text).tools
    assert tool.needs.timeout_s == 1e9


ENCODINGS = {
    "UTF-8 with a byte-order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16, big end first": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "UTF-32": lambda text: text.encode("utf-32"),
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "UTF-32 without a mark": lambda text: text.encode("utf-32-be"),
    "Latin-1": lambda text: text.replace("hello", "h\xe9llo").replace('"A"', '"\xc4"').encode("latin-1"),
}


@pytest.mark.battery("A07")
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("place", PLACES)
def test_a07_one_policy_of_encodings_for_all_formats(tmp_path: Path, place: str, encoding: str) -> None:
    text = PLACES[place][1](OBJECT)
    if place == "manifest":
        text = text.replace('"name": "a"', '"name": "a", "description": "A"')
    found = load(tmp_path, place, ENCODINGS[encoding](text))
    assert found.tools == []
    if "mark" in encoding.replace("without a mark", ""):
        assert "the file begins with a byte-order mark; save it as UTF-8 without one" in found.said
    elif encoding == "Latin-1":
        assert "not UTF-8 (byte 0x" in found.said


@pytest.mark.battery("A07")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a07_front_matter_follows_the_same_policy(tmp_path: Path, encoding: str) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "SKILL.md").write_bytes(ENCODINGS[encoding](SKILL_MD.replace("named", "hello")))
    found = Loaded(tmp_path)
    assert found.skills == ["notes"]  # the folder's name: nothing of the front matter counts
    assert found.codes == ["skill.skillmd.frontmatter"]


def bomb(levels: int = 9) -> str:
    """Nine lists, each of nine times the one before it: 9 to the ninth values."""
    lines = ["x0: &x0 [a, b, c, d, e, f, g, h, i]"]
    for level in range(1, levels):
        lines.append(f"x{level}: &x{level} [{', '.join([f'*x{level - 1}'] * 9)}]")
    return "\n".join(lines) + "\n"


@pytest.mark.battery("A08")
def test_a08_an_alias_bomb_goes_off_nowhere(tmp_path: Path) -> None:
    found = load(tmp_path / "rye", "rye-yaml", bomb() + rye_yaml())
    assert found.tools == []
    assert "more than 10000 values, aliases written out" in found.said
    assert found.took_s < 0.5
    (tmp_path / "skills" / "notes").mkdir(parents=True)
    (tmp_path / "skills" / "notes" / "SKILL.md").write_text(f"---\n{bomb()}---\n", encoding="utf-8")
    found = Loaded(tmp_path / "skills")
    assert "more than 10000 values, aliases written out" in found.said
    assert found.took_s < 0.5


@pytest.mark.battery("A08")
@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n", "a: *missing\n"])
def test_a08_aliases_that_lead_in_circles_or_nowhere_are_refused(tmp_path: Path, text: str) -> None:
    found = load(tmp_path, "rye-yaml", text + rye_yaml())
    assert found.tools == []
    assert "the alias *" in found.said


@pytest.mark.battery("A10")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('version: "1.0.0"', "version: 1.10"),
        ('version: "1.0.0"', "version: 2026-01-31"),
        ('version: "1.0.0"', "version: 1:30"),
        ('version: "1.0.0"', "version: 1"),
        ("description: Says hello", "description: no"),
        ("category: hello", "category: 0o17"),
        ("executor_id: rye/core/primitives/http_client", "executor_id: yes"),
    ],
)
def test_a10_implicit_yaml_types_are_not_coerced(tmp_path: Path, old: str, new: str) -> None:
    assert old in rye_yaml()
    found = load(tmp_path, "rye-yaml", rye_yaml().replace(old, new))
    assert found.tools == []
    assert found.errors


@pytest.mark.battery("A10")
def test_a10_a_skill_called_no_keeps_its_folders_name(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "SKILL.md").write_text("---\nname: no\ndescription: 1:30\n---\n", encoding="utf-8")
    found = Loaded(tmp_path)
    assert found.skills == ["notes"]
    assert found.said == "name: expected text, got boolean"


@pytest.mark.battery("A11")
def test_a11_tools_and_executions_that_miss_each_other_are_both_named(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "tools": [{"name": "lonely", "description": "A", "parameters": OBJECT}],
            "allowlist": {"git": ["status"]},
            "execution": [{"tool": "absent", "binary": "git", "subcommand": "status", "args": []}],
        }
    )
    found = load(tmp_path, "skill", text)
    assert found.tools == []
    assert [name for name in ("lonely", "absent") if f'"{name}"' in found.said] == ["lonely", "absent"]


@pytest.mark.battery("A12")
@pytest.mark.parametrize(
    ("written", "timeout_s"), [("0", None), ("-1", None), ("1000000000", 1e9), ("3", 3.0)]
)
def test_a12_whole_timeouts_load_and_those_below_one_count_as_absent(
    tmp_path: Path, written: str, timeout_s: float | None
) -> None:
    text = timed(written)
    found = load(tmp_path, "manifest", text)
    assert [tool.needs.timeout_s for tool in found.tools] == [timeout_s]
    assert ("manifest.timeout.nonpositive" in found.codes) is (timeout_s is None)


@pytest.mark.battery("A12")
@pytest.mark.parametrize("written", ["1e9", "1.5", '"5"', "true", "[5]", "{}"])
def test_a12_other_timeouts_are_refused(tmp_path: Path, written: str) -> None:
    text = timed(written)
    found = load(tmp_path, "manifest", text)
    assert found.tools == []
    assert "timeoutSec must be a whole number of seconds" in found.said


# -- H: schemas ---------------------------------------------------------------------------------------------


def took_s(document: dict[str, Any], value: Any) -> float:
    start = time.process_time()
    schema.complaints(Schema.of(document), value)
    return time.process_time() - start


@pytest.mark.battery("H01")
@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "^(a|a?)+$", "(.*a){20}", r"^(\w+\s?)*$"])
def test_h01_patterns_run_in_linear_time(pattern: str) -> None:
    document = {"type": "string", "pattern": pattern}
    assert schema.flaws(document) == ()
    assert took_s(document, "a" * 40 + "!") < 0.5
    assert took_s(document, "a" * 100_000 + "!") < 2


@pytest.mark.battery("H01")
@pytest.mark.parametrize(
    "pattern", [r"(a+)+\1", "(?=a+)+b", "(?<!a)b", "(a{1000}){1000}", "(?:a{100}){100}{100}"]
)
def test_h01_patterns_that_do_not_are_refused_at_load(tmp_path: Path, pattern: str) -> None:
    found = load(
        tmp_path, "manifest", manifest({"type": "object", "properties": {"x": {"pattern": pattern}}})
    )
    assert found.tools == []
    assert "schema.invalid" in found.codes
    assert found.took_s < 0.5


@pytest.mark.battery("H02")
def test_h02_unique_items_of_three_thousand_objects(tmp_path: Path) -> None:
    items = [{"id": number, "tags": ["a", "b"]} for number in range(3000)]
    document = {"type": "array", "uniqueItems": True}
    assert took_s(document, items) < 0.5
    assert took_s(document, [*items, items[0]]) < 0.5
    assert [str(found) for found in schema.complaints(Schema.of(document), [*items, items[0]])] == [
        "has items that are the same"
    ]


def ladder(rungs: int, keyword: str) -> dict[str, Any]:
    """Each rung refers to the next one twice: 2 to the rungs ways through it."""
    defs: dict[str, Any] = {f"r{rungs}": {"type": "string"}}
    for rung in range(rungs):
        defs[f"r{rung}"] = {keyword: [{"$ref": f"#/$defs/r{rung + 1}"}, {"$ref": f"#/$defs/r{rung + 1}"}]}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/r0"}}, "$defs": defs}


@pytest.mark.battery("H03")
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
@pytest.mark.parametrize("rungs", [16, 60])
def test_h03_a_ladder_of_alternatives_is_refused_at_load(tmp_path: Path, keyword: str, rungs: int) -> None:
    found = load(tmp_path, "manifest", manifest(ladder(rungs, keyword)))
    assert found.tools == []
    assert "the schema has more than 10000 parts, references written out" in found.said
    assert found.took_s < 0.5


@pytest.mark.battery("H03")
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_h03_the_longest_ladder_that_loads_is_checked_at_once(keyword: str) -> None:
    document = ladder(9, keyword)
    assert schema.flaws(document) == ()
    assert took_s(document, {"x": 5}) < 0.5


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """A real server on this machine, and every request it gets."""
    hits: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hits.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "string"}')

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", hits
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def leading_out(url: str) -> dict[str, Any]:
    """Schemas that make a validator fetch or read."""
    return {
        "$ref": {"$ref": url},
        "$ref with a fragment": {"$ref": f"{url}#/a"},
        "$dynamicRef": {"$dynamicRef": f"{url}#a"},
        "$recursiveRef": {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": url},
        "$schema": {"$schema": url},
        "$schema below": {"properties": {"x": {"$schema": url, "$ref": "#"}}},
        "$id and a relative $ref": {"$id": f"{url}/", "properties": {"x": {"$ref": "other"}}},
        "a name like a keyword": {"properties": {"default": {"$ref": url}, "const": {"$ref": url}}},
        "under an unknown keyword": {"x-more": {"$ref": url}, "properties": {"x": {"$ref": "#/x-more"}}},
        "in a draft of old": {"$schema": "http://json-schema.org/draft-04/schema#", "items": {"$ref": url}},
    }


@pytest.mark.battery("H05")
def test_h05_no_schema_makes_us_fetch_anything(tmp_path: Path) -> None:
    with listening() as (url, hits):
        for title, part in leading_out(f"{url}/schema").items():
            arguments = {"type": "object", "properties": {}, **part}
            for place, (_, text) in PLACES.items():
                found = load(tmp_path / f"{place} {title}", place, text(arguments))
                assert found.tools == [], (title, place)
                assert found.errors, (title, place)
            assert schema.flaws(arguments) != (), title
        # Behind the check at load stands a retriever that refuses.
        for part in (
            {"$ref": url},
            {"$dynamicRef": url},
            {"allOf": [{"$ref": f"{url}/x#/y"}]},
            {"$schema": url},
        ):
            with pytest.raises(Exception, match=r"never fetched|not supported|Unknown meta-schema"):
                schema.compile_schema(part)
        assert hits == []


@pytest.mark.battery("H05")
def test_h05_an_identifier_or_a_vocabulary_is_a_name_and_no_address(tmp_path: Path) -> None:
    with listening() as (url, hits):
        arguments = {
            "$id": f"{url}/tool",
            "$vocabulary": {f"{url}/vocabulary": True},
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/x"}},
            "$defs": {"x": {"$id": f"{url}/x", "type": "string"}},
            "default": {"$ref": url},
        }
        (tool,) = load(tmp_path, "manifest", manifest(arguments)).tools
        assert tool.input_schema is not None
        assert schema.complaints(tool.input_schema, {"x": 5}) != ()
        assert hits == []


@pytest.mark.battery("H05")
def test_h05_no_schema_makes_us_read_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "schema.json")  # whoever opens it to read, waits for ever
    for title, part in leading_out(f"file://{tmp_path}/schema.json").items():
        arguments = {"type": "object", "properties": {}, **part}
        found = load(tmp_path / title, "manifest", manifest(arguments))
        assert found.tools == [], title
    for path in ("file:///etc/passwd", "/etc/passwd", "etc/passwd", "", "urn:x", "//127.0.0.1/x"):
        found = load(tmp_path / "one", "manifest", manifest({"type": "object", "items": {"$ref": path}}))
        assert found.tools == [], path
        assert "leads out of the schema" in found.said


@pytest.mark.battery("H06")
@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ("^[a-z]+$", "abc", True),
        ("^[a-z]+$", "abc\n", False),
        (r"^\d+$", "123", True),
        (r"^\d+$", "١٢٣", False),
        (r"^\w+$", "é", False),
        ("b", "abc", True),
    ],
)
def test_h06_patterns_mean_what_ecma_262_says(pattern: str, value: str, fits: bool) -> None:
    assert (schema.complaints(Schema.of({"pattern": pattern}), value) == ()) is fits


@pytest.mark.battery("H07")
@pytest.mark.parametrize(
    ("value", "fits"),
    [(1, True), (1.0, True), (1.5, False), (True, False), ("1", False), (None, False), (1e300, True)],
)
def test_h07_an_integer_is_a_whole_number_and_nothing_is_coerced(value: Any, fits: bool) -> None:
    assert (schema.complaints(Schema.of({"type": "integer"}), value) == ()) is fits


@pytest.mark.battery("H08")
def test_h08_an_unknown_argument_passes_for_a_skill_and_never_reaches_argv(tmp_path: Path) -> None:
    (tool,) = load(tmp_path, "skill", skill()).tools
    assert tool.input_schema is not None
    arguments = {"evil": "--output=/tmp/x"}
    assert schema.complaints(tool.input_schema, arguments) == ()
    ran = commands.command(tool, arguments, json.dumps(arguments), cwd="/")
    assert not isinstance(ran, ToolError)
    assert ran.argv[1:] == ("status",)


@pytest.mark.battery("H08")
def test_h08_an_unknown_argument_is_refused_where_the_schema_says_so() -> None:
    document = Schema.of({"type": "object", "properties": {"limit": {}}, "additionalProperties": False})
    assert [str(found) for found in schema.complaints(document, {"limmit": 1})] == [
        'unknown name "limmit"; did you mean "limit"?'
    ]


@pytest.mark.battery("H09")
@pytest.mark.parametrize(
    ("keyword", "part"),
    [
        ("$ref", {"$ref": "#/$defs/x"}),
        ("allOf", {"allOf": [{"type": "string"}]}),
        ("anyOf", {"anyOf": [{"type": "string"}]}),
        ("oneOf", {"oneOf": [{"type": "string"}]}),
        ("if", {"if": {"type": "string"}}),
    ],
)
def test_h09_what_the_executable_format_forbids_is_refused_by_keyword(
    tmp_path: Path, keyword: str, part: dict[str, Any]
) -> None:
    x = {"type": "string", "description": "X", **part}
    found = load(tmp_path, "executable", program({"type": "object", "properties": {"x": x}}))
    assert found.tools == []
    assert f"unsupported keyword {keyword}" in found.errors


@pytest.mark.battery("H09")
def test_h09_pattern_and_default_are_kept_with_a_warning(tmp_path: Path) -> None:
    x = {"type": "string", "description": "X", "pattern": "^a$", "default": "a"}
    found = load(tmp_path, "executable", program({"type": "object", "properties": {"x": x}}))
    assert found.names == ["a"]
    assert found.codes == ["executable.params.unsupported-soft"] * 2


@pytest.mark.battery("H10")
def test_h10_the_official_suite_passes_whole() -> None:
    suite = shared("json-schema-suite")
    remotes = {
        f"http://localhost:1234/{path.relative_to(suite / 'remotes')}": json.loads(
            path.read_text(encoding="utf-8")
        )
        for path in (suite / "remotes").rglob("*.json")
    }
    counted = 0
    wrong = []
    for path in sorted((suite / "tests" / "draft2020-12").glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            validator = schema.compile_schema(group["schema"], remotes)
            for test in group["tests"]:
                counted += 1
                if validator.is_valid(test["data"]) is not test["valid"]:
                    wrong.append(f"{path.name}: {group['description']}: {test['description']}")
    assert wrong == []
    assert counted == 1299


@pytest.mark.battery("H10")
def test_h10_reading_the_suite_strictly_changes_no_value() -> None:
    """Our reader refuses what two readers could understand differently, and nothing of the suite."""
    paths = sorted((shared("json-schema-suite") / "tests" / "draft2020-12").glob("*.json"))
    refused = set()
    for path in paths:
        parsed = jsontext.read(path.read_bytes())
        if parsed.defect is not None:
            refused.add((path.name, parsed.defect.message))
        else:
            assert parsed.value == json.loads(path.read_bytes())
    assert len(paths) == 46
    # NUL and lone surrogates in test data: a value that no argument of ours may have.
    assert all("NUL" in message or "surrogate" in message for _, message in refused)
