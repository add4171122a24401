"""What would run for which arguments. Declarations are read by their formats, as an author writes them."""

import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.calls.commands import Command, Resolving, command, resolvers
from toolcrib.errors import Kind
from toolcrib.formats import executable, manifest, skill
from toolcrib.jsontext import JsonObject
from toolcrib.model import (
    AsArgv,
    CallFunction,
    CallHttp,
    CallJavaScript,
    CallMcp,
    CallPython,
    Compiled,
    Document,
    Flag,
    Invocation,
    NotCallable,
    Origin,
    Positional,
    PythonStyle,
    Resolver,
    Rules,
    RunContainer,
    RunProcess,
    Schema,
    Switch,
    Tool,
    ToolError,
)

CWD = "/srv/vault"


def record(invocation: Invocation, name: str = "t") -> Tool:
    return Tool(
        key=f"x:y/{name}", name=name, scope="y", origin=Origin(format="x", path="/x"), invocation=invocation
    )


def read(format: ModuleType, content: JsonObject, path: str) -> Tool:
    text = json.dumps(content).encode()
    document = Document(
        path=path, content=text, parsed=jsontext.read(text), scope="s", explicit=True, place=format.NAME
    )
    compiled: Compiled = format.compile_document(document, Rules())
    (tool,) = compiled.tools
    return tool


def skill_tool(*args: dict, subcommand: str = "search", **properties: dict) -> Tool:
    """One tool of a skill, run as ``notesmd-cli SUBCOMMAND ARGS``."""
    return read(
        skill,
        {
            "tools": [{"name": "t", "parameters": {"type": "object", "properties": properties}}],
            "allowlist": {"notesmd-cli": [subcommand], "git": ["rev-parse"]},
            "execution": [
                {"tool": "t", "binary": "notesmd-cli", "subcommand": subcommand, "args": list(args)}
            ],
        },
        "/skills/notes/tools.json",
    )


def built(tool: Tool, arguments: object, raw: str = "") -> Command:
    found = command(tool, arguments, raw, cwd=CWD)
    assert isinstance(found, Command), found
    return found


def added(tool: Tool, arguments: object) -> list[str]:
    """What the arguments add to binary and subcommand."""
    return list(built(tool, arguments).argv[2:])


def refusal(tool: Tool, arguments: object, raw: str = "") -> ToolError:
    found = command(tool, arguments, raw, cwd=CWD)
    assert isinstance(found, ToolError), found
    return found


QUERY = {"param": "query"}
CONTENT = {"param": "content", "kind": "flag"}
REPLACE = {"param": "replace", "kind": "flagifboolean"}

# -- binary and subcommand ----------------------------------------------------------------------------------


@pytest.mark.requirement("skill.execution.argv", "skill.run.cwd")
def test_argv_is_binary_subcommand_and_values_each_one_literal_element():
    found = built(skill_tool(QUERY), {"query": "; rm -rf ~"})
    assert found == Command(argv=("notesmd-cli", "search", "; rm -rf ~"), cwd="/srv/vault")


@pytest.mark.requirement("skill.execution.argv")
@pytest.mark.parametrize("text", ["", " ", " a b ", "\n", "a\nb", "*", "$HOME", "\"a\" 'b'", "a,b", "é"])
def test_a_value_is_one_element_whatever_it_contains(text: str) -> None:
    tool = skill_tool(QUERY, CONTENT)
    assert built(tool, {"query": text, "content": text}).argv == (
        "notesmd-cli", "search", text, "--content", text,
    )  # fmt: skip


@pytest.mark.requirement("skill.execution.args-optional")
def test_without_mappings_argv_is_binary_and_subcommand():
    assert built(skill_tool(subcommand="daily"), {}).argv == ("notesmd-cli", "daily")


@pytest.mark.requirement("skill.execution.args-order")
def test_the_order_is_that_of_the_mappings_not_of_the_call():
    tool = skill_tool({"param": "path"}, CONTENT)
    assert added(tool, {"content": "c", "path": "p"}) == ["p", "--content", "c"]


@pytest.mark.requirement("skill.execution.subcommand-one-arg")
def test_a_subcommand_with_a_blank_stays_one_element():
    assert built(skill_tool(subcommand="log --oneline"), {}).argv == ("notesmd-cli", "log --oneline")


@pytest.mark.requirement("skill.execution.subcommand-empty")
def test_an_empty_subcommand_is_left_out():
    assert built(skill_tool(QUERY, subcommand=""), {"query": "q"}).argv == ("notesmd-cli", "q")


def process(subcommand: str, allowlist: dict[str, list[str]]) -> Tool:
    return record(
        RunProcess(
            program="git",
            fixed=(subcommand,),
            encoding=AsArgv(),
            allowlist=tuple((binary, tuple(allowed)) for binary, allowed in allowlist.items()),
        )
    )


@pytest.mark.requirement(
    "skill.allowlist.exact",
    "skill.allowlist.empty-list",
    "skill.allowlist.pair-call",
    "skill.allowlist.per-skill",
)
@pytest.mark.parametrize(
    ("subcommand", "allowlist", "message"),
    [
        ("log --all", {"git": ["log"]}, "subcommand not allowlisted: git log --all"),
        ("log ", {"git": ["log"]}, "subcommand not allowlisted: git log "),
        ("Log", {"git": ["log"]}, "subcommand not allowlisted: git Log"),
        ("status", {"git": []}, "subcommand not allowlisted: git status"),
        ("push", {"git": ["status"]}, "subcommand not allowlisted: git push"),
        ("status", {}, "binary not allowlisted: git"),
        ("status", {"Git": ["status"], "/usr/bin/git": ["status"]}, "binary not allowlisted: git"),
    ],
)
@pytest.mark.battery("B12")
def test_a_pair_that_is_not_on_the_list_exactly_is_denied(subcommand, allowlist, message):
    found = refusal(process(subcommand, allowlist), {})
    assert (found.kind, found.message) == (Kind.DENIED, message)


def test_a_pair_on_the_list_runs():
    assert built(process("log", {"git": ["status", "log"]}), {}).argv == ("git", "log")


@pytest.mark.requirement("skill.args.object-arguments")
def test_arguments_that_are_no_object_are_refused():
    for arguments, raw in ((["x"], '["x"]'), (None, "{bad"), ("x", '"x"')):
        found = refusal(skill_tool(QUERY), arguments, raw)
        assert (found.kind, found.message) == (Kind.INVALID_ARGUMENTS, "arguments must be an object")


# -- positional ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("skill.positional.missing", "skill.args.positional-optional")
def test_a_missing_positional_is_named():
    found = refusal(skill_tool(QUERY), {})
    assert (found.kind, found.message) == (Kind.INVALID_ARGUMENTS, "missing parameter: query")


@pytest.mark.requirement("skill.positional.scalar")
def test_a_positional_is_a_string_a_number_or_a_boolean():
    for value in (None, ["a"], {"a": 1}):
        message = refusal(skill_tool(QUERY), {"query": value}).message
        assert message == "parameter query must be a string, number, or boolean"
    assert added(skill_tool(QUERY), {"query": ""}) == [""]


@pytest.mark.requirement("skill.positional.leading-dash")
@pytest.mark.battery("B01", "B02")
def test_a_positional_that_begins_with_a_dash_is_refused():
    for value in ("--vault=other", "-", "-5", -5):
        found = refusal(skill_tool(QUERY, query={"type": "string"}), {"query": value})
        assert (found.kind, found.message) == (
            Kind.INVALID_ARGUMENTS,
            "parameter query must not begin with '-'",
        )


@pytest.mark.requirement("skill.positional.leading-dash")
@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"enum": ["-a", "-b"]}, "-a", "-a"),
        ({"const": "-x"}, "-x", "-x"),
        ({"enum": [-1, 1]}, -1, "-1"),
        ({"type": "integer", "minimum": -10}, -5, "-5"),
        ({"type": ["number", "null"], "minimum": -0.5}, -0.5, "-0.5"),
    ],
)
def test_a_dash_that_the_schema_admits_passes(schema, value, text):
    assert added(skill_tool(QUERY, query=schema), {"query": value}) == [text]


@pytest.mark.requirement("skill.positional.leading-dash")
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"enum": ["-a"]}, "-b"),
        ({"enum": ["-a"]}, "-a "),
        ({"const": "-x"}, "-X"),
        ({"type": "integer", "minimum": 0}, -5),
        ({"type": "integer", "minimum": -1}, -5),
        ({"type": "integer"}, -5),
        ({"type": "string", "minimum": -10}, -5),
        ({"type": ["integer", "string"], "minimum": -10}, "-5 --force"),
        ({"pattern": "^-"}, "-a"),
        (True, "-a"),
    ],
)
def test_a_dash_that_the_schema_does_not_name_is_refused(schema, value):
    assert "must not begin" in refusal(skill_tool(QUERY, query=schema), {"query": value}).message


@pytest.mark.requirement("skill.positional.allow-dash-key")
def test_the_author_may_allow_a_dash():
    assert added(skill_tool({"param": "expr", "allowLeadingDash": True}), {"expr": "-5"}) == ["-5"]


@pytest.mark.requirement("skill.positional.leading-dash")
@pytest.mark.battery("B08")
def test_the_dash_is_looked_for_in_the_final_text():
    tool = skill_tool({"param": "query", "normalizeNewlines": True}, query={"enum": ["-a\\n"]})
    assert "must not begin" in refusal(tool, {"query": "-a\\n"}).message, "the schema names another text"
    assert added(tool, {"query": "\\n--force"}) == ["\n--force"], "one element, and no option"


@pytest.mark.requirement("skill.positional.nul-byte")
@pytest.mark.battery("B04")
def test_a_nul_character_is_refused_before_anything_starts():
    for mapping, name in ((QUERY, "query"), (CONTENT, "content")):
        found = refusal(skill_tool(mapping), {name: "a\0b"})
        assert found.kind is Kind.INVALID_ARGUMENTS
        assert found.message == f"exec failed: parameter {name} has a NUL character"


@pytest.mark.battery("B05", "B06")
def test_a_text_that_no_program_can_be_given_is_refused():
    assert "surrogate" in refusal(skill_tool(QUERY), {"query": "\ud800"}).message
    assert "surrogate" in refusal(skill_tool(QUERY), {"query": "\udcff"}).message
    assert "argument too large" in refusal(skill_tool(QUERY), {"query": "x" * 200_000}).message
    many = skill_tool(*({"param": f"p{number}"} for number in range(30)))
    values = {f"p{number}": "x" * 100_000 for number in range(30)}
    assert "argument too large" in refusal(many, values).message


# -- flag ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("skill.flag.name-default", "skill.flag.two-items")
def test_a_flag_is_two_elements_and_named_after_its_parameter():
    assert added(skill_tool(CONTENT), {"content": "x"}) == ["--content", "x"]
    assert added(skill_tool({**CONTENT, "flag": "text"}), {"content": "a b"}) == ["--text", "a b"]


@pytest.mark.requirement("skill.flag.leading-dash-name")
def test_two_dashes_stand_before_every_flag():
    assert added(skill_tool({**CONTENT, "flag": "-n"}), {"content": "5"}) == ["---n", "5"]


@pytest.mark.requirement("skill.flag.omitted")
def test_a_flag_without_a_value_is_left_out():
    assert added(skill_tool(CONTENT), {"content": None}) == []
    assert added(skill_tool(CONTENT), {}) == []


@pytest.mark.requirement("skill.flag.scalar")
def test_a_flag_takes_no_array_and_no_object():
    for value in (["a"], {"a": 1}):
        message = refusal(skill_tool(CONTENT), {"content": value}).message
        assert message == "parameter content must be a string, number, or boolean"


@pytest.mark.requirement("skill.flag.dash-value")
@pytest.mark.battery("B03")
def test_a_flag_value_may_begin_with_a_dash():
    assert added(skill_tool(CONTENT), {"content": "- item"}) == ["--content", "- item"]


# -- flagifboolean ------------------------------------------------------------------------------------------


@pytest.mark.requirement("skill.flagbool.true")
@pytest.mark.battery("B07")
@pytest.mark.parametrize("value", [True, "true", "TRUE", "True", "tRuE", 1, 2, -3, 10**20])
def test_what_counts_as_true_emits_the_flag_verbatim(value):
    tool = skill_tool({**REPLACE, "flagIfTrue": "--overwrite", "flagIfFalse": "--append"})
    assert added(tool, {"replace": value}) == ["--overwrite"]


@pytest.mark.requirement("skill.flagbool.true")
@pytest.mark.parametrize("flag", ["--mode fast", "-x", "+e", "--a=b c", " --padded ", "$HOME"])
def test_the_flag_of_a_true_value_is_one_element_as_the_author_wrote_it(flag: str) -> None:
    tool = skill_tool({**REPLACE, "flagIfTrue": flag})
    assert added(tool, {"replace": True}) == [flag]


@pytest.mark.requirement("skill.flagbool.false")
@pytest.mark.battery("B07")
@pytest.mark.parametrize("value", [False, None, 0, 1.0, 1.5, "yes", "", [], {}])
def test_everything_else_is_false_and_so_is_a_missing_value(value):
    tool = skill_tool({**REPLACE, "flagIfTrue": "--overwrite", "flagIfFalse": "--append"})
    assert added(tool, {"replace": value}) == ["--append"]
    assert added(tool, {}) == ["--append"]


@pytest.mark.requirement("skill.flagbool.unset")
def test_a_flag_that_is_not_set_is_not_emitted():
    tool = skill_tool({**REPLACE, "flagIfTrue": "--overwrite"})
    assert added(tool, {"replace": False}) == []
    assert added(skill_tool({**REPLACE, "flagIfFalse": "--append"}), {"replace": True}) == []


# -- values -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("skill.value.text")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a b", "a b"),
        (1, "1"),
        (1.5, "1.5"),
        (1.0, "1.0"),
        (True, "true"),
        (False, "false"),
        (10**20, "1" + "0" * 20),
    ],
)
def test_values_become_text(value, text):
    assert added(skill_tool(QUERY), {"query": value}) == [text]
    assert added(skill_tool(CONTENT), {"content": value}) == ["--content", text]


@pytest.mark.requirement("skill.newline.convert")
def test_escapes_become_newlines_and_tabs_where_the_author_asks_for_it():
    for mapping in ({"param": "content"}, CONTENT):
        tool = skill_tool({**mapping, "normalizeNewlines": True})
        assert added(tool, {"content": r"a\nb\tc"})[-1] == "a\nb\tc"


@pytest.mark.requirement("skill.newline.default-off")
def test_values_are_left_alone_where_nobody_asks():
    for more in ({}, {"normalizeNewlines": False}):
        assert added(skill_tool({**CONTENT, **more}), {"content": r"C:\new"})[-1] == r"C:\new"


texts = st.lists(st.sampled_from(["-", "--", "\\n", "\\t", "a", " ", "\n", "é", "\0"]), max_size=6).map(
    "".join
)
scalars = texts | st.integers() | st.floats(allow_nan=False) | st.booleans()


@given(
    st.lists(
        st.builds(Positional, param=st.sampled_from("abc"), normalize_newlines=st.booleans())
        | st.builds(
            Flag, param=st.sampled_from("abc"), flag=st.just("flag"), normalize_newlines=st.booleans()
        ),
        max_size=5,
    ),
    st.fixed_dictionaries({"a": scalars, "b": scalars, "c": scalars}),
    st.none() | st.dictionaries(st.integers(0, 4), texts),
)
def test_a_positional_never_becomes_an_option(mappings, arguments, resolved):
    if resolved is not None:
        resolver = Resolver(args=("--path=$param",), binary="git", subcommand="log")
        mappings = [replace(mapping, resolver=resolver) for mapping in mappings]
    tool = record(
        RunProcess(
            program="git",
            fixed=("log",),
            encoding=AsArgv(args=tuple(mappings)),
            allowlist=(("git", ("log",)),),
        )
    )
    found = command(tool, arguments, "", cwd=CWD, resolved=resolved)
    if isinstance(found, ToolError):
        assert "must not begin with '-'" in found.message or "NUL" in found.message
        return
    rest = list(found.argv[2:])
    for mapping in mappings:
        if isinstance(mapping, Flag):
            assert rest.pop(0) == "--flag"
            rest.pop(0)
        else:
            assert not rest.pop(0).startswith("-")
    assert rest == []


# -- resolvers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resolver", "first"),
    [
        (
            {"script": "resolve-daily-path", "args": ["$param"]},
            'the script "resolve-daily-path" where scripts are allowed',
        ),
        ({"binary": "git", "subcommand": "rev-parse", "args": ["$param"]}, "git rev-parse"),
        (
            {"script": "x", "binary": "git", "subcommand": "rev-parse", "args": []},
            'the script "x" where scripts are allowed, else git rev-parse',
        ),
    ],
)
def test_a_resolver_is_named_and_not_run(resolver, first):
    found = built(skill_tool({**QUERY, "resolveCommand": resolver}), {"query": "2026-02-26"})
    assert found.argv[2:] == ("2026-02-26",)
    assert found.notes == (f"query: first {first} would run, and what it prints would be the value",)


@pytest.mark.requirement("skill.resolve.param-dash")
def test_a_resolver_that_would_not_run_is_not_named():
    resolver = {"binary": "git", "subcommand": "rev-parse", "args": ["$param"]}
    tool = skill_tool({**CONTENT, "resolveCommand": resolver})
    assert built(tool, {"content": "-rf"}).notes == ()
    positional = skill_tool({**QUERY, "resolveCommand": resolver})
    assert refusal(positional, {"query": "-rf"}).message == "parameter query must not begin with '-'"


SCRIPT = {"script": "resolve-daily-path", "args": ["$param"]}
BINARY = {"binary": "git", "subcommand": "rev-parse", "args": ["$param"]}
DAILY = "/skills/notes/scripts/resolve-daily-path"


def resolving(
    mapping: dict, value: object, *, allow_scripts: bool = False, **properties: Any
) -> list[Resolving]:
    tool = skill_tool(mapping, **properties)
    return list(resolvers(tool, {mapping["param"]: value}, allow_scripts=allow_scripts))


@pytest.mark.requirement("skill.resolve.scripts-default-off")
def test_no_script_runs_unless_scripts_are_allowed_and_the_value_is_kept():
    assert resolving({**QUERY, "resolveCommand": SCRIPT}, "2026-02-26") == []
    tool = skill_tool({**QUERY, "resolveCommand": SCRIPT})
    found = command(tool, {"query": "2026-02-26"}, "", cwd=CWD, resolved={})
    assert isinstance(found, Command)
    assert (found.argv[2:], found.notes) == (("2026-02-26",), ())


@pytest.mark.requirement("skill.resolve.script-run", "skill.resolve.script-lookup", "skill.resolve.trim")
def test_a_script_is_run_by_sh_and_its_trimmed_output_is_the_value():
    mapping = {**QUERY, "resolveCommand": SCRIPT}
    (found,) = resolving(mapping, "2026-02-26", allow_scripts=True)
    assert found == Resolving(
        place=0,
        param="query",
        value="2026-02-26",
        argv=("sh", DAILY, "2026-02-26"),
        script="resolve-daily-path",
        scripts=(DAILY, f"{DAILY}.sh"),
        args=("2026-02-26",),
    )
    for printed in ("Daily/2026-02-26\n", "  Daily/2026-02-26 \n"):
        built = command(skill_tool(mapping), {"query": "2026-02-26"}, "", cwd=CWD, resolved={0: printed})
        assert isinstance(built, Command)
        assert built.argv[2:] == ("Daily/2026-02-26",)
    (dotted,) = resolving({**QUERY, "resolveCommand": {"script": "a.b", "args": []}}, "x", allow_scripts=True)
    assert dotted.scripts == ("/skills/notes/scripts/a.b", "/skills/notes/scripts/a.b.sh")


@pytest.mark.requirement("skill.resolve.script-wins")
def test_a_script_that_is_allowed_is_never_replaced_by_the_binary():
    both = {**QUERY, "resolveCommand": {**SCRIPT, **BINARY}}
    (script,) = resolving(both, "x", allow_scripts=True)
    assert script.argv[0] == "sh"
    (binary,) = resolving(both, "x")
    assert (binary.argv, binary.script) == (("git", "rev-parse", "x"), None)


@pytest.mark.requirement("skill.resolve.script-wins")
def test_a_binary_with_an_empty_subcommand_runs_where_the_script_is_not_allowed():
    pair = {"binary": "notesmd-cli", "subcommand": ""}
    mapping = {**QUERY, "resolveCommand": {**SCRIPT, **pair}}
    (binary,) = resolving(mapping, "x", subcommand="")
    assert (binary.argv, binary.script) == (("notesmd-cli", "x"), None)
    (script,) = resolving(mapping, "x", allow_scripts=True, subcommand="")
    assert script.argv[0] == "sh"


@pytest.mark.requirement("skill.resolve.keep-on-failure")
@pytest.mark.parametrize("resolved", [{}, {0: ""}, {0: " \n\t"}])
def test_a_resolver_that_gave_nothing_leaves_the_value_as_it_was(resolved):
    tool = skill_tool({**QUERY, "resolveCommand": BINARY})
    found = command(tool, {"query": "HEAD"}, "", cwd=CWD, resolved=resolved)
    assert isinstance(found, Command)
    assert found.argv[2:] == ("HEAD",)


@pytest.mark.requirement("skill.resolve.order", "skill.newline.convert")
def test_a_resolver_gets_the_value_after_its_newlines_were_made_real():
    mapping = {**CONTENT, "normalizeNewlines": True, "resolveCommand": BINARY}
    (found,) = resolving(mapping, "a\\nb")
    assert found.argv[-1] == "a\nb"
    switch = skill_tool({**REPLACE, "flagIfTrue": "--x"}, {**CONTENT, "resolveCommand": BINARY})
    assert [
        item.place for item in resolvers(switch, {"replace": True, "content": "c"}, allow_scripts=True)
    ] == [1]
    assert resolvers(switch, {"replace": True, "content": None}, allow_scripts=True) == ()


@pytest.mark.requirement("skill.resolve.param-token")
@pytest.mark.parametrize(
    ("args", "value", "given"),
    [
        (["--path=$param"], "a $param", ["--path=a $param"]),
        (["$param$param", "x"], "$param", ["$param$param", "x"]),
        (["plain", "$params"], "v", ["plain", "vs"]),
        (["$param"], 5, ["5"]),
    ],
)
def test_the_value_is_put_in_once(args, value, given):
    (found,) = resolving({**QUERY, "resolveCommand": {**BINARY, "args": args}}, value)
    assert list(found.args) == given
    assert found.argv == ("git", "rev-parse", *given)


@pytest.mark.requirement("skill.resolve.param-dash")
def test_a_value_with_a_dash_is_no_option_of_the_resolver():
    mapping = {**QUERY, "resolveCommand": BINARY}
    assert resolving(mapping, "-rf") == []
    found = command(skill_tool(mapping), {"query": "-rf"}, "", cwd=CWD, resolved={})
    assert isinstance(found, ToolError)
    assert found.message == "parameter query must not begin with '-'"
    (inner,) = resolving({**QUERY, "resolveCommand": {**BINARY, "args": ["--path=$param"]}}, "-rf")
    assert inner.args == ("--path=-rf",)


@pytest.mark.requirement("skill.positional.leading-dash", "skill.resolve.order")
@pytest.mark.battery("B01")
def test_what_a_resolver_printed_never_becomes_an_option():
    mapping = {**QUERY, "resolveCommand": BINARY}
    for printed in ("--output=/tmp/x", "-5", " -x"):
        for schema in ({}, {"type": "integer", "minimum": -9}):
            tool = skill_tool(mapping, query=schema)
            found = command(tool, {"query": 5}, "", cwd=CWD, resolved={0: printed})
            assert isinstance(found, ToolError), printed
            assert "must not begin" in found.message
    flag = command(
        skill_tool({**CONTENT, "resolveCommand": BINARY}), {"content": "a"}, "", cwd=CWD, resolved={0: "-x"}
    )
    assert isinstance(flag, Command)
    assert flag.argv[2:] == ("--content", "-x")


@pytest.mark.battery("B04", "B06")
def test_what_a_resolver_printed_must_fit_into_argv():
    tool = skill_tool({**QUERY, "resolveCommand": BINARY})
    for printed, words in (("a\0b", "NUL"), ("x" * 200_000, "argument too large"), ("\ud800", "surrogate")):
        found = command(tool, {"query": "a"}, "", cwd=CWD, resolved={0: printed})
        assert isinstance(found, ToolError)
        assert found.message.startswith("exec failed: ")
        assert words in found.message


def test_a_parameter_that_is_mapped_twice_is_resolved_twice():
    twice = skill_tool({**QUERY, "resolveCommand": BINARY}, {"param": "query", "kind": "flag"})
    assert [item.place for item in resolvers(twice, {"query": "q"}, allow_scripts=False)] == [0]
    found = command(twice, {"query": "q"}, "", cwd=CWD, resolved={0: "r"})
    assert isinstance(found, Command)
    assert found.argv[2:] == ("r", "--query", "q")


def test_nothing_is_resolved_for_a_command_that_will_be_refused():
    tool = skill_tool({**QUERY, "resolveCommand": BINARY}, {"param": "path"})
    assert resolvers(tool, {"query": "q"}, allow_scripts=True) == ()
    assert resolvers(tool, {"query": "q", "path": "a\0"}, allow_scripts=True) == ()
    assert resolvers(manifest_tool(), {}, allow_scripts=True) == ()
    huge = {**BINARY, "args": ["$param$param"]}
    assert resolving({**QUERY, "resolveCommand": huge}, "x" * 100_000) == [], "it could not be started"


@pytest.mark.battery("B10")
@pytest.mark.parametrize("script", ["../x", "a/b", "a\\b", "", "/etc/x", ".", "..", "a\0"])
def test_a_script_name_that_leads_elsewhere_never_runs(script):
    resolver = Resolver(script=script, args=())
    tool = record(
        RunProcess(
            program="git",
            fixed=("log",),
            encoding=AsArgv(args=(Positional(param="q", resolver=resolver),)),
            allowlist=(("git", ("log",)),),
            skill_dir="/skills/notes",
        )
    )
    assert resolvers(tool, {"q": "x"}, allow_scripts=True) == ()


@pytest.mark.requirement("skill.allowlist.pair-call", "skill.resolve.binary-allowlisted")
def test_pairs_are_checked_again_whenever_a_command_is_built():
    resolver = Resolver(binary="git", subcommand="rev-parse", args=())
    run = RunProcess(
        program="git",
        fixed=("push",),
        encoding=AsArgv(args=(Positional(param="q", resolver=resolver),)),
        allowlist=(("git", ("push", "rev-parse")),),
    )
    assert len(resolvers(record(run), {"q": "x"}, allow_scripts=False)) == 1
    for allowed, pair in (("rev-parse", "push"), ("push", "rev-parse")):
        reloaded = record(replace(run, allowlist=(("git", (allowed,)),)))
        assert resolvers(reloaded, {"q": "x"}, allow_scripts=False) == ()
        found = command(reloaded, {"q": "x"}, "", cwd=CWD, resolved={0: "y"})
        assert isinstance(found, ToolError)
        assert (found.kind, found.message) == (Kind.DENIED, f"subcommand not allowlisted: git {pair}")


@pytest.mark.requirement("skill.resolve.binary-allowlisted")
def test_a_resolver_that_is_not_on_the_list_is_denied():
    resolver = Resolver(binary="git", subcommand="push", args=())
    tool = record(
        RunProcess(
            program="git",
            fixed=("status",),
            encoding=AsArgv(args=(Positional(param="query", resolver=resolver),)),
            allowlist=(("git", ("status",)),),
        )
    )
    found = refusal(tool, {"query": "x"})
    assert (found.kind, found.message) == (Kind.DENIED, "subcommand not allowlisted: git push")


# -- JSON on stdin ------------------------------------------------------------------------------------------


def manifest_tool(*fixed: str, **more: object) -> Tool:
    item = {"name": "get_time", "command": ["./tools/bin/get_time", *fixed], **more}
    return read(manifest, {"tools": [item]}, "/srv/m/tools.json")


@pytest.mark.requirement("manifest.run.stdin", "manifest.run.cwd")
def test_a_manifest_hands_over_the_models_own_text():
    raw = '{"timezone": "Europe/Helsinki"}'
    found = built(manifest_tool(), json.loads(raw), f" \n{raw}\t\n")
    assert found == Command(argv=("/srv/m/tools/bin/get_time",), stdin=raw.encode(), cwd="/srv/vault")


@pytest.mark.requirement("manifest.run.stdin-empty")
def test_blank_arguments_are_an_empty_object():
    for arguments, raw in (({}, ""), (None, ""), (None, " \n"), ({}, "{}")):
        assert built(manifest_tool(), arguments, raw).stdin == b"{}"


def test_arguments_without_a_text_are_written_out():
    assert built(manifest_tool(), {"timezone": "UTC"}).stdin == b'{"timezone":"UTC"}'


@pytest.mark.requirement("manifest.run.stdin-invalid")
def test_a_text_that_is_no_object_starts_nothing():
    for raw in ("{bad", "[]", "5"):
        assert refusal(manifest_tool(), None, raw).kind is Kind.INVALID_ARGUMENTS


@pytest.mark.requirement("manifest.command.fixed-args", "manifest.command.no-shell")
def test_fixed_arguments_are_literal_and_call_arguments_never_reach_argv():
    found = built(manifest_tool("--mode", "x y", "$HOME", "*", ""), {"a": "--b"}, '{"a":"--b"}')
    assert found.argv == ("/srv/m/tools/bin/get_time", "--mode", "x y", "$HOME", "*", "")


def test_the_variables_of_a_tool_are_named():
    assert built(manifest_tool(envPassthrough=["TZ", "LANG"]), {}).env_names == ("TZ", "LANG")
    tool = record(RunProcess(program="python", encoding=AsArgv(), env=(("LOG_LEVEL", "INFO"),)))
    assert built(tool, {}).env_names == ("LOG_LEVEL",)


@pytest.mark.requirement("executable.call.stdin", "executable.params.no-defaults")
def test_a_program_gets_no_arguments_but_json_on_stdin_without_defaults():
    parameters = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "City"},
            "days": {"type": "integer", "description": "Days", "default": 10},
        },
    }
    content = {"name": "weather", "description": "W", "parameters": parameters}
    tool = read(executable, content, "/opt/tools/weather-tool")
    found = built(tool, {"city": "Oslo"}, '{ "city": "Oslo", "days": null }')
    assert found == Command(argv=("/opt/tools/weather-tool",), stdin=b'{"city":"Oslo"}', cwd=CWD)
    assert built(tool, {}).stdin == b"{}"
    assert "surrogate" in refusal(tool, {"city": "\ud800"}).message


# -- other invocations --------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.executor.script")
def test_a_python_script_gets_its_project_in_argv_and_its_parameters_on_stdin():
    tool = record(CallPython(style=PythonStyle.SCRIPT, file="/srv/p/.ai/tools/a/t.py"))
    found = built(tool, {"a": 1}, '{"a": 1}')
    assert found.argv == ("python3", "/srv/p/.ai/tools/a/t.py", "--project-path", CWD)
    assert found.stdin == b'{"a":1}'


@pytest.mark.requirement("rye.cli.params")
def test_a_script_whose_parser_wants_it_gets_its_parameters_in_argv_as_well():
    settings = jsontext.compact({"params_option": True})
    tool = record(CallPython(style=PythonStyle.SCRIPT, file="/t.py", settings=settings))
    found = built(tool, {"a": "$(id)"})
    assert found.argv == ("python3", "/t.py", "--project-path", CWD, "--params", '{"a":"$(id)"}')
    assert found.stdin == b'{"a":"$(id)"}'
    assert "argument too large" in refusal(tool, {"a": "x" * 200_000}).message
    author = jsontext.compact({"config": {"params_option": True}})
    other = record(CallPython(style=PythonStyle.SCRIPT, file="/t.py", settings=author))
    assert "--params" not in built(other, {}).argv


@pytest.mark.parametrize(
    ("invocation", "calls"),
    [
        (CallPython(style=PythonStyle.FUNCTION, file="/t.py"), "execute(params, project_path) of /t.py"),
        (
            CallPython(style=PythonStyle.HANDLER, executor="journal"),
            'execute_journal_tool("t", arguments) of the handlers "journal"',
        ),
        (
            CallPython(style=PythonStyle.HANDLER, executor="journal", file="/handlers/journal.py"),
            'execute_journal_tool("t", arguments) of the handlers "journal" in /handlers/journal.py',
        ),
        (CallJavaScript(file="/t.ts"), "the default export of /t.ts, with the arguments"),
        (
            CallMcp(server="mcp/servers/context7", tool="query-docs"),
            'the tool "query-docs" of the MCP server "mcp/servers/context7"',
        ),
        (CallHttp(url="https://x.test/a"), "POST https://x.test/a, with the arguments"),
        (CallFunction(name="add"), "the function add that the host registered"),
    ],
)
def test_where_no_process_starts_words_say_what_is_called(invocation, calls):
    assert built(record(invocation), {"a": 1}) == Command(cwd=CWD, calls=calls)


@pytest.mark.requirement("rye.yaml.config-docker")
def test_a_container_gets_nothing_of_the_machine_and_values_only_by_name():
    run = RunContainer(image="alpine:3", command=("ls", "/"), entrypoint="sh", env_names=("TOKEN",))
    found = built(record(run), {"a": 1})
    assert found.argv[:3] == ("docker", "run", "--rm")
    assert found.argv[-7:] == ("--env", "TOKEN", "--entrypoint", "sh", "alpine:3", "ls", "/")
    assert found.stdin == b'{"a":1}'
    options = " ".join(found.argv)
    for expected in (
        "--network none", "--read-only", "--cap-drop ALL", "--security-opt no-new-privileges",
        "--pids-limit 128", "--memory 2147483648", "--pull never", "--interactive",
    ):  # fmt: skip
        assert expected in options
    assert not {"--privileged", "--volume", "-v", "--mount"} & {*found.argv}


@pytest.mark.parametrize("image", ["--privileged", "-v", "", "a b", "a\nb", "a;b", "$(id)"])
def test_an_image_that_the_engine_would_read_as_an_option_is_refused(image):
    found = refusal(record(RunContainer(image=image)), {})
    assert (found.kind, found.message) == (Kind.UNAVAILABLE, f"{image!r} is not the name of an image")


@pytest.mark.parametrize("name", ["A=B", "--privileged", "", "A B"])
def test_a_variable_that_the_engine_would_read_as_a_value_is_refused(name):
    found = refusal(record(RunContainer(image="alpine", env_names=(name,))), {})
    assert found.message == f"{name!r} is not the name of a variable"


def test_what_cannot_be_called_says_why():
    found = refusal(record(NotCallable(reason="not executable")), {})
    assert (found.kind, found.message) == (Kind.UNAVAILABLE, "not executable")


def test_a_switch_and_a_schema_of_any_shape_do_not_break_it():
    tool = record(
        RunProcess(program="p", encoding=AsArgv(args=(Switch(param="s"), Positional(param="q")))),
    )
    shapes: list[JsonObject] = [
        {},
        {"properties": []},
        {"properties": {"q": 5}},
        {"properties": {"q": {"enum": 5, "type": {}, "minimum": -9}}},
    ]
    for shape in shapes:
        found = refusal(replace(tool, input_schema=Schema.of(shape)), {"q": "-x"})
        assert found.message == "parameter q must not begin with '-'"
