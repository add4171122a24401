"""Skills in three files: a key keeps the meaning that this form gives it, or its tool is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolcrib import jsontext
from toolcrib.calls import arguments as checking
from toolcrib.calls.commands import Command, command
from toolcrib.formats import skill
from toolcrib.jsontext import JsonObject
from toolcrib.model import Compiled, Document, Rules, Severity, Tool, ToolError


def compiled(
    execution: JsonObject,
    *,
    tool: JsonObject | None = None,
    allowlist: JsonObject | None = None,
) -> Compiled:
    """A skill in three files with one tool, whose execution is completed where it says nothing."""
    execution = {"tool": "t", "binary": "git", "subcommand": "status", **execution}
    params = {arg["param"]: {"type": "string"} for arg in execution.get("args", ()) if "param" in arg}
    tool = tool or {
        "name": "t",
        "description": "Does it.",
        "parameters": {"type": "object", "properties": params, "required": [*params]},
    }
    parts = {
        "allowlist.json": allowlist or {execution["binary"]: [execution["subcommand"]]},
        "execution.json": [execution],
    }
    content = json.dumps([tool]).encode()
    document = Document(
        path="/skills/notes/tools.json",
        content=content,
        parsed=jsontext.read(content),
        place="skill",
        scope="notes",
        neighbours={"SKILL.md": b"# Notes\n"}
        | {name: json.dumps(part).encode() for name, part in parts.items()},
    )
    return skill.compile_document(document, Rules())


def only(result: Compiled) -> Tool:
    (tool,) = result.tools
    return tool


def outcome(tool: Tool, given: JsonObject) -> Command | ToolError:
    checked = checking.checked(tool, given)
    if isinstance(checked, ToolError):
        return checked
    return command(tool, checked.arguments, checked.raw, cwd="/srv")


def argv(tool: Tool, given: JsonObject) -> tuple[str, ...]:
    found = outcome(tool, given)
    assert isinstance(found, Command), found
    return found.argv


def refusal(tool: Tool, given: JsonObject) -> str:
    found = outcome(tool, given)
    assert isinstance(found, ToolError), found
    return found.message


def errors(result: Compiled) -> list[tuple[str, str]]:
    return [(found.code, found.message) for found in result.problems if found.severity is Severity.ERROR]


# -- meanings that are kept ---------------------------------------------------------------------------------


@pytest.mark.requirement("skill.root.three-file", "skill.execution.subcommand-one-arg")
def test_blanks_in_a_subcommand_separate_arguments() -> None:
    result = compiled({"subcommand": "log --oneline  -n", "args": [{"param": "count"}]})
    assert [found.severity for found in result.problems] == [Severity.INFO]
    assert argv(only(result), {"count": "3"}) == ("git", "log", "--oneline", "-n", "3")


@pytest.mark.requirement("skill.root.three-file", "skill.allowlist.pair-call")
def test_the_whole_subcommand_is_what_the_allowlist_names() -> None:
    result = compiled({"subcommand": "log --all"}, allowlist={"git": ["log"]})
    assert errors(result) == [("skill.allowlist.pair-load", "subcommand not allowlisted: git log --all")]


@pytest.mark.requirement("skill.root.three-file")
@pytest.mark.parametrize(
    ("mapping", "option"),
    [
        ({"param": "n"}, "-n"),
        ({"param": "count", "flag": "n"}, "-n"),
        ({"param": "count"}, "--count"),
        ({"param": "count", "flag": "-n"}, "-n"),
        ({"param": "count", "flag": "--max"}, "--max"),
        ({"param": "count", "flag": "é"}, "--é"),
    ],
)
def test_a_flag_of_one_letter_takes_one_dash(mapping: JsonObject, option: str) -> None:
    tool = only(compiled({"args": [{**mapping, "kind": "flag"}]}))
    assert argv(tool, {mapping["param"]: "3"}) == ("git", "status", option, "3")


@pytest.mark.requirement("skill.root.three-file")
def test_a_flag_of_dashes_alone_is_refused() -> None:
    result = compiled({"args": [{"param": "count", "kind": "flag", "flag": "--"}]})
    assert [code for code, _ in errors(result)] == ["skill.value.wrong-type"]


@pytest.mark.requirement("skill.root.three-file")
@pytest.mark.parametrize("kind", ["positional", "flag"])
@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("/etc/passwd", "an absolute path"),
        ("~/.ssh/id_rsa", "a home-relative path"),
        ("file:///etc/passwd", "a file:// URL"),
        ("../secret", "a path with '..' traversal"),
        ("a/../../b", "a path with '..' traversal"),
        ("a\\..\\b", "a path with '..' traversal"),
    ],
)
def test_a_path_that_leads_out_is_refused_where_none_was_declared(kind: str, value: str, what: str) -> None:
    """The original refuses it for every parameter that is not declared as a path: it is a guard."""
    tool = only(compiled({"args": [{"param": "p", "kind": kind}]}))
    assert refusal(tool, {"p": value}) == (
        f"parameter 'p' received {what} '{value}' but is not annotated as a path parameter"
    )


@pytest.mark.requirement("skill.root.three-file")
@pytest.mark.parametrize("value", [".git", ".git/config", "a/.git/hooks", "a\\.git"])
def test_a_git_folder_is_refused_where_no_path_was_declared(value: str) -> None:
    tool = only(compiled({"args": [{"param": "p"}]}))
    assert refusal(tool, {"p": value}) == (
        f"parameter 'p' targets a .git directory '{value}' but is not annotated as a path parameter"
    )


@pytest.mark.requirement("skill.root.three-file")
@pytest.mark.parametrize("value", ["", "notes/a.md", "a..b", "// a comment", ".gitignore", "x ~ y"])
def test_a_text_that_leads_nowhere_passes(value: str) -> None:
    tool = only(compiled({"args": [{"param": "p"}]}))
    assert argv(tool, {"p": value}) == ("git", "status", value)


@pytest.mark.requirement("skill.root.three-file", "skill.tools.extra-arguments")
def test_an_argument_that_the_schema_does_not_declare_is_refused() -> None:
    """The author kept ``force`` from the model by leaving it out of the schema."""
    mapping = {"param": "force", "kind": "flagifboolean", "flagIfTrue": "--force"}
    declared = {"name": "t", "description": "Does it.", "parameters": {"type": "object", "properties": {}}}
    tool = only(compiled({"args": [mapping]}, tool=declared))
    assert argv(tool, {}) == ("git", "status")
    assert refusal(tool, {"force": True}) == "tool t: undeclared parameter 'force' (not in schema)"


@pytest.mark.requirement("skill.root.three-file")
def test_without_a_schema_every_argument_is_taken() -> None:
    declared = {"name": "t", "description": "Does it."}
    tool = only(compiled({"args": [{"param": "q"}]}, tool=declared))
    assert argv(tool, {"q": "x"}) == ("git", "status", "x")


@pytest.mark.requirement("skill.root.three-file")
def test_normalize_newlines_has_no_effect_there() -> None:
    result = compiled({"args": [{"param": "q", "normalizeNewlines": True}]})
    assert [(found.code, found.severity) for found in result.problems] == [
        ("skill.newline.warning", Severity.WARNING)
    ]
    assert argv(only(result), {"q": "C:\\new"}) == ("git", "status", "C:\\new")


# -- meanings that are not kept yet: refused ----------------------------------------------------------------


@pytest.mark.requirement("skill.root.three-file", "skill.resolve.keep-on-failure")
@pytest.mark.parametrize("kind", ["positional", "flag"])
@pytest.mark.parametrize(
    "resolver", [{"script": "check-path", "args": ["$param"]}, {"binary": "git", "subcommand": "status"}]
)
def test_a_resolver_that_guards_a_value_is_never_left_out(kind: str, resolver: JsonObject) -> None:
    """In the original, a resolver that exits non-zero rejects the call."""
    result = compiled({"args": [{"param": "p", "kind": kind, "resolveCommand": resolver}]})
    assert result.tools == ()
    ((code, message),) = errors(result)
    assert code == "skill.root.later-keys"
    assert "resolveCommand" in message
    assert [found.name for found in result.problems if found.severity is Severity.ERROR] == ["t"]


_ON_EXECUTIONS: dict[str, Any] = {
    "binaryWrapper": ["sudo"],
    "condition": {"binGroup": 1},
    "paramCondition": {"present": ["p"]},
    "successExitCodes": [1],
    "postProcess": {"script": "redact"},
    "sideRead": {"pathParam": "p", "filename": "README.md", "label": "L"},
}
_ON_MAPPINGS: dict[str, Any] = {
    "absentDefault": "x",
    "denyPattern": "^main$",
    "denyResolveCommand": {"script": "branch"},
    "denyAlwaysResolve": True,
    "disambiguateAfterSkippedPositionals": True,
    "optional": True,
    "readPath": True,
    "writePath": True,
    "unsafePath": True,
    "split": True,
    "subcommandOverride": "push",
    "value": "--force",
}


@pytest.mark.requirement("skill.root.three-file", "skill.root.later-keys")
@pytest.mark.parametrize("key", _ON_EXECUTIONS)
def test_a_key_of_an_execution_that_is_not_supported_refuses_its_tool(key: str) -> None:
    result = compiled({key: _ON_EXECUTIONS[key], "args": [{"param": "p"}]})
    assert result.tools == ()
    ((code, message),) = errors(result)
    assert (code, key in message) == ("skill.root.later-keys", True)


@pytest.mark.requirement("skill.root.three-file", "skill.root.later-keys")
@pytest.mark.parametrize("key", _ON_MAPPINGS)
def test_a_key_of_a_mapping_that_is_not_supported_refuses_its_tool(key: str) -> None:
    result = compiled({"args": [{"param": "p", key: _ON_MAPPINGS[key]}]})
    assert result.tools == ()
    ((code, message),) = errors(result)
    assert (code, key in message) == ("skill.root.later-keys", True)


@pytest.mark.requirement("skill.root.three-file", "skill.root.later-keys")
@pytest.mark.parametrize("kind", ["stdin", "workingdir", "tempfile", "literal", "envvar"])
def test_a_kind_that_is_not_supported_refuses_its_tool(kind: str) -> None:
    result = compiled({"args": [{"param": "p", "kind": kind}]})
    assert result.tools == ()
    assert [code for code, _ in errors(result)] == ["skill.root.later-keys"]


@pytest.mark.requirement("skill.root.later-keys")
@pytest.mark.parametrize(
    ("key", "value"),
    [("maxOutputLines", 200), ("truncationHint", "more"), ("hintConditions", [{"match": "x", "hint": "y"}])],
)
def test_a_key_that_only_shortens_or_adds_to_what_is_shown_is_left_out_with_a_warning(
    key: str, value: Any
) -> None:
    result = compiled({key: value})
    assert [(found.code, found.severity) for found in result.problems] == [
        ("skill.root.later-keys", Severity.WARNING)
    ]
    assert only(result).name == "t"


# -- the form in one file keeps its own ---------------------------------------------------------------------


@pytest.mark.requirement("skill.root.three-file")
def test_the_form_in_one_file_keeps_its_own_meaning() -> None:
    root = {
        "tools": [{"name": "t", "description": "Does it."}],
        "allowlist": {"git": ["log --oneline"]},
        "execution": [
            {
                "tool": "t",
                "binary": "git",
                "subcommand": "log --oneline",
                "args": [{"param": "p"}, {"param": "n", "kind": "flag"}],
            }
        ],
    }
    content = json.dumps(root).encode()
    document = Document(
        path=str(Path("/skills/notes/tools.json")),
        content=content,
        parsed=jsontext.read(content),
        place="skill",
        scope="notes",
        neighbours={"SKILL.md": b"# Notes\n"},
    )
    tool = only(skill.compile_document(document, Rules()))
    assert argv(tool, {"p": "/etc", "n": "3"}) == ("git", "log --oneline", "/etc", "--n", "3")
