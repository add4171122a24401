"""Finding documents: what is found where, what is not, and that a hostile folder finds nothing more."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from toolcrib import config
from toolcrib.catalog import files, loading, sources
from toolcrib.catalog.sources import Listing, Source, listing
from toolcrib.errors import SourceError
from toolcrib.model import ProbeOutcome, Problem, Rules, Severity


def put(folder: Path, *names: str) -> Path:
    """Empty files, and links written ``name -> target``."""
    for name in names:
        name, arrow, target = name.partition(" -> ")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if arrow:
            path.symlink_to(target)
        else:
            path.write_bytes(b"{}")
    return folder


def look(folder: Path, format: str | None = None, *, probe: bool = False, path: str = "") -> Listing:
    return listing([Source(path=str(folder / path), format=format, probe=probe, named=True)])


def found(folder: Path, result: Listing) -> list[str]:
    """Every candidate as ``place path``, relative to the folder."""
    return [f"{found.place or '?'} {os.path.relpath(found.path, folder)}" for found in result.candidates]


def said(folder: Path, problems: Sequence[Problem]) -> list[str]:
    return [f"{found.code} {os.path.relpath(found.path, folder)}: {found.message}" for found in problems]


# -- what is found where ------------------------------------------------------------------------------------


def test_a_folder_is_looked_at_together_with_those_in_it(tmp_path: Path) -> None:
    put(tmp_path, "tools.json", "g_tools.json", "other.json", "notes.txt")
    put(
        tmp_path,
        "notes/SKILL.md",
        "notes/tools.json",
        "groups/a_tools.json",
        "m/tools.json",
        "m/deep/tools.json",
    )
    put(tmp_path, ".ai/tools/x/a.py", "sub/.ai/tools/b.yaml", "sub/deep/.ai/tools/c.py")
    assert found(tmp_path, look(tmp_path)) == [
        "? g_tools.json",
        "? other.json",
        "? tools.json",
        "rye .ai/tools/x/a.py",
        "? groups/a_tools.json",
        "? m/tools.json",
        "skill notes/tools.json",
        "rye sub/.ai/tools/b.yaml",
    ]


def test_skills_lie_one_level_deep_or_in_a_folder_called_skills(tmp_path: Path) -> None:
    put(tmp_path, "a/SKILL.md", "skills/b/SKILL.md", "skills/c/tools.json", "skills/c/SKILL.md")
    put(tmp_path, "skills/e/f/SKILL.md", "x/y/SKILL.md", "skills/.hidden/SKILL.md")
    assert found(tmp_path, look(tmp_path)) == [
        "skill a/SKILL.md",
        "skill skills/b/SKILL.md",
        "skill skills/c/tools.json",
    ]


def test_the_files_of_a_skill_are_one_document(tmp_path: Path) -> None:
    put(
        tmp_path,
        *(f"notes/{name}" for name in ("SKILL.md", "tools.json", "allowlist.json", "execution.json")),
    )
    put(tmp_path, "notes/other.json")
    (candidate,) = look(tmp_path).candidates
    assert [os.path.basename(path) for path, _ in candidate.files] == [
        "tools.json",
        "SKILL.md",
        "allowlist.json",
        "execution.json",
    ]
    assert candidate.scope == "notes"


def test_a_folder_of_skills_may_be_a_skill_or_hold_them(tmp_path: Path) -> None:
    put(tmp_path, "skills/a/SKILL.md", "skills/b/SKILL.md")
    assert found(tmp_path, look(tmp_path / "skills", "skill")) == [
        "skill skills/a/SKILL.md",
        "skill skills/b/SKILL.md",
    ]
    assert found(tmp_path, look(tmp_path / "skills" / "a", "skill")) == ["skill skills/a/SKILL.md"]


def test_a_named_format_finds_only_its_own_files(tmp_path: Path) -> None:
    put(tmp_path, "tools.json", "a.json", "b_tools.json", ".ai/tools/x.py", "notes/SKILL.md")
    assert found(tmp_path, look(tmp_path, "manifest")) == ["manifest tools.json"]
    assert found(tmp_path, look(tmp_path, "capability")) == [
        "capability a.json",
        "capability b_tools.json",
        "capability tools.json",
    ]
    assert found(tmp_path, look(tmp_path, "rye")) == ["rye .ai/tools/x.py"]


def test_rye_items_are_all_files_of_their_kinds_below_ai_tools(tmp_path: Path) -> None:
    put(
        tmp_path,
        *(f".ai/tools/a{suffix}" for suffix in (".py", ".yaml", ".js", ".sh", ".toml", ".md", ".txt", "")),
    )
    put(tmp_path, ".ai/tools/deep/er/b.py", ".ai/tools/_private.py", ".ai/directives/x.md")
    put(tmp_path, *(f".ai/tools/{name}/c.py" for name in ("node_modules", "__pycache__", ".git", ".venv")))
    result = look(tmp_path)
    assert [candidate.item for candidate in result.candidates] == [
        "a.js",
        "a.py",
        "a.sh",
        "a.toml",
        "a.yaml",
        "deep/er/b.py",
    ]
    assert {candidate.project for candidate in result.candidates} == {str(tmp_path)}
    assert [candidate.scope for candidate in result.candidates][-1] == "deep/er"
    below = look(tmp_path / ".ai" / "tools" / "deep")
    assert [(candidate.place, candidate.project) for candidate in below.candidates] == [
        ("rye", str(tmp_path))
    ]


def test_rye_folders_have_a_depth_limit(tmp_path: Path) -> None:
    deep = "/".join("d" * (files.DEPTH_MAX + 1))
    put(tmp_path, ".ai/tools/" + "d/" * files.DEPTH_MAX + "in.py", f".ai/tools/{deep}/out.py")
    assert [os.path.basename(candidate.path) for candidate in look(tmp_path).candidates] == ["in.py"]


def test_hidden_folders_and_those_of_package_managers_are_not_looked_at(tmp_path: Path) -> None:
    names = (".hidden", "node_modules", "__pycache__", "venv", "site-packages", "build", "dist")
    put(tmp_path, *(f"{name}/tools.json" for name in names))
    assert found(tmp_path, look(tmp_path)) == []


def test_programs_are_only_found_in_a_folder_that_was_named_for_them(tmp_path: Path) -> None:
    put(tmp_path, "bin/a-tool", "bin/b-tool", "bin/c", "bin/-tool", "bin/deep/d-tool", "bin/f-tool/x")
    (tmp_path / "bin" / "a-tool").chmod(0o755)
    (tmp_path / "bin" / "c").chmod(0o755)
    assert found(tmp_path, look(tmp_path)) == []
    assert found(tmp_path, look(tmp_path / "bin")) == []
    result = look(tmp_path / "bin", "executable", probe=True)
    assert found(tmp_path, result) == ["executable bin/a-tool", "executable bin/b-tool", "executable bin/c"]
    assert [candidate.unreadable for candidate in result.candidates] == [None, "not executable", None]


@pytest.mark.requirement("executable.discover.suffix")
def test_of_a_folder_with_many_programs_only_those_named_for_it_are_asked(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    put(folder, "a-tool", *(f"p{number}" for number in range(sources.PROGRAMS_MAX - 1)), "notes.txt")
    for path in folder.iterdir():
        path.chmod(0o755 if path.name != "notes.txt" else 0o644)
    assert len(look(folder, "executable", probe=True).candidates) == sources.PROGRAMS_MAX
    put(folder, "one-more", "-tool")
    for name in ("one-more", "-tool"):
        (folder / name).chmod(0o755)
    result = look(folder, "executable", probe=True)
    assert found(tmp_path, result) == ["executable bin/a-tool"]
    assert said(tmp_path, result.problems) == [
        "executable.discover.suffix bin: 257 of 258 programs were not asked for their schemas: "
        "in a folder of more than 256, only those named NAME-tool are"
    ]
    assert "--from executable=PATH/NAME" in (result.problems[0].hint or "")


@pytest.mark.requirement("executable.discover.trusted-dirs")
def test_programs_of_a_place_without_trust_are_named_and_not_asked(tmp_path: Path) -> None:
    put(tmp_path, "bin/a-tool")
    (tmp_path / "bin" / "a-tool").chmod(0o755)
    asked: list[str] = []

    def prober(paths: Sequence[str]) -> Sequence[tuple[bytes, ProbeOutcome]]:
        asked.extend(paths)
        return [(b"", ProbeOutcome()) for _ in paths]

    machine = loading.Machine(prober=prober, which=lambda name: name)
    for path in ("bin", "bin/a-tool"):
        report = loading.load([Source(path=str(tmp_path / path), format="executable")], Rules(), machine)
        assert said(tmp_path, report.problems) == [
            f"source.not-probed {path}: programs here were not asked for their schemas, "
            "because asking runs them"
        ]
    assert asked == []


@pytest.mark.requirement("executable.discover.writable-dir")
@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777])
@pytest.mark.parametrize("which", ["bin", "bin/a-tool"])
def test_programs_that_other_users_may_write_are_not_run(tmp_path: Path, which: str, mode: int) -> None:
    """Attack: another user of the machine who may write to a folder of tools has them run as us."""
    put(tmp_path, "bin/a-tool")
    (tmp_path / "bin" / "a-tool").chmod(0o755)
    assert found(tmp_path, look(tmp_path / "bin", "executable", probe=True)) == ["executable bin/a-tool"]
    (tmp_path / which).chmod(mode)
    result = look(tmp_path / "bin", "executable", probe=True)
    assert result.candidates == []
    assert said(tmp_path, result.problems) == [
        f"executable.discover.writable-dir {which}: programs here are not run: "
        f"other users may write to it (mode {mode:04o})"
    ]


def test_programs_are_asked_together_and_answers_go_to_the_right_one(tmp_path: Path) -> None:
    put(tmp_path, "bin/a-tool", "bin/b-tool", "tools.json")
    for name in ("a-tool", "b-tool"):
        (tmp_path / "bin" / name).chmod(0o755)
    candidates = [*look(tmp_path / "bin", "executable", probe=True).candidates, *look(tmp_path).candidates]
    rounds: list[list[str]] = []

    def prober(paths: Sequence[str]) -> Sequence[tuple[bytes, ProbeOutcome]]:
        rounds.append([os.path.basename(path) for path in paths])
        return [(os.path.basename(path).encode(), ProbeOutcome(exit_status=0)) for path in paths]

    documents = [document for _, document in sources.documents(candidates, prober)]
    assert [document.content for document in documents] == [b"a-tool", b"b-tool", b"{}"]
    assert rounds == [["a-tool", "b-tool"]]


# -- files that were named ----------------------------------------------------------------------------------


def test_a_named_file_is_read_as_what_it_is(tmp_path: Path) -> None:
    put(
        tmp_path,
        "a.json",
        "notes/SKILL.md",
        "notes/tools.json",
        "p/.ai/tools/x/b.py",
        "t/tools.json",
        "run.py",
    )
    (tmp_path / "run.py").chmod(0o755)
    assert found(tmp_path, look(tmp_path, path="a.json")) == ["? a.json"]
    assert found(tmp_path, look(tmp_path, "manifest", path="a.json")) == ["manifest a.json"]
    assert found(tmp_path, look(tmp_path, path="notes/SKILL.md")) == ["skill notes/tools.json"]
    assert found(tmp_path, look(tmp_path, path="notes/tools.json")) == ["skill notes/tools.json"]
    assert found(tmp_path, look(tmp_path, path="t/tools.json")) == ["? t/tools.json"]
    (item,) = look(tmp_path, path="p/.ai/tools/x/b.py").candidates
    assert (item.place, item.item, item.scope, item.project) == ("rye", "x/b.py", "x", str(tmp_path / "p"))
    assert found(tmp_path, look(tmp_path, "executable", probe=True, path="run.py")) == ["executable run.py"]


def test_a_named_file_that_no_format_has_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", "b.py")
    assert said(tmp_path, look(tmp_path, path="a.txt").problems) == [
        "source.unknown-file a.txt: not a declaration: no format of tools has files like this one"
    ]
    assert said(tmp_path, look(tmp_path, "rye", path="b.py").problems) == [
        "source.unknown-file b.py: a rye tool gets its id from its path below .ai/tools, "
        "and this file is not there"
    ]
    assert said(tmp_path, look(tmp_path, "rye").problems) == [
        "source.unknown-file .: there is no .ai/tools in this folder"
    ]


FORMATS = ("skill", "manifest", "capability", "rye", "executable", "mcp", "openapi")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["SKILL.md", "a.txt", "api.yaml", ".ai/tools/x/b.py", "folder"])
def test_a_path_that_was_named_with_another_format_is_always_an_error(
    format: str, name: str, tmp_path: Path
) -> None:
    put(tmp_path, "SKILL.md", "a.txt", "api.yaml", ".ai/tools/x/b.py")
    (tmp_path / "folder").mkdir()
    own = {"SKILL.md": "skill", "api.yaml": "openapi", ".ai/tools/x/b.py": "rye"}
    result = look(tmp_path, format, probe=True, path=name)
    if own.get(name) == format:
        assert (len(result.candidates), result.problems) == (1, [])
        return
    if result.candidates:  # what is read says so: `not executable`, `not an OpenAPI document`
        assert format in ("executable", "openapi")
        return
    (problem,) = result.problems
    assert problem.severity is Severity.ERROR
    assert problem.code in ("source.other-format", "source.unknown-file", "source.nothing")
    assert problem.hint


@pytest.mark.parametrize("format", [None, "mcp"])
def test_a_named_list_of_servers_in_toml_that_does_not_parse_names_its_line(
    format: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text("[mcp_servers.a]\ncommand = x\n", encoding="utf-8")
    (problem,) = look(tmp_path, format, path="config.toml").problems
    assert (problem.code, problem.line) == ("source.unknown-file", 2)
    assert problem.message == "not a list of MCP servers: line 2, column 11: Invalid value"
    assert problem.hint == "correct the file at that place, or name another one"


def test_a_folder_without_an_executable_is_an_error_where_a_person_named_it(tmp_path: Path) -> None:
    put(tmp_path, "notes.txt")
    expected = ["source.nothing .: nothing executable in this folder: no file with its executable bit set"]
    result = look(tmp_path, "executable", probe=True)
    assert said(tmp_path, result.problems) == expected
    assert result.problems[0].hint == "make the programs executable (chmod +x)"
    configured = listing([Source(path=str(tmp_path), format="executable", probe=True)])
    assert [problem.severity for problem in configured.problems] == [Severity.WARNING]


def test_a_folder_whose_documents_another_source_named_too_is_not_empty(tmp_path: Path) -> None:
    put(tmp_path, "skills/notes/SKILL.md", "m/tools.json")
    named = [
        Source(path=str(tmp_path / path), format=format, named=True)
        for path, format in (("", None), ("skills", "skill"), ("m", "manifest"))
    ]
    assert listing(named).problems == []


def test_a_path_named_twice_is_one_document(tmp_path: Path) -> None:
    put(tmp_path, "m/tools.json", "notes/SKILL.md", "bin/a-tool", ".ai/tools/x.py")
    (tmp_path / "bin" / "a-tool").chmod(0o755)
    named = [
        Source(path=str(tmp_path / path), named=True)
        for path in ("", "m", "m/tools.json", "notes", "", ".ai/tools")
    ]
    probed = [
        Source(path=str(tmp_path / path), format="executable", probe=True)
        for path in ("bin", "bin", "bin/a-tool")
    ]
    assert sorted(found(tmp_path, listing([*named, *probed]))) == [
        "? m/tools.json",
        "executable bin/a-tool",
        "rye .ai/tools/x.py",
        "skill notes/SKILL.md",
    ]


# -- what is missing ----------------------------------------------------------------------------------------


# -- handlers of groups -------------------------------------------------------------------------------------

SCHEMAS = "backend/tool_capabilities/schemas"


def handlers(folder: Path, source: Source) -> list[str]:
    (home,) = listing([source]).homes
    return [os.path.relpath(path, folder) for path in home.handlers]


@pytest.mark.requirement("capability.meta.executor-module")
def test_handlers_lie_beside_the_schemas_or_beside_their_parent(tmp_path: Path) -> None:
    put(tmp_path, f"{SCHEMAS}/journal.json", "backend/handlers/journals.py")
    named = config.named_source(SCHEMAS, str(tmp_path))
    assert handlers(tmp_path, named) == [f"{SCHEMAS}/handlers", "backend/handlers"]
    put(tmp_path, "backend/tool_capabilities/handlers/journals.py")
    assert handlers(tmp_path, named) == [
        f"{SCHEMAS}/handlers", "backend/tool_capabilities/handlers", "backend/handlers",
    ]  # fmt: skip
    of_a_file = Source(path=str(tmp_path / SCHEMAS), root=str(tmp_path))
    assert handlers(tmp_path, of_a_file)[-1] == "backend/handlers"


def test_handlers_above_what_nobody_vouches_for_are_not_looked_for(tmp_path: Path) -> None:
    """Attack: code beside a clone passes for the handlers of its groups."""
    put(tmp_path, f"clone/{SCHEMAS}/journal.json", "handlers/journals.py", "clone/handlers/journals.py")
    found_here = Source(path=str(tmp_path / "clone" / SCHEMAS), named=True)
    assert handlers(tmp_path, found_here) == [f"clone/{SCHEMAS}/handlers"]
    far = config.named_source(f"clone/{SCHEMAS}", str(tmp_path))
    assert handlers(tmp_path, far) == [f"clone/{SCHEMAS}/handlers"]


@pytest.mark.parametrize("which", ["", "handlers"])
def test_handlers_where_other_users_may_write_are_not_looked_for(tmp_path: Path, which: str) -> None:
    """Attack: another user puts handlers into the shared folder that a clone lies in."""
    put(tmp_path, "shared/groups/journal.json", "shared/handlers/journals.py")
    named = config.named_source("groups", str(tmp_path / "shared"))
    assert handlers(tmp_path, named) == ["shared/groups/handlers", "shared/handlers"]
    (tmp_path / "shared" / which).chmod(0o777)
    assert handlers(tmp_path, named) == ["shared/groups/handlers"]


def test_a_missing_path_is_a_mistake_of_who_named_it_and_else_a_warning(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file or directory"):
        look(tmp_path, path="missing")
    result = listing([Source(path=str(tmp_path / "missing"))])
    assert result.candidates == []
    assert said(tmp_path, result.problems) == [
        "source.missing missing: no such file or directory: the source has no tools"
    ]


def test_a_folder_with_too_many_entries_is_not_looked_through(tmp_path: Path) -> None:
    put(tmp_path, *(f"m{number}/tools.json" for number in range(5)))
    nearly_full = Listing(entries=files.ENTRIES_MAX - 7)
    with pytest.raises(SourceError, match="more than 100,000 entries to look at"):
        sources._Look(nearly_full, Source(path=str(tmp_path), named=True), 0).look()
    nearly_full = Listing(entries=files.ENTRIES_MAX - 7)
    sources._Look(nearly_full, Source(path=str(tmp_path)), 0).look()
    assert found(tmp_path, nearly_full) == ["? m0/tools.json", "? m1/tools.json"]
    assert said(tmp_path, nearly_full.problems) == [
        "source.unreadable m2: more than 100,000 entries to look at: nothing from here on is looked at"
    ]


# -- links and odd files ------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What a project must not reach: it lies beside the project."""
    return put(tmp_path / "home", "tools.json", "skill/SKILL.md", ".ai/tools/x.py", "g_tools.json")


def test_folders_behind_links_that_lead_out_are_not_looked_at(tmp_path: Path, home: Path) -> None:
    project = put(
        tmp_path / "p", f"m -> {home}", f"skills/s -> {home / 'skill'}", f"sub/.ai -> {home / '.ai'}"
    )
    result = look(project)
    assert result.candidates == []
    text = "a link that leads out of the source is not followed"
    assert said(project, result.problems) == [
        f"source.link m: {text}",
        f"source.link skills/s: {text}",
        f"source.link sub/.ai/tools: {text}",
    ]
    assert said(project, look(project / "sub", "rye").problems) == [f"source.link sub/.ai/tools: {text}"]
    assert said(project, look(project / "skills", "skill").problems) == [f"source.link skills/s: {text}"]


def test_files_behind_links_that_lead_out_are_not_read(tmp_path: Path, home: Path) -> None:
    project = put(
        tmp_path / "p",
        f"m/tools.json -> {home / 'tools.json'}",
        f"g/g_tools.json -> {home / 'g_tools.json'}",
        f".ai/tools/x.py -> {home / '.ai/tools/x.py'}",
        "notes/tools.json",
        f"notes/SKILL.md -> {home / 'skill/SKILL.md'}",
    )
    results = [
        look(project),
        look(project / "m", "manifest"),
        look(project / "notes", "skill"),
        look(project, "rye"),
    ]
    results.append(look(project, path="notes/tools.json"))  # what lies beside a named file is not named
    for result in results:
        assert result.candidates
        assert {candidate.unreadable for candidate in result.candidates} == {
            "a link that leads out of the source is not followed"
        }


def test_folders_behind_links_in_the_rye_tree_are_not_entered(tmp_path: Path, home: Path) -> None:
    project = put(tmp_path / "p", ".ai/tools/a.py", f".ai/tools/out -> {home}", ".ai/tools/again -> .")
    assert found(project, look(project)) == ["rye .ai/tools/a.py"]


def test_links_that_stay_in_the_source_are_followed(tmp_path: Path) -> None:
    put(
        tmp_path,
        "far/off/tools.json",
        "near -> far/off",
        "real/tools.json",
        "m/tools.json -> ../real/tools.json",
    )
    result = look(tmp_path)
    assert found(tmp_path, result) == ["? m/tools.json", "? near/tools.json", "? real/tools.json"]
    assert {candidate.unreadable for candidate in result.candidates} == {None}


def test_links_to_what_is_looked_at_anyway_bring_no_tool_twice(tmp_path: Path) -> None:
    put(tmp_path, "real/tools.json", "same -> real", "up -> .")
    assert found(tmp_path, look(tmp_path)) == ["? real/tools.json"]


def test_a_link_that_was_named_itself_is_followed(tmp_path: Path, home: Path) -> None:
    put(tmp_path / "p", f"folder -> {home}", f"tools.json -> {home / 'tools.json'}")
    assert "? p/folder/tools.json" in found(tmp_path, look(tmp_path / "p" / "folder"))
    (candidate,) = look(tmp_path / "p" / "tools.json").candidates
    assert candidate.unreadable is None


def test_links_that_lead_in_a_circle_are_no_obstacle(tmp_path: Path) -> None:
    put(
        tmp_path,
        "loop -> loop",
        "a -> b",
        "b -> a",
        "skills/loop -> loop",
        "m/tools.json -> tools.json",
        "ok/tools.json",
    )
    put(tmp_path, "n/tools.json -> nowhere")
    result = look(tmp_path)
    assert [(os.path.relpath(found.path, tmp_path), found.unreadable) for found in result.candidates] == [
        ("m/tools.json", "its symbolic links lead in a circle"),
        ("n/tools.json", "no such file or directory"),
        ("ok/tools.json", None),
    ]
    assert result.problems == []


def test_what_is_no_file_is_reported_and_never_waited_for(tmp_path: Path) -> None:
    for name in ("m", "g"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "m" / "tools.json")
    os.mkfifo(tmp_path / "g" / "g_tools.json")
    (tmp_path / "f" / "tools.json").mkdir(parents=True)
    put(tmp_path, "ok/tools.json")
    report = loading.load(
        [Source(path=str(tmp_path), named=True)],
        Rules(),
        loading.Machine(prober=lambda paths: [], which=lambda name: name),
    )
    assert said(tmp_path, report.problems) == [
        "manifest.root.read-error f/tools.json: read manifest: it is a directory",
        "capability.file.other-error g/g_tools.json: "
        "[Registry] Error loading g_tools.json: not a regular file",
        "manifest.root.read-error m/tools.json: read manifest: not a regular file",
    ]


ODD_NAMES = [
    "a b",
    "a\nb",
    'q"uote',
    "emoji 😀",
    "-rf",
    "%2e%2e",
    "a\\b",
    "ä",
    "a\u0308",
    "\u202egpj",
    "*?[x]",
    "~",
    "$HOME",
]


def test_names_with_odd_characters_are_names(tmp_path: Path) -> None:
    put(tmp_path, *(f"{name}/tools.json" for name in ODD_NAMES))
    result = look(tmp_path)
    assert {candidate.scope for candidate in result.candidates} == set(ODD_NAMES)
    assert result.problems == []


def test_names_that_are_not_utf8_are_left_out_and_counted(tmp_path: Path) -> None:
    put(tmp_path, "m/tools.json")
    for name in (b"caf\xe9_tools.json", b"\xff\xfe.json", b"d\xe9"):
        path = os.path.join(os.fsencode(tmp_path), name)
        if name.endswith(b".json"):
            with open(path, "wb") as file:
                file.write(b"{}")
        else:
            os.mkdir(path)
    result = look(tmp_path)
    assert found(tmp_path, result) == ["? m/tools.json"]
    (problem,) = result.problems
    assert problem.code == "source.unreadable"
    assert problem.message == (
        'names that are not UTF-8 are left out (3 of them, such as "caf\\xe9_tools.json")'
    )
    assert result.stamp


def test_a_source_whose_own_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"d\xe9")
    os.mkdir(path)
    with pytest.raises(SourceError, match=r"d\\xe9: its name is not UTF-8"):
        listing([Source(path=os.fsdecode(path), named=True)])


def test_the_order_does_not_depend_on_the_disk(tmp_path: Path) -> None:
    names = [f"m{number:02}/tools.json" for number in range(30)]
    put(tmp_path / "a", *names)
    put(tmp_path / "b", *reversed(names))
    orders = [found(folder, look(folder)) for folder in (tmp_path / "a", tmp_path / "b")]
    assert orders[0] == orders[1] == [f"? {name}" for name in names]


# -- spaces of rye ------------------------------------------------------------------------------------------


def test_the_spaces_of_rye_are_asked_for_only_when_an_item_needs_them(tmp_path: Path) -> None:
    put(tmp_path, "m/tools.json", "p/.ai/tools/a.py", "user/.ai/tools/b.py")
    asked = []

    def spaces() -> Sequence[Source]:
        asked.append("spaces")
        return [Source(path=str(tmp_path / "user" / ".ai" / "tools"), format="rye", space=1)]

    listing([Source(path=str(tmp_path / "m"))], rye_spaces=spaces)
    assert asked == []
    result = listing([Source(path=str(tmp_path / "p"))], rye_spaces=spaces)
    assert asked == ["spaces"]
    assert [(candidate.item, candidate.space) for candidate in result.candidates] == [
        ("a.py", 0),
        ("b.py", 1),
    ]


def test_bundles_are_found_in_installed_metadata_without_importing_them(tmp_path: Path) -> None:
    put(tmp_path, "alpha/.ai/tools/x.py", "beta/sub/.ai/tools/y.py", "gamma/__init__.py")
    for name, text in {
        "one": "[rye.bundles]\nb = beta.sub:bundle\nmissing = gamma:bundle\n\n[other]\na = gamma:x\n",
        "two": "[console_scripts]\nx = y:z\n\n[rye.bundles]\na = alpha:bundle\n",
        "three": "[console_scripts]\nx = alpha:z\n",
    }.items():
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(text, encoding="utf-8")
    (tmp_path / "alpha" / "__init__.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    bundles = sources.rye_bundles([str(tmp_path), str(tmp_path / "missing")])
    assert [(os.path.relpath(found.path, tmp_path), found.space) for found in bundles] == [
        ("alpha/.ai/tools", 2),
        ("beta/sub/.ai/tools", 2),
    ]
