"""Every frozen value that travels through the house.

One record stands in the middle: each format compiles *into* ``Tool``; dialects, runtimes, policy and doors
read only ``Tool``. What differs between formats is data on the record, never a question about its origin.

This module is not a place for behaviour: nothing here reads, decides or translates. Above it lies nothing;
everything else lies below.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.errors import Kind, did_you_mean
from toolcrib.jsontext import JsonObject, JsonValue, Pointer
from toolcrib.records import Discreet

# -- problems: wrong declarations are values ----------------------------------------------------------------


class Severity(StrEnum):
    """How much a problem matters: an error drops what it concerns, the others never drop anything."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class FixPart(StrEnum):
    """Which part of a JSON member a fix rewrites."""

    KEY = "key"
    VALUE = "value"


class Fix(Struct, frozen=True, kw_only=True):
    """The one safe mend of a problem, as data.

    In a JSON document ``part`` of the member at ``pointer`` becomes ``new`` (JSON text). In a text document
    (Python, YAML, JavaScript, Bash) ``old`` becomes ``new`` on the problem's line, where it must stand once.
    """

    new: str
    part: FixPart | None = None
    old: str | None = None


class Problem(Struct, frozen=True, kw_only=True):
    """Something wrong with a declaration: where, what, and what to do about it."""

    code: str
    message: str
    path: str
    severity: Severity = Severity.ERROR
    pointer: Pointer | None = None
    line: int | None = None
    name: str | None = None
    hint: str | None = None
    fix: Fix | None = None


class ConditionKind(StrEnum):
    """What a condition asks of the machine."""

    EXECUTABLE_FILE = "executable_file"
    ANY_FILE = "any_file"
    PROGRAMS = "programs"


class Condition(Struct, frozen=True, kw_only=True):
    """Something a declaration needs from this machine, which only the hands can look up.

    Formats are pure, so they cannot see whether a program is installed: they say what they would like to
    know and what it means if the answer is no. Answers are never cached.

    ``EXECUTABLE_FILE``: every one of ``subjects`` is a file we may execute. ``ANY_FILE``: at least one of
    ``subjects`` is a file. ``PROGRAMS``: ``alternatives`` has one tuple whose programs are all on PATH.
    """

    kind: ConditionKind
    otherwise: Problem
    subjects: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, ...], ...] = ()
    drops: bool = False
    """True: without it every tool and skill of the document is left out."""


# -- the schema of arguments --------------------------------------------------------------------------------


class Schema(Struct, frozen=True, eq=False):
    """A JSON Schema as its author wrote it: compact text that keeps the key order, since models see it.

    ``document`` is parsed anew for each reader, so nobody can change the stored one.
    """

    text: bytes

    @staticmethod
    def of(document: JsonObject) -> Schema:
        return Schema(jsontext.compact(document))

    @property
    def document(self) -> JsonObject:
        value = jsontext.loads_own(self.text)
        assert isinstance(value, dict)
        return value

    @property
    def digest(self) -> str:
        return jsontext.digest(self.document)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return self.text == other.text or self.digest == other.digest

    def __ne__(self, other: object) -> bool:  # a Struct has its own, which compares identity
        return not self == other

    def __hash__(self) -> int:
        return hash(self.digest)


class SchemaForm(StrEnum):
    """Whether the format promises the model the author's schema unchanged."""

    VERBATIM = "verbatim"
    ADAPTABLE = "adaptable"


# -- how a tool runs ----------------------------------------------------------------------------------------


class Resolver(Struct, frozen=True, kw_only=True):
    """Turns a value into another by running a script or an allowlisted command; its output is the value."""

    args: tuple[str, ...] = ()
    script: str | None = None
    binary: str | None = None
    subcommand: str | None = None


class Positional(Struct, frozen=True, kw_only=True):
    """A parameter as a bare argv element."""

    param: str
    allow_leading_dash: bool = False
    normalize_newlines: bool = False
    resolver: Resolver | None = None


class Flag(Struct, frozen=True, kw_only=True):
    """A parameter as two argv elements: ``dashes`` with ``flag``, and the value."""

    param: str
    flag: str
    dashes: str = "--"
    normalize_newlines: bool = False
    resolver: Resolver | None = None


class Switch(Struct, frozen=True, kw_only=True):
    """A parameter as one of two fixed argv elements, or none."""

    param: str
    if_true: str | None = None
    if_false: str | None = None


ArgMapping: TypeAlias = Positional | Flag | Switch


class JsonOnStdin(Struct, frozen=True, kw_only=True):
    """Arguments as JSON on standard input; ``verbatim`` hands over the model's own bytes."""

    verbatim: bool


class AsArgv(Struct, frozen=True, kw_only=True):
    """Arguments as argv elements, in the order of ``args``."""

    args: tuple[ArgMapping, ...] = ()
    refuses_paths: bool = False
    """Whether a text that is an absolute path, or leads to a folder above, home or ``.git``, is refused."""


Encoding: TypeAlias = JsonOnStdin | AsArgv


class RunProcess(Struct, frozen=True, kw_only=True):
    """Start a program by argv, never by a shell.

    ``program`` is an absolute path or a bare name looked up on the host's PATH. ``fixed`` stands between
    the program and what the encoding adds. ``allowlist`` holds the only (binary, subcommand) pairs that may
    start, resolvers included; None where the format has no such list.
    """

    program: str
    fixed: tuple[str, ...] = ()
    encoding: Encoding
    allowlist: tuple[tuple[str, tuple[str, ...]], ...] | None = None
    skill_dir: str | None = None
    beneath: str | None = None
    """The folder that the program, its links followed, must lie in."""
    env: tuple[tuple[str, str], ...] = ()
    settings: bytes = b"{}"
    """Author's configuration (compact JSON) that the runtime reads."""


class PythonStyle(StrEnum):
    """How a Python file is called."""

    FUNCTION = "function"
    """``execute(params, project_path)`` of the file."""
    SCRIPT = "script"
    """The file as a program: ``--project-path`` in argv, parameters as JSON on stdin."""
    HANDLER = "handler"
    """``execute_<executor>_tool(tool_name, tool_input, **context)`` of a handler module."""


class CallPython(Struct, frozen=True, kw_only=True):
    """Call into a Python file. ``executor`` names a handler module where the file is not known yet."""

    style: PythonStyle
    file: str | None = None
    executor: str | None = None
    settings: bytes = b"{}"
    """Author's configuration (compact JSON) that the runtime reads."""


class JavaScriptStyle(StrEnum):
    """How a JavaScript or TypeScript file is called."""

    FUNCTION = "function"
    """Its default export, or the ``execute`` that it exports, with the parameters."""
    SCRIPT = "script"
    """The file as a program: ``--project-path`` in argv, parameters as JSON on stdin."""


class CallJavaScript(Struct, frozen=True, kw_only=True):
    """Call into a JavaScript or TypeScript file, on Node."""

    file: str
    style: JavaScriptStyle = JavaScriptStyle.FUNCTION
    settings: bytes = b"{}"


class Place(StrEnum):
    """Where in a request an argument goes."""

    PATH = "path"
    QUERY = "query"
    HEADER = "header"
    COOKIE = "cookie"
    BODY = "body"
    """The whole body."""
    MEMBER = "member"
    """One member of the body's object, or one field of its form."""


class Placed(Struct, frozen=True, kw_only=True):
    """One argument of a request: which it is, where it goes, and how it is written there."""

    argument: str
    place: Place
    name: str
    """Its name in the request: the provider's, where the argument had to be called otherwise."""
    style: str = "form"
    """``simple``, ``label``, ``matrix``, ``form``, ``spaceDelimited``, ``pipeDelimited`` or ``deepObject``;
    in the body of a form also ``field``: a list as one field for each item, an object as JSON."""
    explode: bool = True
    media_type: str | None = None
    """Serialised as this media type instead of by a style."""
    reserved: bool = False
    """Reserved characters of a query value stay as they are."""


class Credential(Struct, frozen=True, kw_only=True):
    """How a request proves who sends it. The value is a secret that is looked up by name at sending."""

    secret: str
    """The variable or secret that holds it; never the value. Empty: one is needed and none is configured."""
    place: Place
    name: str
    prefix: str = ""
    """What stands before the value: ``Bearer ``, ``Basic ``."""


class CallHttp(Struct, frozen=True, kw_only=True):
    """Send an HTTP request that the author's configuration describes.

    ``placed`` says where each argument goes; None: all of them as one JSON object, in the body, or in the
    query of a method that has no body. Arguments are never pasted into ``url``, except percent-encoded at its
    ``{name}`` marks where ``placed`` says so.
    """

    method: str = "POST"
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    placed: tuple[Placed, ...] | None = None
    media_type: str = "application/json"
    """Of the body that is sent."""
    credentials: tuple[Credential, ...] = ()
    settings: bytes = b"{}"


class CallFunction(Struct, frozen=True, kw_only=True):
    """Call a function that the host registered, in the host's own process."""

    name: str
    code: str = ""
    """The digest of its code, for records."""


class CallMcp(Struct, frozen=True, kw_only=True):
    """Call a tool of an MCP server, named by the record that defines the server."""

    server: str
    tool: str
    settings: bytes = b"{}"


class RunContainer(Struct, frozen=True, kw_only=True):
    """Run a program inside a container image."""

    image: str
    command: tuple[str, ...] = ()
    entrypoint: str | None = None
    env_names: tuple[str, ...] = ()


class NotCallable(Struct, frozen=True, kw_only=True):
    """Nothing runs; ``reason`` says why, in the words a caller gets."""

    reason: str


Invocation: TypeAlias = (
    RunProcess | CallPython | CallJavaScript | CallHttp | CallMcp | CallFunction | RunContainer | NotCallable
)


class Reply(StrEnum):
    """How what a runtime returned becomes a result."""

    PLAIN_TEXT = "plain_text"
    JSON_LINE = "json_line"
    ENVELOPE = "envelope"
    SUCCESS_DICT = "success_dict"
    ITEM = "item"
    """A mapping with ``success`` inside an envelope that names the item and its chain."""
    BLOCKS = "blocks"


class Words(StrEnum):
    """In which words a caller is told what is wrong with the arguments."""

    OWN = "own"
    """``mode: must be one of "a", "b" (got string "x")``."""
    FIELDS = "fields"
    """``mode: must be one of ['a', 'b'], got 'x'``: the rye format's message shapes."""


class Intake(Struct, frozen=True, kw_only=True):
    """How raw arguments become checked ones."""

    fill_defaults: bool = False
    drop_null_optional: bool = False
    lenient_booleans: tuple[str, ...] = ()
    reserved_names: tuple[str, ...] = ()
    declared_only: bool = False
    """Refuse arguments that the schema's ``properties`` do not name, whatever else the schema allows."""
    words: Words = Words.OWN


class Retry(Struct, frozen=True, kw_only=True):
    """When and how often a failed call may be repeated."""

    max_attempts: int = 1
    backoff: str = "exponential"
    initial_delay_s: float = 1.0
    max_delay_s: float = 60.0
    multiplier: float = 2.0


BASE_ENV: tuple[str, ...] = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "XDG_*", "TMPDIR",
)  # fmt: skip

LOADER_NAMES: frozenset[str] = frozenset(
    {
        "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME",
        "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX", "PYTHONBREAKPOINT", "PYTHONWARNINGS", "PYTHONPLATLIBDIR",
        "PYTHON_PRESITE",
        "NODE_OPTIONS", "NODE_PATH", "BASH_ENV", "ENV", "IFS", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF",
        "PERL5OPT", "PERL5LIB", "RUBYOPT", "RUBYLIB", "GCONV_PATH", "DYLD_INSERT_LIBRARIES",
        "DYLD_LIBRARY_PATH", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND",
    }
)  # fmt: skip
"""Variables that make a program load or run code: only a host grant hands them over."""


class Needs(Struct, frozen=True, kw_only=True):
    """What a tool asks for. ``stated`` is False where the declaration says nothing about its needs."""

    base_env: tuple[str, ...] = BASE_ENV
    """The host's variables that every tool of the format gets; a trailing ``*`` stands for any ending.
    ``TMPDIR`` is not the host's: it names the call's scratch folder."""

    stated: bool = False
    capabilities: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    timeout_s: float | None = None
    stdout_bytes_max: int | None = None
    """The format's own limit on stdout, where it has one."""


TIMEOUT_S_MAX: Final = 86_400.0
"""No call takes longer than a day, whoever asks."""
URL_CHARS_MAX: Final = 16_384
"""Of a URL that is sent: what builds one and what sends it agree."""


class Level(StrEnum):
    """How strongly a tool is held, from weak to strong."""

    PORTABLE = "portable"
    RESTRICTED = "restricted"
    SUPERVISED = "supervised"


LEVELS: tuple[Level, ...] = tuple(Level)
"""From weak to strong: ``LEVELS.index`` compares them."""


class Profile(StrEnum):
    """What a tool may do that states no needs, from wide to narrow."""

    OPEN = "open"
    PROJECT = "project"
    CLOSED = "closed"


class Programs(StrEnum):
    """Which programs a tool may start."""

    OWN = "own"
    """Its own program and what that needs to start (loader, interpreter)."""
    ANY = "any"
    """Whatever lies where it may read and execute."""


class Limits(Struct, frozen=True, kw_only=True):
    """What one call may use. Every one of them is enforced; none is a wish."""

    timeout_s: float = 30.0
    stdout_bytes_max: int = 8 << 20
    stderr_bytes_max: int = 1 << 20
    memory_bytes_max: int = 2 << 30
    """Of all its processes together."""
    processes_max: int = 128
    open_files_max: int = 1024
    file_bytes_max: int = 1 << 30
    """The longest single file it may write."""
    scratch_bytes_max: int = 256 << 20


class Permit(Struct, frozen=True, kw_only=True):
    """What a tool is granted for a call: the answer to its ``Needs``. Paths are absolute and real.

    Every tool may besides read and execute the system and its interpreter, read its own files, and use a
    scratch folder of its own; ``sandbox/rules.py`` adds these.
    """

    profile: Profile | None = None
    """The profile that answered for a tool that states no needs; None where needs were stated."""
    read: tuple[str, ...] = ()
    """Roots; ``/`` is everything the user may read."""
    write: tuple[str, ...] = ()
    """Roots, which may be read as well; ``/`` is everything the user may write."""
    protected: tuple[str, ...] = ()
    """Stays read-only wherever a writable root holds it."""
    forbidden: tuple[str, ...] = ()
    """Must not come to be. Where the level can, placeholders hold these names during the call; else they are
    looked for after it."""
    git: tuple[str, ...] = ()
    """The folders of repositories that it may write. No link may lead out of them: git would follow it."""
    unprotected: bool = False
    """The host accepts that protected paths cannot be held where there are no mount namespaces."""
    hidden: tuple[str, ...] = ()
    """Never readable: our own state, keys and journal."""
    programs: Programs = Programs.ANY
    network: bool = False
    private: bool = False
    """Where we connect ourselves: also to private addresses."""
    unix_sockets: bool = False
    env: tuple[str, ...] = ()
    """Names of the host's variables it receives; ``*`` is all of them."""
    vault: tuple[str, ...] = ()
    """Those that a grant names: their values may come out of the vault, from secrets of the same names."""
    loads: str = ""
    """The digest of the files besides its own that it may load, as they were verified: these bytes and no
    others. Empty: nobody verified any, and it loads what it finds."""
    limits: Limits = Limits()
    level: Level = Level.PORTABLE
    """The least level that may run it."""


class Charge(Struct, frozen=True, kw_only=True):
    """What one call takes from one budget. Costs are whole millionths."""

    counter: str
    """What it is counted under."""
    calls_max: int | None
    cost_max: int | None
    cost: int
    within_s: float
    because: str
    place: str


class Allow(Discreet, frozen=True, kw_only=True):
    HIDDEN: ClassVar = ("arguments",)
    permit: Permit
    because: str
    notes: tuple[str, ...] = ()
    """What the caller should know though nothing is refused: names that gave nothing."""
    rule: str = ""
    """The place of the rule of ``[[policy]]`` that says so; empty: no rule spoke. So in every decision."""
    charges: tuple[Charge, ...] = ()
    """What has to be reserved, all of it, before anything runs."""
    approval: str = ""
    """The id of the approval that lets it through, which is used up before anything starts."""
    arguments: JsonObject | None = None
    """What the person who approved it put in the place of the call's arguments; None: they stay."""
    edited_by: str = ""
    """Who that was."""


class Ask(Struct, frozen=True, kw_only=True):
    question: str
    """What a person is asked, in one sentence."""
    because: str
    rule: str = ""
    """The rule that asks, for records and people."""


class Deny(Struct, frozen=True, kw_only=True):
    message: str
    """What the caller is told: the format's exact text where it has one."""
    because: str
    """The rule, for records and people."""
    hint: str | None = None
    kind: Kind = Kind.DENIED
    rule: str = ""
    again_s: float | None = None
    """In how many seconds it would be let through, where a budget is used up; None: time changes nothing."""


Decision: TypeAlias = Allow | Ask | Deny


class ApprovalState(StrEnum):
    """How a question to a person stands."""

    WAITING = "waiting"
    APPROVED = "approved"
    DENIED = "denied"
    USED = "used"
    """A call took it, and no other may."""
    EXPIRED = "expired"
    """Nobody answered in time, or nobody called in time."""


class Approval(Discreet, frozen=True, kw_only=True):
    """A call that waits for a person, and what became of it."""

    HIDDEN: ClassVar = (
        "arguments",
        "edited",
    )

    id: str
    key: str
    """The tool's."""
    caller: str
    """As people see it: bounded. ``scope`` covers all of it."""
    arguments: JsonObject
    """As people see them: checked, secrets taken out."""
    question: str
    because: str
    """The rule that asks."""
    call_id: str
    """The call that asked first."""
    asked_at: float
    """Seconds since the epoch, as all moments here."""
    scope: str
    """The digest of key, caller, what the model sees and what runs: all that is asked but the arguments."""
    arguments_digest: str
    state: ApprovalState = ApprovalState.WAITING
    until: float = 0.0
    """When the state is over by itself."""
    standing: bool = False
    """Approved for any arguments, as often as wanted, until then."""
    edited: JsonObject | None = None
    """What the call runs with instead."""
    answered_by: str = ""
    answered_at: float | None = None
    answer_because: str = ""
    used_by: str = ""
    """The call that took it."""


LOCK_NAME: Final = "toolcrib.lock"
"""The lock file, wherever it lies."""
LOCKS: Final = "locks"
"""The folder in which a host remembers, beside its other state, what it approved of lock files."""


class Trust(StrEnum):
    """What is known about a tool's bytes."""

    SIGNED = "signed"
    PINNED = "pinned"
    UNSIGNED = "unsigned"
    UNTRUSTED = "untrusted"
    TAMPERED = "tampered"
    DRIFTED = "drifted"
    BLOCKED = "blocked"
    """Sound itself, but something it needs is not."""


class Vetted(Struct, frozen=True, kw_only=True):
    """What was found out about a tool's bytes, at one moment. Whether it may run is policy's business."""

    trust: Trust = Trust.UNSIGNED
    message: str = ""
    """What is amiss, in the format's own words; empty where nothing is."""
    hint: str | None = None
    signer: str = ""
    """The id of the key that signed it, where one did and is trusted."""
    loads: str = ""
    """The digest of the files besides its own that it may load, as they were verified; empty: none were."""
    blocked_by: str = ""
    """The file that it needs and that is not sound, where it is blocked by one."""
    waived: str = ""
    """Why it may run though something is amiss, where the host decided so: said in results and records."""


# -- when a tool is shown -----------------------------------------------------------------------------------


class Always(Struct, frozen=True, kw_only=True):
    """In every request; keywords serve search only."""

    keywords: tuple[str, ...] = ()


class OnKeywords(Struct, frozen=True, kw_only=True):
    """When the message has one of the keywords."""

    keywords: tuple[str, ...] = ()


class OnContext(Struct, frozen=True, kw_only=True):
    """When the registered check of this name holds for the request's context."""

    check: str | None = None


class OnDemand(Struct, frozen=True, kw_only=True):
    """Only when the model asks for it."""


Selection: TypeAlias = Always | OnKeywords | OnContext | OnDemand


class Effect(StrEnum):
    """What a call does to the world. Unknown counts as change."""

    READ = "read"
    CREATE = "create"
    CHANGE = "change"


WRITE: Final = "write"
"""In rules only: create or change. It is never the effect of a tool."""


class Role(StrEnum):
    """What a record is for."""

    TOOL = "tool"
    """Callable, shown to models."""
    PART = "part"
    """A runtime, primitive, library or server definition: counted and listed, never called or declared."""
    SUPPORT = "support"
    """A neighbour file that other items use: listed, not counted, never called or declared."""


FOUND_FORMATS: Final = ("skill", "manifest", "capability", "rye", "executable")
"""The formats whose declarations are found in folders."""
FILE_FORMATS: Final = (*FOUND_FORMATS, "mcp", "openapi")
"""Those that come out of documents; some of these must be named."""
FORMATS: Final = (*FILE_FORMATS, "python")
"""Where a tool can come from."""
RYE_SUFFIXES: Final = (".py", ".yaml", ".yml", ".json", ".js", ".ts", ".mjs", ".cjs", ".sh", ".toml")
"""Of the files that may be rye tools, in the order in which an id is looked up."""
TOOL_SUFFIX: Final = "-tool"
"""Of programs that are meant to be tools by their names."""
READING: Final = "skill:skills/read_skill"
"""The key of the tool that reads skills on demand."""


class Origin(Struct, frozen=True, kw_only=True):
    """Where a record came from."""

    format: str
    path: str
    pointer: Pointer | None = None
    line: int | None = None
    digest: str = ""
    """SHA-256 of the program that said what it is, as it was then; empty where a file says it."""


class Notes(Struct, frozen=True, kw_only=True):
    """What people and search read about a tool; nothing here changes how it runs."""

    category: str | None = None
    cost: JsonValue = None
    latency: str | None = None
    tags: tuple[str, ...] = ()
    documentation: JsonValue = None
    outputs: JsonValue = None
    metadata: JsonValue = None
    deprecated: bool = False
    experimental: bool = False
    head: str = ""
    """The first characters of the content, for a format's own search."""


class Signature(Struct, frozen=True, kw_only=True):
    """What a file of a format with signatures says about its own; whether it holds is not known here."""

    key: str | None = None
    """The id of the key it names; None: the file is unsigned."""
    item: str = ""
    """The file's address as its format's messages and commands spell it (``tool:ID``)."""
    path: str = ""
    """The file itself."""
    digest: str = ""
    """SHA-256 of the bytes that the record was compiled from: those that must be verified."""
    others: tuple[Signature, ...] = ()
    """The further files that the record was compiled from: the runtimes of its chain, its server."""


class Namesakes(StrEnum):
    """What becomes of a bare name that one format declares twice."""

    REPORTED = "reported"
    """It is told as a clash, and the tools are asked for by their keys."""
    SETTLED = "settled"
    """The format's own linking left one, or has told the clash itself."""
    LATER = "later"
    """The later tool owns it."""


class Habits(Struct, frozen=True, kw_only=True):
    """What a format does in its own way around its calls, as data: nobody asks where a tool came from."""

    namesakes: Namesakes = Namesakes.REPORTED
    day_line: bool = False
    """Each of its calls that started something has a line in the file of the day."""


class Tool(Struct, frozen=True, kw_only=True):
    """One tool, whatever format declared it."""

    key: str
    """``format:scope/name``: stable and unique in a catalog."""
    name: str
    """The format's own name."""
    scope: str
    """What holds the tool in its format: the skill, the group, the folder, the category."""
    origin: Origin
    invocation: Invocation
    description: str = ""
    spoken: str = ""
    """The name to offer to models before a provider's own rules apply; empty: ``name``."""
    aliases: tuple[str, ...] = ()
    """Further bare names for looking the tool up; never shown to models."""
    role: Role = Role.TOOL
    input_schema: Schema | None = None
    output_schema: Schema | None = None
    schema_form: SchemaForm = SchemaForm.ADAPTABLE
    version: str | None = None
    intake: Intake = Intake()
    reply: Reply = Reply.PLAIN_TEXT
    needs: Needs = Needs()
    selection: Selection | None = None
    """None: the format has no rule, so the tool is always shown."""
    effect: Effect = Effect.CHANGE
    effect_from: str = ""
    """Who or what gave the effect; empty: no one did, so it counts as change."""
    declared_effect: Effect | None = None
    """The effect before the configuration replaced it; None: the configuration did not."""
    retry: Retry | None = None
    chain: tuple[str, ...] = ()
    """From the tool to the primitive that runs it, by item id, where the format has such a chain."""
    signature: Signature | None = None
    """None: the format has no signatures, so there is nothing to refuse."""
    habits: Habits = Habits()
    notes: Notes = Notes()

    def replace(self, **changes: Any) -> Tool:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


class Skill(Struct, frozen=True, kw_only=True):
    """A folder of instructions that may bring tools."""

    name: str
    path: str
    description: str = ""


# -- documents in, compiled values out ----------------------------------------------------------------------


class ProbeOutcome(Struct, frozen=True, kw_only=True):
    """What came back when a program was asked for its schema."""

    exit_status: int | None = None
    """None when it was killed or could not start."""
    timed_out_s: float | None = None
    too_long_bytes: int | None = None
    """The limit that the output went over."""
    start_error: str | None = None
    start_hint: str | None = None
    """What to do about that, where it is not the program's fault."""
    stderr_tail: str = ""
    digest: str = ""
    """SHA-256 of the program that answered; empty: nobody looked."""
    is_locked: bool = False
    """It was not asked, since it is not as it was locked: the answer is the one that was locked."""


class OpenApiOptions(Struct, frozen=True, kw_only=True):
    """What whoever named an OpenAPI document says about it; nothing of this comes from the document."""

    name: str = ""
    """What the API is called in keys; empty: as its file."""
    tags: tuple[str, ...] = ()
    """Only operations with one of these tags; empty: all."""
    paths: tuple[str, ...] = ()
    """Only paths that fit one of these patterns (``/repos/*``), and none that fits one with a ``!`` before
    it; empty: all."""
    secret: str = ""
    """The name of the secret that authenticates, or ``SCHEME=NAME, SCHEME=NAME`` where there are several."""
    base_url: str = ""
    """Where the document came from: relative addresses of servers start there."""


class Document(Discreet, frozen=True, kw_only=True):
    """One declaration as it lies in its place, read by the hands and not yet understood.

    ``place`` is the format when the directory or an option decides it, else None: then the structure does.
    ``item`` is the path below the root that gives the declaration its identity (rye's item id, with
    suffix). ``space`` is the rank of the root it came from, 0 first. ``explicit`` is True for a file that
    was named itself instead of being found in a folder.
    """

    HIDDEN: ClassVar = ("server",)

    path: str
    content: bytes | None
    unreadable: str | None = None
    """Why there is no content, in a few words."""
    parsed: jsontext.Parsed | None = None
    """The strict reading of a JSON document."""
    place: str | None = None
    item: str = ""
    scope: str = ""
    space: int = 0
    explicit: bool = False
    neighbours: Mapping[str, bytes] = field(default_factory=dict)
    among_groups: bool = False
    """Group files lie beside it, so that a JSON file which cannot be read was probably one of them."""
    handlers: tuple[str, ...] = ()
    """Directories in which handler modules of this document are looked for."""
    probe: ProbeOutcome | None = None
    project: str = ""
    """The root of the project the document belongs to."""
    server: str = ""
    """For what an MCP server listed: the server as it was named, in one line. It may hold secrets."""
    hint: str | None = None
    """What to do about ``unreadable``, where whoever tried to read it knows."""
    openapi: OpenApiOptions | None = None
    """None: nobody who may do so asked for an OpenAPI document, so that one which is found is not loaded."""
    asked: str = ""
    """The format that its source was named with; another one is then a mistake, and not only unexpected."""


class Rules(Struct, frozen=True, kw_only=True):
    """What the host's configuration says about reading declarations; a value, handed to every format."""

    manifest_strict: bool = False
    skills_disabled: tuple[str, ...] = ()
    read_on_demand: bool = False
    context_checks: tuple[str, ...] = ()
    executors: tuple[str, ...] = ()
    """Executor names and groups for which the host registered handlers."""
    windows: bool = False


class Compiled(Struct, frozen=True, kw_only=True):
    """What one document became."""

    tools: tuple[Tool, ...] = ()
    broken: tuple[Tool, ...] = ()
    """Tools that an error leaves out and that linking still looks at: their ids stay taken, and what is wrong
    with the items that they lead to is reported with their own errors."""
    problems: tuple[Problem, ...] = ()
    conditions: tuple[Condition, ...] = ()
    skills: tuple[Skill, ...] = ()
    notes: tuple[str, ...] = ()
    """Things only verbose output names, such as files that are not tools."""
    whole: bool = False
    """One tool that cannot be taken takes the whole document with it."""
    again_s: float | None = None
    """After how many seconds the document may say something else, its file unchanged; None: never."""


class Unit(Struct, frozen=True, kw_only=True):
    """A compiled document with what linking needs to know about its place."""

    path: str
    compiled: Compiled
    item: str = ""
    space: int = 0


class Linked(Struct, frozen=True, kw_only=True):
    """All documents of one format, put together by that format's own rules."""

    tools: tuple[Tool, ...] = ()
    skills: tuple[Skill, ...] = ()
    problems: tuple[Problem, ...] = ()


# -- calls and results --------------------------------------------------------------------------------------


class Reach(Struct, frozen=True, kw_only=True):
    """Which tools a caller may know of at all: by key and by effect. The others look absent to it."""

    tools: tuple[str, ...] = ("*",)
    """Patterns of keys, as in grants."""
    effects: frozenset[Effect] = frozenset(Effect)


class Right(StrEnum):
    """What a caller of the server may do besides looking at tools and their problems."""

    CALL = "call"
    APPROVE = "approve"
    """Answer the calls that wait for a person."""
    AUDIT = "audit"
    """Read the records of everybody's calls."""
    ADMIN = "admin"
    """Reload, switch tools on and off."""


class Guest(Struct, frozen=True, kw_only=True):
    """Who makes a request, and how far they may go."""

    name: str
    """The caller in records and rules."""
    reach: Reach | None = None
    """Which tools there are for them; None: all."""
    rights: frozenset[Right] = frozenset(Right)
    token_id: str | None = None


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call as a model or a person made it."""

    id: str
    tool: str
    """The tool's key, or the name as spoken where nothing of that name was declared."""
    arguments: JsonObject | None
    """None when the raw text is not a JSON object; ``defect`` says why."""
    raw: str = ""
    """The arguments exactly as they came."""
    spoken: str = ""
    """The name on the wire, which some providers want back with the result."""
    defect: str | None = None
    declared: bool = True
    """False when the spoken name belongs to no declared tool."""
    near: tuple[str, ...] = ()
    """Then, which declared names may have been meant."""
    caller: str = ""
    """Who asked, as the door knows them."""
    conversation: str = ""
    context: Mapping[str, object] = field(default_factory=dict)
    """From the host, never from the model."""
    timeout_s: float | None = None
    """The caller's own limit, which wins over the tool's."""
    dry_run: bool = False
    approved_by: str = ""
    """The person who has answered yes in advance, should a rule ask."""
    idempotency_key: str | None = None
    """Calls with the same one run once; the later ones get the first one's result."""
    runs_digest: str | None = None
    """Of what was recorded as running; a runtime starts nothing else."""
    seen_digest: str | None = None
    """Of what the model was told about the tool."""
    approval_wait_s: float = 0.0
    """How long to wait for a person, should a rule ask; none of it counts as the tool's time."""
    reach: Reach | None = None
    """Which tools its caller may know of; None: all."""


class Grant(Struct, frozen=True, kw_only=True):
    """What the host's configuration gives to the tools whose key fits ``pattern``."""

    pattern: str
    needs: tuple[str, ...] | None = None
    """None: it says nothing about needs, as a grant of variables alone does; empty: it grants none."""
    env: tuple[str, ...] = ()


class StatedEffect(Struct, frozen=True, kw_only=True):
    """The effect that a configuration gives to the tools whose key matches ``pattern``."""

    pattern: str
    effect: Effect
    file: str = ""
    line: int | None = None
    may_lower: bool = True
    """False: the file is not trusted, so it may only raise an effect."""


class CallFacts(Struct, frozen=True, kw_only=True):
    """What the record of a call's beginning says besides the call."""

    door: str
    key: str | None = None
    """None: no such tool."""
    format: str | None = None
    catalog: str = ""
    """The version of the catalog that this call uses to its end."""
    seen_digest: str | None = None
    """Of what the model sees: name, description, schemas."""
    runs_digest: str | None = None
    """Of what runs: the invocation and the program or script file."""


class ToolError(Struct, frozen=True, kw_only=True):
    """A wrong call, as a value."""

    kind: Kind
    message: str
    hint: str | None = None
    details: JsonValue = None


class TextBlock(Struct, frozen=True, kw_only=True):
    text: str
    more: JsonObject | None = None
    """Members that came with it besides (annotations), handed on as they are; so in every block."""


class ImageBlock(Struct, frozen=True, kw_only=True):
    data: str
    """Base64."""
    media_type: str
    more: JsonObject | None = None


class AudioBlock(Struct, frozen=True, kw_only=True):
    data: str
    media_type: str
    more: JsonObject | None = None


class ResourceLink(Struct, frozen=True, kw_only=True):
    uri: str
    name: str
    media_type: str | None = None
    more: JsonObject | None = None


class EmbeddedResource(Struct, frozen=True, kw_only=True):
    uri: str
    text: str | None = None
    data: str | None = None
    media_type: str | None = None
    more: JsonObject | None = None


Block: TypeAlias = TextBlock | ImageBlock | AudioBlock | ResourceLink | EmbeddedResource


class End(StrEnum):
    """How a run came to its end."""

    EXITED = "exited"
    """A process ended by itself; ``exit_status`` or ``signal`` says how."""
    RETURNED = "returned"
    """A function returned ``value``."""
    RAISED = "raised"
    """A function raised; ``reason`` is the exception's text."""
    NOT_STARTED = "not_started"
    """The operating system refused to start it; ``reason`` says why."""
    UNAVAILABLE = "unavailable"
    """We refused to start it: something it needs is not there."""
    DENIED = "denied"
    """We refused to start it: it may not."""
    REFUSED = "refused"
    """We refused to start it: the arguments cannot be handed over."""
    TIMED_OUT = "timed_out"
    TOO_LARGE = "too_large"
    """stdout or stderr went over its limit, and it was stopped."""
    OVER_LIMIT = "over_limit"
    """It took more memory, processes or scratch space than it may, and was stopped; ``reason`` names it."""
    CANCELLED = "cancelled"
    UNREADABLE = "unreadable"
    """A function returned what JSON cannot carry; ``reason`` says what."""
    LOST = "lost"
    """It had started and contact was lost: the outcome is unknown, which is not success."""


class Usage(Struct, frozen=True, kw_only=True):
    """What the kernel counted for a run and its descendants."""

    user_ms: float = 0.0
    system_ms: float = 0.0
    memory_bytes: int = 0
    """The largest resident set of one process."""


class Run(Struct, frozen=True, kw_only=True):
    """One start of a program or function, as records tell it. No value of a variable is ever in it."""

    argv: tuple[str, ...] = ()
    cwd: str = ""
    env_names: tuple[str, ...] = ()
    exit_status: int | None = None
    """-1: stopped by us. 128 + signal: death by a signal."""
    duration_ms: float = 0.0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    truncated: bool = False
    what: str = "call"
    """``call``, ``resolver``, ``schema``, ``redirect`` (a request that led on to another) or ``attempt`` (one
    that was repeated)."""
    note: str = ""


class HeldName(Struct, frozen=True, kw_only=True):
    """A name of ``Permit.forbidden`` that a mount held while a tool ran."""

    path: str
    stamp: tuple[int, int, int]
    """What was mounted: device, inode and, of a file, when it last changed."""


class Ending(Struct, frozen=True, kw_only=True):
    """What a runtime returns: how a run ended and what it gave, before the format's words for it."""

    end: End
    exit_status: int | None = None
    """Only when it exited by itself; 128 + signal for death by a signal."""
    signal: int | None = None
    stdout: bytes = b""
    """At most the limit: the beginning."""
    stderr: bytes = b""
    """At most the limit: the end."""
    stdout_bytes: int = 0
    """All that came."""
    stderr_bytes: int = 0
    value: JsonValue = None
    """What a function returned, as JSON."""
    kind_of_value: str = ""
    """The name of the returned value's type, for messages."""
    blocks: tuple[Block, ...] | None = None
    """Content that came as blocks; ``value`` is its structured form, where there is one."""
    reason: str = ""
    hint: str | None = None
    again_s: float | None = None
    """Nothing was done, and it may be tried again after so long; None: nobody said so."""
    usage: Usage = Usage()
    layers: tuple[str, ...] = ()
    held: tuple[HeldName, ...] | None = ()
    """The names that the tool could not take. What is there afterwards is another program's. None: no program
    ran on this machine."""
    runs: tuple[Run, ...] = ()
    """Every start that the call made, resolvers first."""
    notes: tuple[str, ...] = ()
    """What the caller should know though nothing failed."""
    near: tuple[str, ...] = ()
    """The names that were probably meant, if the call named something that is not there."""


class Spent(Struct, frozen=True, kw_only=True):
    """What a call cost."""

    duration_ms: float = 0.0
    output_bytes: int = 0
    truncated: bool = False
    usage: Usage = Usage()
    attempts: int = 1


class ToolResult(Struct, frozen=True, kw_only=True):
    """What a call gave."""

    call_id: str
    key: str = ""
    blocks: tuple[Block, ...] = ()
    data: JsonValue = None
    error: ToolError | None = None
    spent: Spent = Spent()
    isolation: tuple[str, ...] = ()
    """The layers in force, and the profile (``profile:open``) where needs were undeclared."""
    notes: tuple[str, ...] = ()
    """What happened besides: arguments repaired, names dropped, characters escaped."""
    runs: tuple[Run, ...] = ()
    """For the record, not for the model."""
    rule: str = ""
    """The place of the rule or budget that decided the call, for the record; empty: none spoke."""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def content(self) -> str:
        """The text that the model sees."""
        if len(self.blocks) == 1 and isinstance(only := self.blocks[0], TextBlock):
            return only.text
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    @property
    def advice(self) -> list[str]:
        """What was probably meant, where a tool was called by a wrong name. Formats promise an exact text for
        the call, so models are told this behind it."""
        details = self.error.details if self.error is not None else None
        near = details.get("did_you_mean") if isinstance(details, dict) else None
        return [did_you_mean(near)] if isinstance(near, list) and near else []


# -- selection ----------------------------------------------------------------------------------------------


class Disabled(Struct, frozen=True, kw_only=True):
    """A tool switched off by name, for good or until a moment (seconds since the epoch)."""

    tool: str
    reason: str = ""
    until: float | None = None


class Choice(Struct, frozen=True, kw_only=True):
    """One tool that a message sees, or does not, and why."""

    key: str
    name: str
    because: str
    score: float | None = None


class Selected(Struct, frozen=True, kw_only=True):
    """The answer of a selection."""

    chosen: tuple[Choice, ...]
    left_out: tuple[Choice, ...] = ()
    note: str = ""


# -- dialects -----------------------------------------------------------------------------------------------


class ToolMode(StrEnum):
    """How strictly a provider is asked to follow the schema."""

    PLAIN = "plain"
    STRICT = "strict"
    RECORDED = "recorded"
    """Strict at the top level only, byte for byte as the executable format's original did it."""


class Loss(Struct, frozen=True, kw_only=True):
    """Something a provider's form could not express."""

    tool: str
    """The tool's key."""
    pointer: Pointer
    keyword: str
    what: str


class LeftOut(Struct, frozen=True, kw_only=True):
    """A tool that a provider cannot take, and why."""

    tool: str
    because: str


class NameMap(Struct, frozen=True, kw_only=True):
    """The way back from the wire: spoken names to keys, and the nulls that strict mode provoked."""

    keys: Mapping[str, str]
    """Spoken name to key."""
    nullable: Mapping[str, tuple[Pointer, ...]] = field(default_factory=dict)
    """Key to the places (pointers into the schema) that strict mode made nullable."""

    def spoken(self, key: str) -> str | None:
        for name, owner in self.keys.items():
            if owner == key:
                return name
        return None


class DeclareOptions(Struct, frozen=True, kw_only=True):
    """What a caller asks of a declaration."""

    mode: ToolMode = ToolMode.PLAIN
    deferred: frozenset[str] = frozenset()
    """Keys of tools to hand over by the provider's own deferred loading, where it has one."""
    examples: bool = False
    """Send documented examples in the provider's own field, where it has one."""
    among: tuple[Tool, ...] = ()
    """All tools whose names must stay distinct; empty: only those declared. Keeps names stable while
    the selection changes."""


class Declared(Struct, frozen=True, kw_only=True):
    """What a provider would be sent, the way back, and what got lost."""

    payload: list[JsonObject]
    names: NameMap
    losses: tuple[Loss, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    note: str = ""
    """Why the payload is empty, or what went wrong while tools were selected; empty: nothing to say."""
