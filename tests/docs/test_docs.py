"""The docs are whole and true: everything is documented, every command line parses, what can run does run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest
import yaml

import toolcrib
from tests.codes import CODE, codes
from tests.levels import tried
from tests.program import PATH, PROGRAM, WAIT_S
from toolcrib import config
from toolcrib.catalog import files
from toolcrib.dialects import DIALECTS
from toolcrib.doors import cli
from toolcrib.doors.http import ROUTES
from toolcrib.errors import KINDS
from toolcrib.formats import FORMATS
from toolcrib.journal import audit, chain, usage
from toolcrib.journal.redaction import DIGITS_MIN, GUESSED_CHARS_MIN, VALUE_CHARS_MIN
from toolcrib.journal.segments import ROOM_BYTES, Bounds
from toolcrib.model import Level, Limits, Profile
from toolcrib.runtimes import _dependencies
from toolcrib.runtimes.around import LEDGER_MAX, LEDGER_S
from toolcrib.store import private, sqlite
from toolcrib.trust import approvals, lock, pinning, seen, signing, vault

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
SOURCE = Path(toolcrib.__file__).parent
COMMANDS = DOCS / "reference" / "commands.md"
ISOLATION = DOCS / "concepts" / "isolation.md"
AUDIT = DOCS / "concepts" / "audit.md"
CONFIGURATION = DOCS / "reference" / "configuration.md"
HTTP = DOCS / "reference" / "http.md"
LIMITS = DOCS / "reference" / "limits.md"
PROBLEMS = DOCS / "reference" / "problems.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def section(page: Path, heading: str) -> str:
    """The part of a page below a heading of the second level."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text(page), re.MULTILINE | re.DOTALL)
    assert found, f"{page_id(page)} has no section {heading!r}"
    return found.group(1)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)


# -- everything is documented -------------------------------------------------------------------------------


@cache
def commands() -> dict[str, click.Command]:
    context = click.Context(cli.group)
    found = {name: cli.group.get_command(context, name) for name in cli.group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    headings = re.findall(r"^## ([a-z]+)$", text(COMMANDS), re.MULTILINE)
    assert headings == list(commands())
    shared = {option.name for option in options(cli.group)}
    for name, command in commands().items():
        described = section(COMMANDS, name)
        for option in options(command):
            if option.name not in shared:
                for spelling in option.opts:
                    assert f"`{spelling}" in described, f"{name} {spelling}"
                if isinstance(option.type, click.Choice):
                    for choice in option.type.choices:
                        assert f"`{choice}`" in described, f"{name} {option.name} {choice}"


def test_every_shared_option_is_described() -> None:
    described = section(COMMANDS, "Options of every command")
    for option in options(cli.group):
        for spelling in option.opts:
            assert f"`{spelling}" in described, spelling
    assert "`--help`" in described


def test_no_option_is_described_that_does_not_exist() -> None:
    known = {"-h", "--help", *(spelling for option in options(cli.group) for spelling in option.opts)}
    for name, command in commands().items():
        mine = known | {spelling for option in options(command) for spelling in option.opts}
        described = set(re.findall(r"^\| `(--?[a-z-]+)", section(COMMANDS, name), re.MULTILINE))
        assert described <= mine, name


def test_every_error_kind_and_its_exit_code_are_described() -> None:
    described = section(COMMANDS, "Exit codes")
    for kind, row in KINDS.items():
        assert re.search(rf"^\| `{kind}` \| .+ \| {row.exit_code} \|$", described, re.MULTILINE), kind


def test_every_exit_code_is_described() -> None:
    described = section(COMMANDS, "Exit codes")
    for code in (0, 2, 64, 65, 66, 69, 70, 74, 77, 78, 129, 130, 143):
        assert re.search(rf"^\| {code} \| ", described, re.MULTILINE), code


def test_every_layer_of_isolation_is_described_and_none_that_is_not_there() -> None:
    table = section(ISOLATION, "Levels").partition("| name | means |")[2]
    described = {
        name
        for row in re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE)
        for name in re.findall("`(.+?)`", row)
    }
    source = "".join(text(path) for path in (SOURCE / "sandbox").glob("*.py"))
    source += "".join(text(path) for path in (SOURCE / "runtimes").glob("*.py"))
    made = {
        *re.findall(r'"((?:addresses|network|protected|state):[a-z-]+)"', source),
        *re.findall(r'layers(?:\.append\(| = \[|=\()"([a-z-]+)"', source),
        *(level.value for level in Level),
        *(f"profile:{profile.value}" for profile in Profile),
        *("seccomp", "landlock", "rlimits", "zygote", "no-capabilities", "uid:N"),
    }
    assert described == made


def test_the_numbers_that_the_concepts_name_are_those_of_the_code() -> None:
    limits, bounds = Limits(), Bounds()
    found = section(ISOLATION, "Limits")
    mib, gib = 1 << 20, 1 << 30
    for row in (
        f"| time | {limits.timeout_s:.0f} s, ",
        f"| {limits.stdout_bytes_max // mib} MiB, {limits.stderr_bytes_max // mib} MiB; ",
        f"| {limits.memory_bytes_max // gib} GiB, {limits.processes_max}, "
        f"{limits.scratch_bytes_max // mib} MiB (`[limits]`) |",
        f"| {limits.file_bytes_max // gib} GiB, {limits.open_files_max:,} |",
    ):
        assert row in found, row
    spawner = text(ROOT / "src" / "native" / "spawner.c")
    every = {name: int(value) for name, value in re.findall(r"\b([A-Z_]+_M?S) = (\d+)", spawner)}
    held = " ".join(section(ISOLATION, "The spawner").split())
    assert f"every {every['SAMPLE_EVERY_MS']} ms" in held
    assert (
        f"from {every['ALARM_FIRST_MS']} ms after the start on and then every {every['ALARM_EVERY_MS']} ms"
        in held
    )
    assert (every["OPENED_MS"], every["EMBRYO_LIFE_S"]) == (
        1000,
        5,
    )  # "after a second", "at most five seconds"
    told = text(AUDIT)
    for words in (
        f"after {bounds.segment_bytes_max // mib} MiB or a day",
        f"older than `audit.retention_days` ({config.Config().retention_days})",
        f"after {bounds.signed_every} records or {bounds.signed_within_s:.0f} seconds, at the latest after "
        f"{bounds.unsigned_max:,}",
        f"within {bounds.flush_s * 1000:.0f} ms",
        f"for {LEDGER_S / 3600:.0f} hours, at most of the newest {LEDGER_MAX:,}",
        "Values of fewer than four characters",
    ):
        assert words in told, words
    assert VALUE_CHARS_MIN == 4


def test_the_limits_of_the_journal_and_of_trust_are_those_of_the_code() -> None:
    page, bounds = text(LIMITS), Bounds()
    mib, hour = 1 << 20, 3600
    for row in (
        f"| one text in a record | {audit.TEXT_CHARS_MAX:,} characters |",
        f"| elements of argv, names of arguments, notes | {audit.ITEMS_MAX} of each |",
        f"| names of variables | {audit.ITEMS_MAX * 4} |",
        f"| programs started for one call that are recorded | the last {audit.RUNS_MAX} |",
        f"| a whole record | {audit._BODY_BYTES_MAX:,} bytes |",
        f"| ends that wait in memory while the journal cannot be written | {audit.OWED_MAX:,} |",
        f"| time until an end is synced | {bounds.flush_s * 1000:.0f} ms |",
        f"one is due after {bounds.signed_every}, or after {bounds.signed_within_s:.0f} seconds in a host "
        f"that goes on; {chain.UNSIGNED_MAX:,} at most |",
        f"| a segment | {bounds.segment_bytes_max // mib} MiB or a day |",
        f"| a segment of a host that is gone | {bounds.continued_bytes_max // 1024} KiB, or a day |",
        f"| names of removed segments that are remembered | {bounds.retired_names_max:,} |",
        f"| a value that is looked for in texts, to redact it | at least {VALUE_CHARS_MIN} characters |",
        f"| the last {usage.EVENTS_MAX:,}, of {usage.WINDOW_S // hour:.0f} hours |",
        f"| calls of a tool before its median counts as slow | {usage.REGULARLY} |",
        f"are remembered | {seen.PAST_MAX}, and the newest of {seen.KEYS_MAX} keys |",
        f"| the memory of one project's signed files | {seen.BYTES_MAX // mib} MiB |",
        f"| files and folders below the anchor of a rye tool | {_dependencies.DEPENDENCIES_MAX:,}, and "
        f"{files.DEPTH_MAX} levels |",
        f"files below an anchor that are digested | {_dependencies.DEPENDENCIES_BYTES_MAX:,} |",
        f"| {approvals.WAITING_PER_CALLER_MAX} of one caller, {approvals.WAITING_MAX} in all |",
        f"| arguments that a person is asked about, or edits | {approvals.ARGUMENTS_BYTES_MAX:,} bytes |",
        f"who asked; the reason of an answer | {approvals.TEXT_CHARS_MAX} characters |",
        f"| an approval that lasts (`--for`) | {approvals.FOR_S_MAX / 86_400:.0f} days |",
        f"| approvals that are over | a week, the newest {approvals.KEPT_MAX:,} |",
        f"| how long a change of the store waits for another program's | {sqlite.BUSY_S:.0f} seconds |",
        f"| `toolcrib.lock` | {lock.BYTES_MAX:,} bytes, {lock.ENTRIES_MAX:,} tools |",
        f"| files of one tool | {lock.FILES_MAX:,}, scripts at most {pinning._DEPTH_MAX} folders deep |",
        f"{pinning.TEXT_BYTES_MAX:,} bytes each, {pinning.TEXTS_BYTES_MAX:,} bytes for a lock |",
        f"| a change of a program on PATH is noticed | after {pinning._FRESH_S * 1000:.0f} ms |",
    ):
        assert row in page, row
    assert (bounds.segment_age_s_max, approvals.KEPT_S, approvals.DENIED_S) == (86_400, 7 * 86_400, hour)
    assert approvals.WAITING_S == approvals.APPROVED_S == 86_400
    told = text(AUDIT)
    for words in (
        f"up to {ROOM_BYTES // 1024} KiB of zeros",
        f"A host that has written {bounds.room_after} times keeps room",
        f"at most {chain.UNSYNCED_BYTES_MAX // mib} MiB and no call that began and ended",
        f"A host never writes a {chain.UNSIGNED_MAX + 1:,}th record without one",
        f"put at most {chain.UNSIGNED_MAX:,} records of his own",
        f"notices within {bounds.flush_s * 1000:.0f} ms that its journal was taken away",
    ):
        assert words in told, words
    assert f"Key ids have {signing.KEY_ID_CHARS * 4} bits" in text(DOCS / "concepts" / "signatures.md")


def test_every_configuration_key_is_described() -> None:
    settings = section(CONFIGURATION, "Settings")
    for name, keys in config._SECTIONS.items():
        for key, rule in keys.items():
            row = re.search(rf"^\| `{name}\.{key}` \|.*$", settings, re.MULTILINE)
            assert row, f"{name}.{key}"
            assert all(f"`{choice}`" in row.group() for choice in rule.choices), f"{name}.{key}"
    for heading, keys in (
        ("Sources", config._SOURCE_KEYS),
        ("Grants", config._GRANT_KEYS),
        ("Tools", config._TOOL_KEYS),
        ("Policy", config._POLICY_KEYS),
        ("Budgets", config._BUDGET_KEYS),
    ):
        table = section(CONFIGURATION, heading).partition("`match` knows")[0]
        described = re.findall(r"^\| `([a-z_]+)` \|", table, re.MULTILINE)
        assert set(described) == set(keys), heading


def test_no_configuration_key_is_described_that_does_not_exist() -> None:
    described = set(
        re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", section(CONFIGURATION, "Settings"), re.MULTILINE)
    )
    assert described == {f"{name}.{key}" for name, keys in config._SECTIONS.items() for key in keys}


def test_every_dialect_and_format_is_described() -> None:
    readme = text(ROOT / "README.md")
    exported = section(COMMANDS, "export")
    for name in DIALECTS:
        assert f"`{name}`" in readme
        assert f"`{name}`" in exported
        assert any(f"`{name}`" in text(page) for page in (DOCS / "dialects").glob("*.md")), name
    for name in FORMATS:
        assert f"(docs/formats/{name}.md)" in readme
        assert (DOCS / "formats" / f"{name}.md").exists()


# -- codes --------------------------------------------------------------------------------------------------


def requirement_ids() -> set[str]:
    found = set()
    for path in sorted((ROOT / "tests" / "requirements").glob("*.toml")):
        found |= {entry["id"] for entry in tomllib.loads(text(path))["requirement"]}
    return found


def test_every_code_that_is_no_requirement_is_described() -> None:
    described = set(re.findall(rf"^\| `({CODE.pattern})` \|", text(PROBLEMS), re.MULTILINE))
    assert described == codes() - requirement_ids()


def test_every_requirement_that_is_a_code_stands_on_the_page_of_its_format() -> None:
    missing = []
    for code in sorted(codes() & requirement_ids()):
        if f"`{code}`" not in text(DOCS / "formats" / f"{code.partition('.')[0]}.md"):
            missing.append(code)
    assert missing == []


def test_no_format_page_names_a_code_that_does_not_exist() -> None:
    known = codes() | requirement_ids()
    for name in FORMATS:
        page = DOCS / "formats" / f"{name}.md"
        named = set(re.findall(rf"^\| `({name}\.[a-z0-9-]+\.[a-z0-9-]+)` \|", text(page), re.MULTILINE))
        assert named <= known, page_id(page)


# -- command lines ------------------------------------------------------------------------------------------


def command_lines(page: Path) -> Iterator[str]:
    """What a page tells people to type: lines of console and shell blocks, and code in the text."""
    content = text(page)
    for block in re.findall(r"^```(?:console|sh|yaml)?\n(.*?)^```$", content, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            found = re.match(r"(?:\$ |exec |.*\b(?:run|entry): |)(toolcrib .*)", line)
            if found:
                yield found.group(1)
    prose = re.sub(r"^```.*?^```$", "", content, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`(toolcrib [^`]+)`", prose)


def words(line: str) -> list[str]:
    """The arguments of a command line, without comments, redirections and pipes."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>&;")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    found = []
    for word in lexer:
        if set(word) <= set("|>&;"):
            break
        found.append(word)
    return found[1:]


def parse(arguments: list[str]) -> None:
    """Understand a command line without running it; click complains about what is wrong."""
    with cli.group.make_context("toolcrib", [*arguments], obj=cli.Shared()) as context:
        rest = [*context._protected_args, *context.args]
        name, command, more = cli.group.resolve_command(context, rest)
        assert command is not None
        with command.make_context(name, more, parent=context):
            pass


LINES = sorted({(page_id(page), line) for page in PAGES for line in command_lines(page)})


@pytest.mark.parametrize(("page", "line"), LINES)
def test_a_command_line_in_the_docs_parses(page: str, line: str) -> None:
    with suppress(click.exceptions.Exit):  # --help, --version
        parse(words(line))


def test_the_examples_of_the_help_texts_parse() -> None:
    for command in (cli.group, *commands().values()):
        lines = re.findall(r"^ +(toolcrib .*)$", command.epilog or "", re.MULTILINE)
        assert lines
        for line in lines:
            parse(words(line))


def test_no_command_line_writes_over_a_declaration() -> None:
    """The shell empties the file before we read it, and what is written there is no declaration."""
    helped = [line for command in commands().values() for line in (command.epilog or "").splitlines()]
    for line in (*(line for _, line in LINES), *helped):
        assert not re.search(r">\s*\S*(?:tools\.json|SKILL\.md)\b", line), line


def test_a_wrong_command_line_would_be_noticed() -> None:
    for line in ("toolcrib chekc", "toolcrib check --strct", "toolcrib export", "toolcrib init a b"):
        with pytest.raises(click.UsageError):
            parse(words(line))


# -- examples that run --------------------------------------------------------------------------------------


@pytest.fixture
def crib(tmp_path: Path) -> Path:
    """The example tools, to run command lines in."""
    folder = tmp_path / "crib"
    shutil.copytree(ROOT / "examples", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def in_shell(line: str, cwd: Path) -> tuple[int, str]:
    ended = subprocess.run(
        ["/bin/sh", "-c", f"toolcrib() {{ '{PROGRAM}' \"$@\"; }}\n{line}"],
        cwd=cwd,
        env={"PATH": PATH, "HOME": str(cwd.parent / "home")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stdout


RUNNING = ["README.md", "docs/start.md", "docs/guides/checking.md", "docs/guides/models.md"]
NOT_RUN = ("make ", "toolcrib check path/to/tools", "toolcrib check --watch", "toolcrib serve")
"""Another program; the broken manifest below; commands that do not end (test_serve.py runs the last)."""


@pytest.mark.parametrize("name", RUNNING)
def test_the_command_lines_of_a_page_run(name: str, crib: Path) -> None:
    lines = [
        line for block in blocks(ROOT / name, "console") for line in re.findall(r"^\$ (.*)$", block, re.M)
    ]
    ran = [line for line in lines if not line.startswith(NOT_RUN)]
    assert ran
    for line in ran:
        status, _ = in_shell(line, crib)
        # The configuration of the examples is only found here, which is worth a warning.
        assert status == (65 if "--strict" in line and line.startswith("toolcrib check") else 0), line


def test_start_shows_what_is_really_printed(tmp_path: Path) -> None:
    first = blocks(DOCS / "start.md", "console")[0]
    command, *expected = first.splitlines()
    tool = {
        "name": "get_time",
        "description": "Tell the time.",
        "schema": {
            "type": "object",
            "properties": {"zone": {"type": "string"}},
            "additionalProperties": False,
        },
        "command": ["bin/get_time"],
    }
    place = tmp_path / "path" / "to" / "tools"
    place.mkdir(parents=True)
    pretty = json.dumps({"tools": [tool]}, indent=2)
    line = pretty[: pretty.index("bin/get_time")].count("\n") + 1
    shown = int(re.findall(r"tools\.json:(\d+):", first)[0])
    (place / "tools.json").write_text("\n" * (shown - line) + pretty, encoding="utf-8")
    status, out = in_shell(command.removeprefix("$ "), tmp_path)
    assert status == 65
    assert out.splitlines() == expected


def ran(code: str, cwd: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=cwd,
        env={"PATH": PATH, "HOME": str(cwd.parent / "home")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), code
    return ended.stdout


def fits(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed; ``…`` stands for what differs from run to run."""
    return re.fullmatch(".*".join(map(re.escape, shown.split("…"))), printed, re.DOTALL) is not None


def needs_supervision() -> None:
    if tried().level is not Level.SUPERVISED:
        pytest.skip("the guide shows the level supervised; `toolcrib doctor` says what this machine lacks")


@pytest.mark.parametrize(
    ("name", "files"), [("calling", ("closed.toml",)), ("policy", ("rules.toml", "writes.toml"))]
)
def test_a_guide_shows_what_is_really_printed(name: str, files: tuple[str, ...], crib: Path) -> None:
    needs_supervision()
    page = DOCS / "guides" / f"{name}.md"
    for file, block in zip(files, blocks(page, "toml"), strict=False):
        (crib / file).write_text(block, encoding="utf-8")
    sessions = [
        session
        for block in blocks(page, "console")
        for session in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]
    assert len(sessions) >= 6
    for line, shown in sessions:
        status, printed = in_shell(f"exec 2>&1\n{line}", crib)
        if shown:
            assert fits(shown, printed), (line, printed)
        else:
            assert status == 0, (line, printed)


def test_the_guide_to_locking_shows_what_is_really_printed(crib: Path) -> None:
    needs_supervision()
    sessions = [
        session
        for block in blocks(DOCS / "guides" / "locking.md", "console")
        for session in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]
    assert len(sessions) == 7
    for line, shown in sessions:
        _, printed = in_shell(f"exec 2>&1\n{line}", crib)
        assert fits(shown, printed), (line, printed)


def test_the_guide_to_approvals_shows_what_is_really_printed(crib: Path) -> None:
    page = DOCS / "guides" / "approvals.md"
    (crib / "asking.toml").write_text(blocks(page, "toml")[0], encoding="utf-8")
    sessions = [
        session
        for block in blocks(page, "console")
        for session in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]
    assert len(sessions) >= 10
    an_id = re.compile(r"\b[0-9a-f]{12}\b")
    real: dict[str, str] = {}  # ids differ from run to run: the page's, and what they are here
    for line, shown in sessions:
        status, printed = in_shell("exec 2>&1\n" + an_id.sub(lambda found: real[found.group()], line), crib)
        real.update(zip(an_id.findall(shown)[:1], an_id.findall(printed)[:1], strict=True))
        expected = an_id.sub(lambda found: real[found.group()], shown)
        if shown:
            assert fits(expected, printed), (line, printed)
        else:
            assert status == 0, (line, printed)
    assert len(real) == 3


def test_the_limits_that_the_guide_to_approvals_names_are_those_of_the_code() -> None:
    guide = " ".join(text(DOCS / "guides" / "approvals.md").split())
    for words in (
        f"| nobody has answered | {approvals.WAITING_S / 3600:.0f} hours,",
        f"| {approvals.APPROVED_S / 3600:.0f} hours, or what `--for` says (at most "
        f"{approvals.FOR_S_MAX / 86_400:.0f} days)",
        f"At most {approvals.WAITING_PER_CALLER_MAX} questions of one caller wait at once, and "
        f"{approvals.WAITING_MAX} in all",
        f"more than {approvals.ARGUMENTS_BYTES_MAX >> 10} KiB",
        f"for a week, at most the newest {approvals.KEPT_MAX:,}",
    ):
        assert words in guide, words
    assert (approvals.DENIED_S, approvals.KEPT_S) == (3600, 7 * 86_400)  # "an hour", "a week"


def test_the_guide_to_secrets_shows_what_is_really_printed(tmp_path: Path) -> None:
    needs_supervision()
    page = DOCS / "guides" / "secrets.md"
    folder = tmp_path / "tools"
    program = folder / "tools" / "bin" / "whoami"
    program.parent.mkdir(parents=True)
    (folder / "tools.json").write_text(blocks(page, "json")[0], encoding="utf-8")
    (folder / "secrets.toml").write_text(blocks(page, "toml")[0], encoding="utf-8")
    program.write_text(blocks(page, "sh")[0], encoding="utf-8")
    program.chmod(0o755)
    for block in blocks(page, "console"):
        for line, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            _, printed = in_shell(f"exec 2>&1\n{line}", folder)
            assert fits(shown, printed), (line, printed)


def test_the_limits_of_the_vault_are_those_of_the_code() -> None:
    found = section(DOCS / "guides" / "secrets.md", "Where values lie")
    for row in (
        f"| secrets in a vault | {vault.SECRETS_MAX} |",
        f"| a value | {vault.VALUE_BYTES_MAX:,} bytes of UTF-8, no NUL |",
        f"| a name | {vault.NAME_CHARS_MAX} characters",
        f"| a passphrase | at least {vault.PASSPHRASE_CHARS_MIN} characters |",
        f"| {private.LOCK_S:.0f} s |",
    ):
        assert row in found, row
    looked_for = section(DOCS / "guides" / "secrets.md", "What comes back")
    words = " ".join(looked_for.split())
    assert f"from {VALUE_CHARS_MIN} characters on; and, from {GUESSED_CHARS_MIN} characters on" in words
    assert f"Numbers need {DIGITS_MIN} digits" in words


@pytest.mark.parametrize(
    "name",
    [
        "docs/guides/checking.md",
        "docs/guides/models.md",
        "docs/guides/calling.md",
        "docs/guides/approvals.md",
        "docs/guides/policy.md",
        "docs/guides/python-functions.md",
        "docs/formats/python.md",
        "docs/formats/capability.md",
        "docs/reference/exceptions.md",
    ],
)
def test_the_programs_of_a_guide_run(name: str, crib: Path) -> None:
    if name.endswith("calling.md"):
        needs_supervision()
    if name.endswith("approvals.md"):
        (crib / "asking.toml").write_text(blocks(ROOT / name, "toml")[0], encoding="utf-8")
    programs = blocks(ROOT / name, "python")
    assert programs
    for program in programs:
        ran(program, crib)


def test_the_program_of_the_readme_runs(crib: Path) -> None:
    (crib / "manifest").rename(crib / "tools")
    (program,) = blocks(ROOT / "README.md", "python")
    ran(program, crib)


def test_the_configurations_in_the_docs_are_accepted(crib: Path) -> None:
    guides = ("checking", "calling", "policy", "approvals", "secrets", "serving")
    pages = [CONFIGURATION, *(DOCS / "guides" / f"{name}.md" for name in guides)]
    for page in pages:
        for block in blocks(page, "toml"):
            path = crib / "shown.toml"
            path.write_text(block, encoding="utf-8")
            assert config.read_file(str(path), trusted=True).problems == ()


def test_the_hooks_in_the_guide_are_yaml_and_their_entries_run(crib: Path) -> None:
    ci, hooks = (yaml.safe_load(block) for block in blocks(DOCS / "guides" / "checking.md", "yaml"))
    (hook,) = hooks["repos"][0]["hooks"]
    for path in ("tools.json", "a/b_tools.json", "x/SKILL.md", "p/.ai/tools/x/y.py"):
        assert re.search(hook["files"], path)
    assert not re.search(hook["files"], "README.md")
    assert in_shell(hook["entry"], crib)[0] == 0
    assert in_shell(ci["steps"][0]["run"], crib)[0] == 65
    assert (crib / ci["steps"][1]["with"]["sarif_file"]).exists()


# -- links and what must not be there -----------------------------------------------------------------------


def slugs(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text(page), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_between_pages_resolve(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        parts = urlsplit(target)
        if parts.scheme:
            continue
        path = (page.parent / parts.path).resolve() if parts.path else page
        if not path.exists() or (parts.fragment and parts.fragment not in slugs(path)):
            broken.append(target)
    assert broken == []


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        for target in re.findall(r"\]\(([^)\s#]+)", text(page)):
            path = (page.parent / target).resolve()
            if path.is_dir():
                waiting += path.glob("*.md")
            elif path.suffix == ".md" and path.exists():
                waiting.append(path)
    assert [page_id(page) for page in DOCS.rglob("*.md") if page not in seen] == []


def tracked() -> list[Path]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so nothing is tracked")
    listed = subprocess.run(
        [git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=WAIT_S
    )
    return [ROOT / name for name in listed.stdout.decode("utf-8").split("\0") if name]


def this_machine() -> set[str]:
    """Paths and package indexes of the machine that the tests run on."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False).stdout
    places = {f"{ROOT}/"}  # folders above it may be ordinary words, such as /usr or /tmp
    for value in re.findall(r"(?:index-url|find-links)='(.*)'", settings):
        for address in value.split():
            parts = urlsplit(address)
            places.add(parts.hostname or parts.path)
    return places


def test_no_tracked_file_names_this_machine() -> None:
    places = this_machine()
    assert f"{ROOT}/" in places
    wrong = []
    for path in tracked():
        if not path.is_file():
            continue
        content = path.read_bytes().decode("utf-8", "replace")
        for place in places:
            if re.search(rf"(?<![\w.-]){re.escape(place)}", content):
                wrong.append(f"{path.relative_to(ROOT)} names {place}")
    assert wrong == []


def test_requirement_files_name_no_index() -> None:
    for path in (ROOT / "requirements").iterdir():
        assert not re.search(r"^\s*(?:-i|--(?:extra-)?index-url|--find-links)", text(path), re.MULTILINE)
        assert "://" not in text(path)


# -- the HTTP API -------------------------------------------------------------------------------------------


def test_every_route_is_described_with_all_that_it_takes_and_none_that_is_not_there() -> None:
    described = section(HTTP, "Routes")
    parts = dict(re.findall(r"^### (\w+ /\S*)\n(.*?)(?=^### |\Z)", described, re.MULTILINE | re.DOTALL))
    assert list(parts) == [f"{route.method} {route.path}" for route in ROUTES]
    for route in ROUTES:
        part = parts[f"{route.method} {route.path}"]
        taken = [each.name for each in route.parameters]
        taken += route.body["properties"] if route.body is not None else ()
        assert re.findall(r"^\| `([\w-]+)` \|", part, re.MULTILINE) == taken, route.name
        rights = re.findall(r"Needs the right `(\w+)`", part)
        assert rights == ([route.right.value] if route.right is not None else []), route.name


def test_every_error_kind_has_its_http_status() -> None:
    described = section(HTTP, "Answers")
    for kind, row in KINDS.items():
        line = next(line for line in described.splitlines() if f"`{kind}`" in line)
        assert line.startswith(f"| {row.http_status or 503} |"), kind
