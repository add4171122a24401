"""The skill format, where a case of tests/conformance cannot say it: values, fixes, order, and odd bytes."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import shared
from toolcrib import jsontext
from toolcrib.formats import skill
from toolcrib.model import (
    AsArgv,
    Compiled,
    ConditionKind,
    Document,
    Fix,
    FixPart,
    Flag,
    Intake,
    Needs,
    Positional,
    Problem,
    Reply,
    Resolver,
    Rules,
    RunProcess,
    SchemaForm,
    Severity,
    Switch,
    Unit,
)

PLAIN = Rules()
FULLEST = {
    "tools": [
        {
            "name": "note_put",
            "description": "Write a note.",
            "parameters": {
                "type": "object",
                "required": ["path"],
                "properties": {
                    "path": {"type": "string"},
                    "content": {"type": "string"},
                    "replace": {"type": "boolean"},
                },
            },
        }
    ],
    "allowlist": {"notesmd-cli": ["create", "print"], "date": [""]},
    "execution": [
        {
            "tool": "note_put",
            "binary": "notesmd-cli",
            "subcommand": "create",
            "args": [
                {
                    "param": "path",
                    "kind": "positional",
                    "allowLeadingDash": True,
                    "resolveCommand": {"script": "daily-path", "args": ["$param"]},
                },
                {
                    "param": "content",
                    "kind": "flag",
                    "flag": "text",
                    "normalizeNewlines": True,
                    "resolveCommand": {"binary": "date", "subcommand": "", "args": ["--iso=$param"]},
                },
                {
                    "param": "replace",
                    "kind": "flagifboolean",
                    "flagIfTrue": "--overwrite",
                    "flagIfFalse": "--append",
                },
            ],
        }
    ],
}


def document(root: object, *, skill_md: bytes | None = b"# Notes\n", **more: Any) -> Document:
    content = root if isinstance(root, bytes) else json.dumps(root).encode()
    beside = {} if skill_md is None else {"SKILL.md": skill_md}
    values: dict[str, Any] = {
        "path": "/skills/notes/tools.json",
        "content": content,
        "parsed": jsontext.read(content),
        "place": "skill",
        "scope": "notes",
        "neighbours": beside,
    }
    return Document(**(values | more))


def compiled(root: object, rules: Rules = PLAIN, **more: Any) -> Compiled:
    return skill.compile_document(document(root, **more), rules)


def one_tool(name: str, *args: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {arg["param"]: {} for arg in args}
    schema = {"type": "object", "required": list(properties), "properties": properties}
    return {
        "tools": [{"name": name, "description": "Does it.", "parameters": schema}],
        "allowlist": {"git": ["status"]},
        "execution": [{"tool": name, "binary": "git", "subcommand": "status", "args": list(args)}],
    }


def codes(problems: tuple[Problem, ...]) -> list[str]:
    return [problem.code for problem in problems]


# -- recognising --------------------------------------------------------------------------------------------


@pytest.mark.requirement("skill.root.mixed-format", "skill.root.three-file")
@pytest.mark.parametrize(
    ("text", "beside", "expected"),
    [
        ('{"allowlist": {}}', (), True),
        ('{"execution": []}', (), True),
        ('{"allowlist": {}, "allowlist": {}}', (), True),
        ('{"tools": []}', (), False),
        ('{"tools": [{"allowlist": {}, "allowlist": {}}]}', (), False),
        ("{}", (), False),
        ("[]", (), False),
        ("[]", ("allowlist.json",), False),
        ("[]", ("allowlist.json", "execution.json"), True),
        ('"allowlist"', (), False),
        ("{", (), False),
    ],
)
def test_the_structure_marks_a_skill(text: str, beside: tuple[str, ...], expected: bool) -> None:
    found = document(text.encode(), place=None, neighbours=dict.fromkeys(beside, b"{}"))
    assert skill.recognises(found) is expected


def test_a_document_that_was_not_read_is_not_recognised() -> None:
    assert not skill.recognises(Document(path="/x/tools.json", content=None))


# -- what a tool becomes ------------------------------------------------------------------------------------


def test_the_fullest_entry_becomes_a_process_with_every_mapping() -> None:
    (tool,) = compiled(FULLEST).tools
    assert tool.key == "skill:notes/note_put"
    assert (tool.scope, tool.origin.path, tool.origin.pointer) == (
        "notes",
        "/skills/notes/tools.json",
        ("tools", 0),
    )
    assert tool.invocation == RunProcess(
        program="notesmd-cli",
        fixed=("create",),
        encoding=AsArgv(
            args=(
                Positional(
                    param="path",
                    allow_leading_dash=True,
                    resolver=Resolver(script="daily-path", args=("$param",)),
                ),
                Flag(
                    param="content",
                    flag="text",
                    normalize_newlines=True,
                    resolver=Resolver(binary="date", subcommand="", args=("--iso=$param",)),
                ),
                Switch(param="replace", if_true="--overwrite", if_false="--append"),
            )
        ),
        allowlist=(("notesmd-cli", ("create",)), ("date", ("",))),
        skill_dir="/skills/notes",
    )
    assert tool.intake == Intake(drop_null_optional=True, lenient_booleans=("replace",))
    assert tool.needs == Needs(programs=("notesmd-cli", "date"))
    assert (tool.reply, tool.schema_form, tool.selection) == (Reply.PLAIN_TEXT, SchemaForm.VERBATIM, None)


@pytest.mark.requirement("skill.args.kind-default")
def test_kind_is_positional_where_it_is_absent() -> None:
    (without,) = compiled(one_tool("search", {"param": "query"})).tools
    (with_kind,) = compiled(one_tool("search", {"param": "query", "kind": "positional"})).tools
    assert without == with_kind
    assert isinstance(without.invocation, RunProcess)
    assert without.invocation.encoding == AsArgv(args=(Positional(param="query"),))


@pytest.mark.requirement("skill.flag.name-default")
def test_a_flag_is_named_by_its_param_where_it_is_absent() -> None:
    (tool,) = compiled(one_tool("put", {"param": "content", "kind": "flag"})).tools
    assert isinstance(tool.invocation, RunProcess)
    assert tool.invocation.encoding == AsArgv(args=(Flag(param="content", flag="content"),))


@pytest.mark.requirement("skill.tools.parameters-verbatim")
def test_parameters_keep_their_key_order_and_numbers() -> None:
    text = b'{"tools":[{"name":"a","parameters":{"type":"object","z":1.0,"a":18446744073709551617}}]}'
    parameters = json.loads(text)["tools"][0]["parameters"]
    root = one_tool("a")
    root["tools"] = [{"name": "a", "description": "A.", "parameters": parameters}]
    (tool,) = compiled(root).tools
    assert tool.input_schema is not None
    assert tool.input_schema.text == b'{"type":"object","z":1.0,"a":18446744073709551617}'


def test_every_problem_names_its_tool() -> None:
    root = one_tool("put", {"param": "content", "kind": "flag", "flag": "-c", "writePath": True})
    assert [problem.name for problem in compiled(root).problems] == ["put", "put"]


# -- fixes --------------------------------------------------------------------------------------------------


@pytest.mark.requirement("skill.root.camel-case")
def test_a_snake_case_key_has_a_fix_unless_another_spelling_stands_beside_it() -> None:
    wrong = {"param": "r", "kind": "flagifboolean", "flag_if_true": "--x"}
    first, _ = compiled(one_tool("put", wrong)).problems
    assert first.fix == Fix(part=FixPart.KEY, new='"flagIfTrue"')
    assert first.pointer == ("execution", 0, "args", 0, "flag_if_true")
    (only,) = compiled(one_tool("put", wrong | {"flagIfTrue": "--y"})).problems
    assert (only.code, only.fix) == ("skill.root.camel-case", None)
    both = compiled(one_tool("put", wrong | {"flagiftrue": "--y"})).problems
    assert [problem.fix for problem in both if problem.code == "skill.root.camel-case"] == [None, None]


LATER_DISPLAY = ["postProcess", "maxOutputLines", "truncationHint", "hintConditions"]
LATER = [
    "optional", "successExitCodes", "readPath", "writePath", "absentDefault", "sideRead",
    "disambiguateAfterSkippedPositionals", "denyPattern", "denyResolveCommand", "denyAlwaysResolve", "split",
    "value", "subcommandOverride", "binaryWrapper", "condition", "paramCondition", "unsafePath",
]  # fmt: skip
LATER_KINDS = ["stdin", "workingdir", "tempfile", "literal", "envvar"]


@pytest.mark.requirement("skill.root.later-keys")
@pytest.mark.parametrize("key", LATER_DISPLAY + LATER)
@pytest.mark.parametrize("in_args", [False, True])
def test_a_later_key_is_ignored_where_it_only_displays_and_drops_its_tool_elsewhere(
    key: str, in_args: bool
) -> None:
    root = one_tool("later", {"param": "p"})
    neighbour = one_tool("neighbour")
    holder = root["execution"][0]["args"][0] if in_args else root["execution"][0]
    holder[key] = True
    found = compiled(
        {member: root[member] + neighbour[member] for member in ("tools", "execution")}
        | {"allowlist": root["allowlist"]}
    )
    (problem,) = found.problems
    displays = key in LATER_DISPLAY
    assert problem.code == "skill.root.later-keys"
    assert problem.severity is (Severity.WARNING if displays else Severity.ERROR)
    assert f'"{key}" belongs to a later version' in problem.message
    assert [tool.name for tool in found.tools] == (["later"] if displays else []) + ["neighbour"]


@pytest.mark.requirement("skill.root.later-keys")
@pytest.mark.parametrize("kind", LATER_KINDS)
def test_a_later_kind_drops_its_tool(kind: str) -> None:
    found = compiled(one_tool("later", {"param": "p", "kind": kind}))
    assert found.tools == ()
    assert [(problem.code, problem.severity, problem.message) for problem in found.problems] == [
        (
            "skill.root.later-keys",
            Severity.ERROR,
            f'execution[0].args[0]: kind "{kind}" belongs to a later version',
        )
    ]


@pytest.mark.requirement("skill.args.kind-values")
def test_a_kind_in_other_letters_has_a_fix() -> None:
    problems = compiled(one_tool("put", {"param": "r", "kind": "flagIfBoolean", "flagIfTrue": "-r"})).problems
    assert [problem.fix for problem in problems] == [Fix(part=FixPart.VALUE, new='"flagifboolean"')]


# -- the host's rules ---------------------------------------------------------------------------------------


@pytest.mark.requirement("skill.serve.read-skill-reserved")
def test_read_skill_is_a_reserved_name_while_skills_are_read_on_demand() -> None:
    root = one_tool("read_skill")
    assert [tool.name for tool in compiled(root).tools] == ["read_skill"]
    result = compiled(root, Rules(read_on_demand=True))
    assert result.tools == ()
    (problem,) = result.problems
    assert problem.code == "skill.serve.read-skill-reserved"
    assert problem.message == 'tools[0]: reserved name "read_skill"'


@pytest.mark.requirement("skill.location.disabled")
def test_a_skill_is_disabled_by_the_name_in_its_front_matter() -> None:
    md = b"---\nname: vault\n---\n"
    assert compiled(b"{", Rules(skills_disabled=("vault",)), skill_md=md) == Compiled()
    assert compiled(b"{", Rules(skills_disabled=("notes",)), skill_md=md).skills[0].name == "vault"


# -- SKILL.md -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("skill.skillmd.frontmatter-end")
@pytest.mark.parametrize(
    ("content", "front", "body"),
    [
        (b"---\na: b\n---\nText\n", b"a: b", b"Text\n"),
        (b"---\r\na: b\r\n---\r\nText\r\n", b"a: b\r", b"Text\r\n"),
        (b"\xef\xbb\xbf---\na: b\n---", b"a: b", b""),
        (b"---\n---\nText", b"", b"Text"),
        (b'---\ndescription: "a --- b"\n---\nText', b'description: "a --- b"', b"Text"),
        (b"---\na: |\n  ---\n--- b\n----\n---\nText", b"a: |\n  ---\n--- b\n----", b"Text"),
        (b"Text\n---\na: b\n---\n", None, b"Text\n---\na: b\n---\n"),
        (b"---\na: b\n", None, b"---\na: b\n"),
        (b"", None, b""),
    ],
)
def test_front_matter_ends_at_a_line_of_three_dashes(
    content: bytes, front: bytes | None, body: bytes
) -> None:
    assert skill.split_front_matter(content) == (front, body)


@pytest.mark.requirement("skill.skillmd.frontmatter", "skill.skillmd.bin-groups")
@pytest.mark.parametrize(
    ("bins", "alternatives"),
    [
        ('["notesmd-cli"]', (("notesmd-cli",),)),
        ('["cat", "ls"]', (("cat", "ls"),)),
        ('[["cargo"], ["nix"]]', (("cargo",), ("nix",))),
        ("[]", None),
        ("[[]]", None),
        ("[[cargo], []]", None),
        ("null", None),
    ],
)
def test_required_programs_become_a_condition(bins: str, alternatives: object) -> None:
    md = f"---\nmetadata:\n  requires:\n    bins: {bins}\n---\n".encode()
    result = compiled({}, skill_md=md)
    assert result.problems == ()
    if alternatives is None:
        assert result.conditions == ()
        return
    (condition,) = result.conditions
    assert (condition.kind, condition.alternatives, condition.drops) == (
        ConditionKind.PROGRAMS,
        alternatives,
        True,
    )
    assert condition.otherwise == Problem(
        code="skill.skillmd.frontmatter",
        severity=Severity.WARNING,
        message='skill "notes" skipped: missing binary {missing}',
        path="/skills/notes/SKILL.md",
        line=4,
        name="notes",
        hint="install it, or put it on the PATH",
    )


@pytest.mark.parametrize("bins", ["git", "[1]", "[[git], nix]", "[[[git]]]", '[""]', "{a: b}"])
def test_required_programs_of_another_shape_are_a_warning(bins: str) -> None:
    md = f"---\nmetadata:\n  requires:\n    bins: {bins}\n---\n".encode()
    result = compiled({}, skill_md=md)
    assert result.conditions == ()
    assert [(problem.code, problem.line) for problem in result.problems] == [("skill.skillmd.frontmatter", 4)]


@pytest.mark.requirement("skill.skillmd.frontmatter")
def test_a_repeated_key_of_the_front_matter_counts_for_nothing() -> None:
    result = compiled({}, skill_md=b"---\nname: a\nname: b\n---\n")
    assert result.skills[0].name == "notes"
    assert [(problem.message, problem.line) for problem in result.problems] == [
        ('duplicate key "name" in the front matter', 3)
    ]


@pytest.mark.requirement("skill.location.absent")
def test_a_skill_alone_is_listed_with_its_description() -> None:
    alone = document(
        b"",
        path="/skills/notes/SKILL.md",
        content=None,
        parsed=None,
        skill_md=b"---\ndescription: Write short sentences.\n---\n",
    )
    (found,) = skill.compile_document(alone, Rules()).skills
    assert (found.name, found.path, found.description) == ("notes", "/skills/notes", "Write short sentences.")


# -- what cannot be read ------------------------------------------------------------------------------------


@pytest.mark.requirement("skill.root.parse-error")
def test_a_file_that_cannot_be_opened_leaves_the_skill_without_tools() -> None:
    result = compiled({}, content=None, parsed=None, unreadable="permission denied", neighbours={})
    assert [found.name for found in result.skills] == ["notes"]
    assert [(problem.severity, problem.message) for problem in result.problems] == [
        (Severity.WARNING, "failed to parse /skills/notes/tools.json: permission denied")
    ]


# -- all skills together ------------------------------------------------------------------------------------


def unit(name: str, *tools: str, space: int = 0) -> Unit:
    root = {
        "tools": [{"name": tool, "description": "Does it."} for tool in tools],
        "allowlist": {"git": ["status"]},
        "execution": [{"tool": tool, "binary": "git", "subcommand": "status"} for tool in tools],
    }
    path = f"/{space}/{name}/tools.json"
    result = compiled(root, path=path, scope=name)
    assert not result.problems
    return Unit(path=path, space=space, compiled=result)


@pytest.mark.requirement("skill.location.sorted")
def test_the_order_does_not_depend_on_the_order_of_listing() -> None:
    units = [unit("b", "z", "a"), unit("a", "m"), unit("c", "k"), unit("0", "l", space=1)]
    orders = {
        tuple(tool.key for tool in skill.link(order, Rules()).tools)
        for order in itertools.permutations(units)
    }
    assert orders == {("skill:a/m", "skill:b/z", "skill:b/a", "skill:c/k", "skill:0/l")}


@pytest.mark.requirement("skill.location.root-order")
def test_of_three_skills_with_one_name_the_last_root_wins() -> None:
    linked = skill.link([unit("notes", f"t{space}", space=space) for space in range(3)], Rules())
    assert [tool.name for tool in linked.tools] == ["t2"]
    assert [found.path for found in linked.skills] == ["/2/notes"]
    assert [problem.message for problem in linked.problems] == [
        'skill "notes" in /1/notes replaces the one in /0/notes',
        'skill "notes" in /2/notes replaces the one in /1/notes',
    ]


@pytest.mark.requirement("skill.tools.name-unique")
def test_a_replaced_skill_does_not_hold_its_names() -> None:
    linked = skill.link([unit("notes", "search"), unit("mail", "search"), unit("notes", space=1)], Rules())
    assert [tool.key for tool in linked.tools] == ["skill:mail/search"]
    assert codes(linked.problems) == ["skill.location.root-order"]


# -- odd documents ------------------------------------------------------------------------------------------

ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1.5,
    "",
    "\U0001f600",
    [],
    {},
    [[]],
    [{}],
    {"": None},
    {"tool": []},
    ["a", 1],
    "../x",
)


@pytest.mark.requirement("skill.root.all-problems")
def test_no_value_anywhere_breaks_the_reading() -> None:
    places = [place for place, _ in jsontext.walk(FULLEST)]
    for place, odd in itertools.product(places, ODD):
        changed: dict[str, Any] = {"root": copy.deepcopy(FULLEST)}
        parent = jsontext.at(changed, ("root", *place)[:-1])
        parent[("root", *place)[-1]] = odd
        result = compiled(changed["root"])
        errors = [problem for problem in result.problems if problem.severity is Severity.ERROR]
        assert len(result.skills) == 1
        assert result.tools or errors or (not place and odd == {}), (place, odd)
        assert not (errors and result.tools) or place[0] == "allowlist", (place, odd)


def test_no_cut_of_the_text_breaks_the_reading() -> None:
    text = json.dumps(FULLEST).encode()
    for end in range(len(text)):
        assert codes(compiled(text[:end]).problems) == ["skill.root.parse-error"]


def test_a_repeated_member_anywhere_is_never_passed_over() -> None:
    for place, value in jsontext.walk(FULLEST):
        if not isinstance(value, dict) or not value:
            continue
        key = next(iter(value))
        marked = copy.deepcopy(FULLEST)
        inner = jsontext.at(marked, place)
        inner["\x01"] = inner[key]
        text = json.dumps(marked).replace('"\\u0001"', json.dumps(key)).encode()
        assert "skill.root.duplicate-members" in codes(compiled(text).problems), place


def test_deep_and_foreign_bytes_are_problems_and_nothing_else() -> None:
    for content in (b"", b"\xff\xfe", b"\x00" * 10, b"[" * 10_000, b'{"tools":' * 10_000, b"1e999", b"NaN"):
        assert codes(compiled(content).problems) == ["skill.root.parse-error"]
        result = compiled({}, skill_md=b"---\n" + content + b"\n---\n")
        assert len(result.skills) == 1


# -- the page -----------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "skill.md"


def test_the_examples_of_the_page_load() -> None:
    smallest, fullest = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(compiled(smallest.encode()).tools) == 1
    assert compiled(smallest.encode()).problems == ()
    assert len(compiled(fullest.encode()).tools) == 1
    assert codes(compiled(fullest.encode()).problems) == [
        "skill.positional.allow-dash-key",
        "skill.newline.warning",
    ]


def test_the_page_explains_every_code_and_every_later_key() -> None:
    page = PAGE.read_text(encoding="utf-8")
    used = set(re.findall(r'"(skill\.[a-z]+\.[a-z-]+)"', Path(skill.__file__).read_text(encoding="utf-8")))
    explained = set(re.findall(r"^\| `(skill\.[a-z.-]+)` \|", page, re.MULTILINE))
    assert explained == used | {"skill.root.mixed-format"}  # reported before any format reads the file
    later = skill._LATER | skill._LATER_DISPLAY | skill._LATER_KINDS
    assert [name for name in sorted(later) if f"`{name}`" not in page] == []


# -- real files ---------------------------------------------------------------------------------------------


def test_real_files_give_the_tools_the_drops_and_the_warnings_that_are_written_down() -> None:
    corpus = shared("corpus/skill")
    index = json.loads((corpus / "INDEX.json").read_text(encoding="utf-8"))
    assert len(index["files"]) > 100
    for entry in index["files"]:
        path = corpus / entry["file"]
        names = ("SKILL.md", "allowlist.json", "execution.json")
        beside = {name: path.with_name(name).read_bytes() for name in names if path.with_name(name).exists()}
        result = compiled(path.read_bytes(), path=str(path), scope=path.parent.name, neighbours=beside)
        dropped: dict[str, set[str]] = defaultdict(set)
        warned: dict[str, set[str]] = defaultdict(set)
        for problem in result.problems:
            assert problem.name is not None
            if problem.severity is Severity.ERROR:
                dropped[problem.name].add(problem.code)
            else:
                warned[problem.code].add(problem.name)
        expected = entry["expected"]
        assert [tool.name for tool in result.tools] == expected["tools"], path
        assert dropped == {
            name: {reason.partition(":")[0] for reason in reasons}
            for name, reasons in expected.get("tools_dropped", {}).items()
        }, path
        for code, concerned in expected.get("lint", {}).items():
            tools = {name.partition(":")[0] for name in concerned}
            assert warned[code.removesuffix(" (display only)")] == tools, (path, code)
        assert [found.name for found in result.skills] == [expected["skill_name"]]
        bins = expected.get("requires_bins", [])
        alternatives = bins if bins and isinstance(bins[0], list) else [bins] if bins else []
        assert [list(map(list, found.alternatives)) for found in result.conditions] == (
            [alternatives] if alternatives else []
        )
