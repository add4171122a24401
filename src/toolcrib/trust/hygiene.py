"""What a declaration says besides what it declares: texts that hide something, speak to the model instead of
about the tool, look like another's name, or ask for more than they need. Pure and total; time is linear.

Every finding is a warning: what is suspicious is for a person to judge, so nothing is left out and nothing is
changed here. It does not decide whether a tool may run (``policy``), and it does not look at code: a
declaration without a finding is not thereby harmless. ``catalog/loading.py`` calls it when problems are asked
for, never while loading.
"""

from __future__ import annotations

import base64
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from toolcrib.jsontext import JsonValue
from toolcrib.model import Effect, Problem, Role, RunProcess, Severity, Skill, Tool

CODES: Final = (
    "hygiene.hidden-characters",
    "hygiene.instructions",
    "hygiene.look-alike",
    "hygiene.names-other-tool",
    "hygiene.broad-needs",
)
_QUOTED_CHARS_MAX: Final = 60
_TOLD_MAX: Final = 3
_NAME_CHARS_MAX: Final = 64
"""Longer names are compared only whole: no provider takes them."""
_NAMES_MAX: Final = 20_000
"""Beyond so many tools slips of the pen are not looked for: their number grows with all the letters."""
_SHARED_MAX: Final = 8
"""Of the tools that look alike so many are compared with the next one."""


class _Text(NamedTuple):
    """One text that a model sees, and where it stands in the declaration."""

    place: str
    text: str
    is_name: bool = False


_Home = tuple[str, str]


class Neighbours(NamedTuple):
    """What tools are to each other: all that is known of a tool only where the others are."""

    problems: tuple[Problem, ...]
    owners: Mapping[str, Mapping[_Home, str]]
    """Whose the names are that are no words by chance, and the keys of their tools; empty where all tools are
    one author's."""


def compare(tools: Sequence[Tool]) -> Neighbours:
    """Look at all tools together. Their texts are not read, which would take longest."""
    named = [tool for tool in tools if tool.role is Role.TOOL]
    return Neighbours((*_look_alikes(named), *_broad_needs(tools)), _owners(named))


def look(
    tools: Sequence[Tool], skills: Sequence[Skill] = (), among: Neighbours | None = None
) -> list[Problem]:
    """Everything suspicious about these declarations, the same kind together, each kind in catalog order.
    ``among``: all tools, where these are some of them; what their neighbours show is told as well."""
    among = compare(tools) if among is None else among
    found: dict[str, list[Problem]] = {code: [] for code in CODES}
    for problem in among.problems:
        found[problem.code].append(problem)
    spoken: list[tuple[Tool, list[_Text]]] = []
    for tool in tools:
        texts = _texts(tool)
        if tool.role is Role.TOOL:
            spoken.append((tool, texts))
        for code, message, hint in _in_texts(texts):
            found[code].append(_problem(tool, code, message, hint))
    for skill in skills:
        own = [_Text("name", skill.name, True), _Text("description", skill.description)]
        for code, message, hint in _in_texts(own):
            found[code].append(
                Problem(
                    code=code,
                    severity=Severity.WARNING,
                    message=f'skill "{_cut(skill.name)}": {message}',
                    path=skill.path,
                    name=skill.name,
                    hint=hint,
                )
            )
    found["hygiene.names-other-tool"] += _names_others(spoken, among.owners)
    return [problem for code in CODES for problem in found[code]]


def _problem(tool: Tool, code: str, message: str, hint: str) -> Problem:
    return Problem(
        code=code,
        severity=Severity.WARNING,
        message=f'"{_cut(tool.name)}": {message}',
        path=tool.origin.path,
        pointer=tool.origin.pointer,
        line=tool.origin.line,
        name=tool.name,
        hint=hint,
    )


def _cut(text: str) -> str:
    return text if len(text) <= _QUOTED_CHARS_MAX else text[: _QUOTED_CHARS_MAX - 1] + "…"


def _home(tool: Tool) -> _Home:
    """Whose a tool is: what one author wrote together. A server, a skill, a group, an API, a project."""
    if tool.signature is not None:  # categories are folders of one project
        return tool.origin.format, tool.origin.path.partition("/.ai/")[0]
    return tool.origin.format, tool.scope


# -- the texts that a model sees ----------------------------------------------------------------------------


def _texts(tool: Tool) -> list[_Text]:
    found = [_Text("name", tool.name, True), _Text("description", tool.description)]
    if tool.spoken and tool.spoken != tool.name:
        found.append(_Text("name for models", tool.spoken, True))
    for which, schema in (("input schema", tool.input_schema), ("output schema", tool.output_schema)):
        if schema is not None:
            found += _in_schema(which, schema.document)
    return found


def _in_schema(which: str, document: JsonValue) -> Iterator[_Text]:
    """Every word of a schema: models read titles, enumerations, defaults and names like descriptions."""
    pending: list[tuple[str, JsonValue]] = [("", document)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, str):
            yield _Text(f"{which}: {place}", value)
        elif isinstance(value, dict):
            for key, inner in reversed(value.items()):
                if key not in _WORDS:
                    yield _Text(f"{which}: {place}", key, True)
                if key not in ("$ref", "$schema", "type"):
                    pending.append((f"{place}.{_cut(key)}" if place else _cut(key), inner))
        elif isinstance(value, list):
            pending += [(place, inner) for inner in reversed(value)]


_WORDS: Final = frozenset(
    {
        "type", "properties", "required", "description", "title", "items", "enum", "default", "examples",
        "additionalProperties", "anyOf", "oneOf", "allOf", "format", "minimum", "maximum", "$defs", "$ref",
    }
)  # fmt: skip
"""Keywords that stand in nearly every schema: looking at them costs time and shows nothing."""


def _in_texts(texts: Sequence[_Text]) -> Iterator[tuple[str, str, str]]:
    """Code, message and hint of what single texts show."""
    whole = "\n".join([text for _, text, _ in texts])
    if not (whole.isascii() and whole.isprintable()) and (told := _hidden_told(texts)):
        yield "hygiene.hidden-characters", told, _HIDDEN_HINT
    if told := _instructions_told(texts, whole):
        yield "hygiene.instructions", told, _INSTRUCTIONS_HINT


# -- characters that nobody sees ----------------------------------------------------------------------------

_HIDDEN_HINT: Final = (
    "models read what people cannot see: delete these characters, or keep the tool out until its author says "
    "what they are for"
)


@cache
def _unseen() -> re.Pattern[str]:
    """Controls, characters without width, bidirectional controls, carriers and private use."""
    return re.compile(
        "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
        "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0"
        "\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
    )


@cache
def _flags() -> re.Pattern[str]:
    """The three flags that are spelt with tag characters."""
    spelt = ("gbeng", "gbsct", "gbwls")
    tags = ("".join(chr(0xE0000 + ord(letter)) for letter in name) for name in spelt)
    return re.compile("\U0001f3f4(?:" + "|".join(tags) + ")\U000e007f")


def hidden_in(text: str) -> list[str]:
    """The characters of a text that nobody sees and that no script and no emoji needs where they stand."""
    if text.isascii():
        return [] if text.isprintable() else [match.group() for match in _unseen().finditer(text)]
    if "\U000e007f" in text:
        text = _flags().sub("\U0001f3f4", text)
    found = list(_unseen().finditer(text))
    if not found:
        return []
    is_right_to_left = any(
        char.isalpha() and unicodedata.bidirectional(char) in ("R", "AL") for char in set(text)
    )
    return [match.group() for match in found if not _is_needed(text, match.start(), is_right_to_left)]


def _is_needed(text: str, at: int, is_right_to_left: bool) -> bool:
    """Whether a character without a shape of its own does, where it stands, what it is there for."""
    char = text[at]
    before = text[at - 1] if at else " "
    after = text[at + 1] if at + 1 < len(text) else " "
    if char in "\u200e\u200f\u061c\u2066\u2067\u2068\u2069\u202a\u202b\u202c":
        # Marks, isolates and embeddings belong into a text that has words of both directions. Attack: an
        # override (U+202D, U+202E) shows any text backwards; no prose needs one.
        return is_right_to_left and before != char
    if char in "\u200c\u200d":
        # Joiners shape Persian, Arabic and Indian words, and put emoji together.
        return _joins(before) or (char == "\u200d" and _is_pictured(before) and _is_pictured(after))
    if char == "\u200b":  # where a line may break: in scripts that write no spaces, and in paths
        return after == "/" or (_is_within(before, _UNSPACED) and _is_within(after, _UNSPACED))
    if "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef":
        # One selector behind something that has variants. Attack: a row of them carries any bytes unseen.
        return _has_variants(before) and not _unseen().match(after if after != "\u200d" else " ")
    if char in "\u180b\u180c\u180d\u180e\u180f":
        return _is_within(before, ((0x1800, 0x18AF),))
    if char == "\u034f":
        return not before.isascii() and unicodedata.category(before)[0] in "LM"
    if char in "\u115f\u1160":
        return _is_within(before, ((0x1100, 0x11FF),)) or _is_within(after, ((0x1100, 0x11FF),))
    return False


_UNSPACED: Final = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x1AAF), (0xA980, 0xAADF))
_JOINED: Final = ((0x0600, 0x08FF), (0x0900, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x18AF), (0x1A20, 0x1C4F),
                  (0xA800, 0xABFF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFE), (0x10A00, 0x11FFF))  # fmt: skip
_PICTURES: Final = (
    (0x2190, 0x2BFF),
    (0x3030, 0x303D),
    (0x3297, 0x3299),
    (0x1F000, 0x1FAFF),
    (0xFE0F, 0xFE0F),
)


def _is_within(char: str, ranges: Sequence[tuple[int, int]]) -> bool:
    point = ord(char)
    return any(first <= point <= last for first, last in ranges)


def _joins(char: str) -> bool:
    return _is_within(char, _JOINED) and unicodedata.category(char)[0] in "LM"


def _is_pictured(char: str) -> bool:
    return _is_within(char, _PICTURES)


def _has_variants(char: str) -> bool:
    if char.isascii():
        return char in "#*0123456789"
    return unicodedata.category(char)[0] in "LSPMN" and _unseen().match(char) is None


def _hidden_told(texts: Sequence[_Text]) -> str:
    seen: Counter[str] = Counter()
    places: dict[str, None] = {}
    spelt = ""
    for place, text, _ in texts:
        if found := hidden_in(text):
            seen.update(found)
            places[place] = None
            spelt = spelt or _spelt(found)
    if not seen:
        return ""
    count = seen.total()
    kinds = ", ".join(_named(char) for char, _ in seen.most_common(_TOLD_MAX))
    more = f" and {len(seen) - _TOLD_MAX} other kinds" if len(seen) > _TOLD_MAX else ""
    what = "a character that nobody sees" if count == 1 else f"{count} characters that nobody sees"
    told = f"{_listed([*places])}: {what} ({kinds}{more})"
    return told + (f', which spell "{_cut(spelt)}"' if spelt else "")


def _listed(places: Sequence[str]) -> str:
    more = len(places) - _TOLD_MAX
    return ", ".join(places[:_TOLD_MAX]) + (f" and {more} more" if more > 0 else "")


def _named(char: str) -> str:
    name = unicodedata.name(char, "")
    return f"U+{ord(char):04X}{' ' + name if name else ''}"


def _spelt(chars: Sequence[str]) -> str:
    """What tag characters, or selectors that stand for bytes, say to those who can read them."""
    tags = "".join(chr(ord(char) - 0xE0000) for char in chars if "\U000e0020" <= char <= "\U000e007e")
    if len(tags) > 1:
        return tags
    carried = bytes(_byte_of(char) for char in chars if _byte_of(char) >= 0)
    text = carried.decode("utf-8", "replace")
    return text if len(text) > 1 and text.isprintable() and "\ufffd" not in text else ""


def _byte_of(char: str) -> int:
    point = ord(char)
    if 0xFE00 <= point <= 0xFE0F:
        return point - 0xFE00
    return point - 0xE0100 + 16 if 0xE0100 <= point <= 0xE01EF else -1


# -- texts that speak to the model --------------------------------------------------------------------------

_INSTRUCTIONS_HINT: Final = (
    "a description says what a tool does; read it whole, and keep the tool out until you know why it says so"
)
_ENCODED_CHARS_MIN: Final = 160


class _Family(NamedTuple):
    """One way to speak to the model: what it is told as, and how it is recognised in text of one line, in
    small letters, with single spaces. Quantifiers are bounded, so that no text makes matching slow."""

    what: str
    signs: tuple[str, ...]
    """Without one of these nothing of the pattern fits: they are found fast."""
    pattern: str


_VERBS: Final = "(?:call|use|run|invoke|execute|consult)"
_TOOLS: Final = "(?:tools?|functions?)"
_WEAK: Final = "(?:all|any|every|the|of|these|those|such|and|or|other|current)"
_EARLIER: Final = "(?:previous|previously|prior|above|earlier|preceding|former|past|your)"
_STRONG: Final = (
    "(?:previous|prior|above|earlier|preceding|former|past|your|my|system|developer|original|safety)"
)
_PERSON: Final = "(?:the|your|any|this) (?:end )?(?:users?|humans?|persons?|operators?|customers?)"

_HANDING: Final = (
    "send|pass|include|append|copy|put|provide|forward|post|upload|attach|insert|write|encode|leak|exfiltrate"
    "|transmit|embed|share|give|add|paste|dump"
)
_LEAKING: Final = "send|leak|exfiltrate|transmit|encode|smuggle"
"""What honest tools do not do with the keys and variables that their own API manages."""
_BETWEEN: Final = r"[\w'`./~(-]{0,39}[\w'`/~)-],?"
"""A word in the middle of a sentence."""
_TALK: Final = (
    "(?:(?:entire|full|whole|complete|previous|prior|current) (?:conversations?|chats?|dialogues?)"
    "|(?:entire|full|whole|complete|previous|prior) messages? (?:of|from|by) (?:the|your|this) (?:end )?user"
    "|(?:conversation|chat|message) history|(?:system|developer) prompt)"
)
"""What was said to the model and by it."""
_INTO: Final = "(?:to|into|onto|in|within)(?: (?:the|a|an|your|this|its|our|each|every|my))?"
_TALK_BETWEEN: Final = (
    # To add a message to a chat history, or a text to a system prompt, takes nothing out of it.
    rf"(?:(?:everything|anything|all|whatever|text) (?:that is )?in|(?!{_INTO} {_TALK}\b){_BETWEEN})"
)
_KEPT: Final = r"(?:ssh (?:private )?keys?|private keys?|environment variables?(?! names?\b))"
"""Secrets of the user's machine. Many honest tools manage their own service's, by the same words."""
_WHOSE: Final = (
    "(?:(?:all|every|each|local|current)(?: of)?(?: the| your)?"
    "|(?:the|this|your) (?:users?|humans?|hosts?|machines?|systems?|process|computers?)(?:'s|')?"
    "|contents? of(?: the| your| all| every){0,2}(?: users?'?s?)?(?= ssh)"
    "|(?:full|complete|whole) (?:list|dump|set) of(?: the| your| all){0,2})"
)
_FOUND: Final = (
    " (?:found|that (?:you|it) (?:can )?(?:finds?|sees?)|on (?:this|the|your) (?:machine|computer|host|disk)"
    "|of (?:this|the) (?:users?|machine|host|process|computer|agent|client|shell)"
    "|from (?:this|the|your) (?:machine|keychain|computer|disk|user))"
)
_CHANNEL: Final = (
    " (?:in|into|to|as|within|inside|via|through|for|under)(?: the| this| a| an| its| our)?"
    "(?: parameter| argument| field| input)? [`'\"(]?(?:notes?|side ?notes?|debug\\w*|telemetry|metadata"
    "|feedback|comments?|context|reasons?|logs?|scratchpad|memory|webhooks?|urls?|quer(?:y|ies)|messages?"
    "|descriptions?|extra|https?)"
)
"""Where data goes that has no place: no honest tool asks for a key there."""
_DATA: Final = (
    r"(?:=(?=[) &]|$|\.\.)|(?<![a-z])(?:data|conversations?|chats?|messages?|histor(?:y|ies)|secrets?|keys?"
    r"|tokens?|passwords?|prompts?|results?|answers?|inputs?|contents?|context|summary|summaries|texts?|env"
    r"|info|user)(?![a-z]))"
)
"""In the query of an address: a place for data, or nothing where the model is to put some."""

_FAMILIES: Final = (
    _Family(
        "asks to set other instructions aside",
        ("ignore", "disregard", "forget", "override", "bypass", "attention"),
        rf"\b(?:ignore|disregard|forget|override|bypass|pay no attention to)(?: {_WEAK}){{0,4}}"
        rf"(?: {_STRONG}(?: {_WEAK}| {_STRONG}| given| stated){{0,4}}"
        r" (?:instructions?|prompts?|directions?|directives?|guidelines?|guardrails?)"
        rf"| {_EARLIER}(?: {_WEAK}| {_STRONG}){{0,4}} (?:rules?|polic(?:y|ies)|restrictions?|constraints?"
        r"|commands?|messages?|tasks?|context))\b"
        r"|\b(?:ignore|disregard|forget) (?:everything|anything|all)(?: that)?(?: you)?"
        r"(?: was| is| has been| were)?"
        r"(?: said| written| stands| came| told| know)? (?:above|before this|earlier|previously)\b",
    ),
    _Family(
        "asks to hide something from the user",
        ("tell", "mention", "inform", "reveal", "notify", "disclos", "alert", "hide", "conceal", "keep"),
        r"\b(?:do not|don't|dont|never|must not|mustn't|should not|shouldn't|without)(?: \w{1,20}){0,2}? "
        r"(?:tell|telling|mention|mentioning|inform|informing|reveal|revealing|notify|notifying|disclose"
        r"|disclosing|alert|alerting)"
        rf"(?: [\w']{{1,30}}){{0,6}}? {_PERSON}\b"
        r"|\b(?:do not|don't|never) (?:mention|reveal|disclose) (?:this|these|your|that you)\b"
        rf"|\b(?:hide|conceal|keep) (?:this|it|that|these|them)(?: \w{{1,20}}){{0,3}}? from {_PERSON}\b",
    ),
    # The same two in other languages: their commonest wordings alone.
    _Family(
        "asks to set other instructions aside",
        ("ignor", "vergiss", "oubli", "olvid", "忽略", "忽視", "无视", "無視", "忘记"),
        r"\b(?:ignorier\w{0,2}|vergiss)(?: \w{1,12}){0,3}? "
        r"(?:vorherig|bisherig|vorangegangen|fr[üu]her|obig|vorig)\w{0,3} "
        r"(?:anweisung|instruktion|vorgabe|befehl|regel)"
        r"|\b(?:ignore[zsr]?|oublie[zsr]?)(?: \w{1,12}){0,3}? "
        r"(?:instructions|consignes|directives|r[èe]gles) "
        r"(?:pr[ée]c[ée]dentes|ant[ée]rieures|ci-dessus)"
        r"|\b(?:ignor|olvid)(?:a|e|ad|ar|en)(?: \w{1,12}){0,3}? "
        r"(?:instrucciones|indicaciones|[óo]rdenes|reglas) "
        r"(?:anteriores|previas)"
        r"|\bignor(?:e|a|ar|em)(?: \w{1,12}){0,3}? instru[çc][õo]es (?:anteriores|pr[ée]vias)"
        r"|\bignor(?:a|ate|are|i)(?: \w{1,12}){0,3}? istruzioni precedenti"
        r"|(?:忽略|忽視|无视|無視|忘记)[^。.]{0,6}(?:之前|以前|先前|上面|以上|前面)"
        r"[^。.]{0,6}(?:指令|指示|说明|說明|命令|提示)"
        r"|(?:以前|前|上記|これまで)の[^。.]{0,6}(?:指示|命令|プロンプト)[^。.]{0,4}無視",
    ),
    _Family(
        "asks to hide something from the user",
        ("nutzer", "utilisateur", "usuario", "usuário", "utente", "用户", "用戶", "使用者", "ユーザー"),
        r"\b(?:sage?|erz[äa]hle?|verrate?|melde)(?: \w{1,12}){0,3}? (?:benutzer|nutzer)n?(?: \w{1,12}){0,3}? "
        r"(?:nicht|nichts|nie)\b"
        r"|\bne (?:le |la |lui |leur )?(?:dis|dites|mentionne[zs]?|r[ée]v[èe]le[zs]?|parle[zs]?) "
        r"(?:rien|pas|jamais)(?: \w{1,12}){0,3}? (?:[àa] l')?l?'?utilisateur"
        r"|\bno (?:se )?(?:lo |le )?(?:digas?|cuentes?|menciones?|reveles?)(?: \w{1,12}){0,3}? al usuario"
        r"|\bn[ãa]o (?:conte|diga|mencione|revele)(?: \w{1,12}){0,3}? ao usu[áa]rio"
        r"|\bnon (?:dire|dirlo|dite|menzionare|rivelare)(?: \w{1,12}){0,3}? all'utente"
        r"|(?:不要|别|別|切勿|不得|请勿)[^。.]{0,4}(?:告诉|告訴|告知|透露)[^。.]{0,4}(?:用户|用戶|使用者)"
        r"|(?:ユーザー|使用者)に[^。.]{0,8}(?:言わない|伝えない|知らせない|教えない)",
    ),
    _Family(
        "puts itself before other tools",
        ("before", "first", "instead", "place of", "rather than", "precedence", "priority", "any other"),
        rf"\bbefore (?:calling|using|running|invoking|executing|consulting|you {_VERBS}) "
        rf"(?:any|all|every|each)(?: one)?(?: of)?(?: the| your)?(?: other| available)? {_TOOLS}\b"
        rf"|\b(?:always|must|should|have to|need to)(?: always| also)? {_VERBS} this(?: {_TOOLS}| one)?"
        r" (?:first|before (?:any|every|all|each|anything|everything|doing anything)"
        r"|instead of (?:any|all|every|other))\b"
        rf"|\bthis {_TOOLS} (?:must|has to|should|needs to)(?: always)? be "
        r"(?:called|used|run|invoked|executed)(?: \w{1,20})?? (?:first|before (?:any|every|all|each))\b"
        rf"|\b(?:instead of|in place of|rather than) (?:any|all|every)(?: of)?(?: the)?(?: other)? {_TOOLS}\b"
        r"|\b(?:precedence|priority) over (?:any|all|every|other)(?: \w{1,20}){0,2}? "
        rf"(?:{_TOOLS}|instructions?)\b"
        rf"|\b(?:do not|don't|never|must not) {_VERBS} any other {_TOOLS}\b",
    ),
    _Family(
        "is marked up as a message of the host",
        ("<", "inst]"),
        # Not the generic types of languages (List<Secret>), nor a word for the end of a text alone.
        r"(?:(?<!\w)<|</)(?:important|critical|secret|hidden|sudo|admin|override)(?:_instructions?)?>"
        r"|</?system[_ -]?(?:prompt|message|instructions?|override)>|<\|(?!endoftext\|)[a-z_]{1,30}\|>"
        r"|\[/?inst\]|<</?sys>>"
        r"|</system>",
    ),
    _Family(
        "poses as the system or gives the model a part to play",
        ("system", "developer", "assistant", "you are", "from now on", "instruction"),
        r"(?:^|[^\w ] ?)(?:system|developer|assistant)(?: prompt| message| note| override)?: ?"
        r"(?:you (?:are|must|should|will|have to)|ignore|disregard|from now|always |never |new )"
        r"|\byou are (?:now|no longer) (?:a|an|bound|allowed|restricted|required|acting|operating|the)\b"
        r"|\bfrom now on,? (?:you|always|never|every|all|use|call|when)\b"
        r"|\bnew (?:system )?instructions?(?: are)?:",
    ),
    _Family(
        "asks for what is none of its business",
        (
            "conversation",
            "chat",
            "dialogue",
            "message",
            "prompt",
            "ssh",
            "private key",
            "environment",
            "rsa",
            "ed25519",
            "/etc/",
            "~/.",
            ".json",
            ".env",
            ".netrc",
            "shell history",
            "keychain",
            "keyring",
            "cookies",
        ),
        rf"\b(?:{_HANDING})(?: {_TALK_BETWEEN}){{0,6}}? (?:{_TALK})\b"
        rf"|\b(?:{_HANDING})(?: {_BETWEEN}){{0,6}}? (?:(?:{_WHOSE}) (?:{_KEPT})\b"
        rf"|(?:{_KEPT})(?:{_FOUND}|(?: [\w',-]{{1,20}}){{0,2}}?{_CHANNEL})\b)"
        rf"|\b(?:{_LEAKING})(?: {_BETWEEN}){{0,6}}? (?:{_KEPT})\b"
        rf"|\b(?:argument|parameter|field)(?: [\w'`\"]{{1,30}}){{0,3}}? (?:include|contain|hold|carry)"
        rf" (?:your|{_WHOSE}) (?:{_KEPT})\b"
        r"|\b(?:read|reading|open|opening|cat|fetch|get|load|contents? of|copy|include|access|from|send|dump)"
        r"(?: [\w',-]{1,30}){0,5}? [\"'`(*]{0,3}(?:~/\.(?:ssh|aws|cursor|netrc|gnupg|config/gh)\b"
        r"|(?:the|your) users?'s? (?:shell history|keychains?|keyring|browser cookies|\.env|\.netrc)\b"
        r"|[\w/~.]{0,60}id[_ ](?:rsa|ed25519)\b|/etc/(?:shadow|passwd)\b|[\w/~.-]{0,60}\bmcp\.json\b)",
    ),
    _Family(
        "has an image or a link that carries data out",
        ("](", "<img"),
        # What follows # is not sent to any server, and a picture may have a size.
        r"!\[[^\]]{0,300}\]\( ?(?:https?:)?//"
        rf"(?:[^) #]{{0,200}}[{{$<]|[^) #?]{{0,200}}\?[^) #]{{0,300}}?{_DATA})"
        r"|\]\( ?https?://[^) #]{0,200}[{$<]"
        r"|<img [^>]{0,300}src ?= ?[\"']?(?:https?:)?//[^>]{0,200}[?{$]",
    ),
)


@cache
def _pattern(family: _Family) -> re.Pattern[str]:
    return re.compile(family.pattern)


def instructions_in(text: str) -> list[tuple[str, str]]:
    """How a text speaks to the model: what it does, and its words."""
    plain = _plain(text)
    return [*_matched(plain, _possible(plain)), *_encoded(text)]


def _possible(plain: str) -> list[_Family]:
    return [family for family in _FAMILIES if any(sign in plain for sign in family.signs)]


def _matched(plain: str, families: Sequence[_Family]) -> Iterator[tuple[str, str]]:
    for family in families:
        if match := _pattern(family).search(plain):
            yield family.what, match.group().strip(" .")


def _spaced(name: str) -> str:
    return name.replace("_", " ").replace("-", " ")


def _plain(text: str) -> str:
    """The text as a model takes it: without what is hidden, in small Latin letters, on one line."""
    if not text.isascii():
        # Attack: zero-width characters inside words, or another alphabet's letters, to get past the patterns.
        text = _in_latin(text)
    return " ".join(text.lower().replace("’", "'").split())


def _has_long_word(text: str) -> bool:
    return len(text) >= _ENCODED_CHARS_MIN and any(len(word) >= _ENCODED_CHARS_MIN for word in text.split())


def _encoded(text: str) -> Iterator[tuple[str, str]]:
    """Yield a word of base64 that is long enough to be a message, and is one."""
    if _has_long_word(text):
        for match in _encoding().finditer(text):
            word = match.group()
            if len(word) >= _ENCODED_CHARS_MIN and _is_varied(word) and _is_message(word):
                yield "holds a long text that only a machine can read", word
                return


_DECODED_CHARS_MAX: Final = 20_000
"""So much of a word is decoded: pictures are long, and a model reads a message from its beginning."""
_WORDS_IN_ROW: Final = re.compile(rb"[\t\n\r -~]{40,}")


def _is_message(word: str) -> bool:
    """Return whether a word of base64 says something: keys, pictures and paths decode to no text.

    Attack: a message that begins one letter later, so that it decodes to noise from the start of the word, or
    that follows the first bytes of a picture.
    """
    plain = word[:_DECODED_CHARS_MAX].replace("-", "+").replace("_", "/")
    for start in range(4):
        part = plain[start:]
        decoded = base64.b64decode(part[: len(part) // 4 * 4])
        if _WORDS_IN_ROW.search(decoded) or _reads(decoded):
            return True
    return False


def _reads(decoded: bytes) -> bool:
    """Return whether bytes are text in any alphabet, but for a letter that was cut at either end."""
    return len(decoded) - len(decoded.decode("utf-8", "ignore").encode("utf-8")) <= _CUT_BYTES_MAX


_CUT_BYTES_MAX: Final = 6


@cache
def _encoding() -> re.Pattern[str]:
    return re.compile("[A-Za-z0-9+/_-]+")


def _is_varied(word: str) -> bool:
    return (
        any("a" <= char <= "z" for char in word)
        and any("A" <= char <= "Z" for char in word)
        and any("0" <= char <= "9" for char in word)
    )


def _instructions_told(texts: Sequence[_Text], whole: str) -> str:
    # All texts at once first: most tools show none of the signs.
    possible = _possible(_plain(" ".join([whole, *(_spaced(text) for _, text, is_name in texts if is_name)])))
    told: dict[tuple[str, str], str] = {}
    if possible:
        for place, text, is_name in texts:
            for what, words in _matched(_plain(_spaced(text) if is_name else text), possible):
                told.setdefault((place, what), words)
    if _has_long_word(whole):
        for place, text, _ in texts:
            for what, words in _encoded(text):
                told.setdefault((place, what), words)
    if not told:
        return ""
    (place, what), words = next(iter(told.items()))
    more = f" (and {len(told) - 1} more of this kind)" if len(told) > 1 else ""
    return f'{place}: {what} ("{_cut(words)}"){more}'


# -- names that look like others ----------------------------------------------------------------------------

_LATIN: Final = str.maketrans(
    "асеорхуіјѕԁһӏмтькАВЕКМНОРСТХІЅУЈαοιυρκηΑΒΕΖΗΙΚΜΝΟΡΤΥΧɡԛԝ",
    "aceopxyijsdhlmtbkABEKMHOPCTXISYJaoiupknABEZHIKMNOPTYXgqw",
)
"""Letters of other alphabets that are drawn like Latin ones."""
_ONE_SHAPE: Final = str.maketrans(
    {"0": "o", "1": "l", "|": "l", "i": "l", "_": "", "-": "", ".": "", " ": ""}
)
_SCRIPTS: Final = (
    "LATIN",
    "CYRILLIC",
    "GREEK",
    "ARMENIAN",
    "CHEROKEE",
    "COPTIC",
    "FULLWIDTH",
    "MATHEMATICAL",
)


@cache
def _styled() -> re.Pattern[str]:
    return re.compile("[\u2070-\u209f\u2100-\u214f\u2460-\u24ff\uff01-\uff5e\U0001d400-\U0001d7ff]+")


def _in_latin(text: str) -> str:
    """The text without what is hidden, with styled letters (wide, bold, circled) and others' look-alikes as
    plain ones."""
    bare = _styled().sub(lambda found: unicodedata.normalize("NFKC", found.group()), _unseen().sub("", text))
    return bare.translate(_LATIN)


def skeleton(name: str) -> str:
    """What is left of a name when everything that is easily overlooked is taken away."""
    if not name.isascii():
        name = _in_latin(name)
    return name.lower().translate(_ONE_SHAPE).replace("rn", "m").replace("vv", "w")


def scripts_of(name: str) -> list[str]:
    """The alphabets with letters that look alike whose letters stand in a name that is not all ASCII."""
    if name.isascii():
        return []
    found: dict[str, None] = {}
    for char in name:
        if char.isalpha():
            first = unicodedata.name(char, "").partition(" ")[0]
            if first in _SCRIPTS:
                found[first.capitalize()] = None
    return [*found]


def _look_alikes(tools: Sequence[Tool]) -> Iterator[Problem]:
    hint = "make sure that both are meant to be here, and name them by key"
    shapes: dict[str, list[Tool]] = {}
    told: set[str] = set()
    for tool in tools:
        mixed = scripts_of(tool.name)
        if len(mixed) > 1:
            told.add(tool.key)
            yield _problem(
                tool,
                "hygiene.look-alike",
                f"name: mixes letters of alphabets that look alike ({', '.join(mixed)})",
                "write the name in one alphabet; somebody may want it to be taken for another",
            )
        held = shapes.setdefault(skeleton(tool.name), [])
        other = next((each for each in held if each.name != tool.name and _home(each) != _home(tool)), None)
        if other is not None and tool.key not in told:
            told.add(tool.key)
            message = f'name: is easily taken for "{_cut(other.name)}" of {other.key}'
            yield _problem(tool, "hygiene.look-alike", message, hint)
        if len(held) < _SHARED_MAX:
            held.append(tool)
    if len(tools) > _NAMES_MAX or len({_home(tool) for tool in tools}) < 2:
        return
    slips: dict[str, list[Tool]] = {}
    for tool in tools:
        others = [each for key in _slips(tool.name) for each in slips.get(key, ())]
        other = next((each for each in others if _is_slip(tool, each)), None)
        if other is not None and tool.key not in told:
            message = f'name: is one letter away from "{_cut(other.name)}" of {other.key}'
            yield _problem(tool, "hygiene.look-alike", message, hint)
        for key in _slips(tool.name):
            held = slips.setdefault(key, [])
            if len(held) < _SHARED_MAX:
                held.append(tool)


_WORD_CHARS_MIN: Final = 6
"""Shorter words that differ in one letter are mostly words of their own: get and set, read and load."""


@cache
def _word() -> re.Pattern[str]:
    return re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W_A-Za-z]+")


def _words(name: str) -> list[str]:
    return [word.lower() for word in _word().findall(name)]


def _slips(name: str) -> Iterator[str]:
    """Keys that two names share when one long word of theirs differs in one letter only."""
    if len(name) > _NAME_CHARS_MAX:
        return
    words = _words(name)
    for number, word in enumerate(words):
        if len(word) >= _WORD_CHARS_MIN - 1:
            head, tail = "_".join(words[:number]) + "_", "_" + "_".join(words[number + 1 :])
            yield f"{head}{word}{tail}"
            for at in range(len(word) if len(word) >= _WORD_CHARS_MIN else 0):
                yield f"{head}{word[:at]}{word[at + 1 :]}{tail}"


def _is_slip(tool: Tool, other: Tool) -> bool:
    if _home(tool) == _home(other):
        return False
    mine, theirs = _words(tool.name), _words(other.name)
    if len(mine) != len(theirs):
        return False
    different = [(one, two) for one, two in zip(mine, theirs, strict=True) if one != two]
    return len(different) == 1 and _one_letter_apart(*different[0])


def _one_letter_apart(one: str, two: str) -> bool:
    """Whether a letter was changed, left out or swapped; endings (plural, past) and numbers are no slips."""
    if len(one) > len(two):
        one, two = two, one
    if len(one) < _WORD_CHARS_MIN - 1 or len(two) < _WORD_CHARS_MIN:
        return False
    at = next((place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    if len(one) < len(two):
        return at < len(one) and len(two) == len(one) + 1 and one[at:] == two[at + 1 :]
    if at == len(one) or one[at].isdigit() or two[at].isdigit():
        return False
    swapped = (
        at + 1 < len(one) and one[at : at + 2] == two[at : at + 2][::-1] and one[at + 2 :] == two[at + 2 :]
    )
    return swapped or (one[at + 1 :] == two[at + 1 :] and at < len(one) - 1)


# -- descriptions that speak of others' tools ---------------------------------------------------------------


def _owners(tools: Sequence[Tool]) -> dict[str, dict[_Home, str]]:
    owners: dict[str, dict[_Home, str]] = {}
    for tool in tools:
        for name in {tool.name, tool.spoken} - {""}:
            if _is_distinctive(name):
                owners.setdefault(name, {}).setdefault(_home(tool), tool.key)
    return owners if len({_home(tool) for tool in tools}) > 1 else {}


def _names_others(
    spoken: Sequence[tuple[Tool, list[_Text]]], owners: Mapping[str, Mapping[_Home, str]]
) -> Iterator[Problem]:
    """Attack: a tool whose description says when, how or with what arguments another's tool is to be used."""
    if not owners:
        return
    for tool, texts in spoken:
        home = _home(tool)
        own = {text for _, text, is_name in texts if is_name}
        for place, text, is_name in texts:
            if is_name or len(text) < 5:
                continue
            named = (word for word in _names_in().findall(text) if word in owners and word not in own)
            other_name = next((word for word in named if home not in owners[word]), None)
            if other_name is not None:
                other_key = next(iter(owners[other_name].values()))
                yield _problem(
                    tool,
                    "hygiene.names-other-tool",
                    f'{place}: speaks of "{_cut(other_name)}", which belongs to {other_key}',
                    "a description should not steer the use of others' tools; check that it does not",
                )
                break


def _is_distinctive(name: str) -> bool:
    """Whether a name cannot be a word of the language by chance."""
    return len(name) >= 5 and _names_in().fullmatch(name) is not None


@cache
def _names_in() -> re.Pattern[str]:
    # A name begins where no name goes on: otherwise a long one would be tried from each of its letters.
    return re.compile(
        r"(?<![A-Za-z0-9_/-])(?:[A-Za-z0-9]++(?:[_/-][A-Za-z0-9]++)++|[a-z]++[A-Z][A-Za-z0-9]*+)"
    )


# -- needs that are wider than what is done -----------------------------------------------------------------

_SHELLS: Final = frozenset(
    {"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "csh", "tcsh", "pwsh", "busybox"}
)
_STARTERS: Final = frozenset(
    {
        "env", "xargs", "sudo", "su", "doas", "nohup", "timeout", "nice", "setsid", "stdbuf", "watch",
        "parallel", "ssh", "npx", "uvx", "pipx", "bunx", "chroot", "unshare", "nsenter", "script", "strace",
        "flock", "eval",
    }
)  # fmt: skip
_INTERPRETERS: Final = frozenset(
    {"python", "python3", "node", "deno", "bun", "perl", "ruby", "php", "lua", "awk", "gawk", "mawk", "tclsh"}
)
_CODE_FLAGS: Final = ("-c", "-e", "-E", "-r", "eval", "--eval", "-p", "--print", "run", "exec")
_WIDE: Final = frozenset({"*", "fs", "net", "shell", "fs.*", "net.*", "shell.*"})
_CHANGING: Final = frozenset({"fs", "fs.*", "fs.write", "shell", "shell.*", "shell.execute"})


def _broad_needs(tools: Sequence[Tool]) -> Iterator[Problem]:
    listed: set[str] = set()
    for tool in tools:
        if told := _asks_too_much(tool):
            yield _problem(
                tool,
                "hygiene.broad-needs",
                told,
                "state only what the tool really needs; it gets nothing else",
            )
        run = tool.invocation
        if isinstance(run, RunProcess) and run.allowlist is not None and tool.origin.path not in listed:
            listed.add(tool.origin.path)
            if starters := [*_starters(dict(run.allowlist))]:
                yield _problem(
                    tool,
                    "hygiene.broad-needs",
                    f"allowlist: {_listed(starters)} can start any program, so the list allows everything",
                    "allow the program that is meant itself",
                )
        elif isinstance(run, RunProcess) and run.allowlist is None and not tool.chain:
            words = " ".join(run.fixed[:1])
            if starters := [*_starters({run.program.rpartition("/")[2]: (words,)})]:
                yield _problem(
                    tool,
                    "hygiene.broad-needs",
                    f"command: {_listed(starters)} runs whatever it is given",
                    "name the program that is meant itself",
                )


def _asks_too_much(tool: Tool) -> str:
    needs = tool.needs
    if wide := [need for need in needs.capabilities if need in _WIDE]:
        return f'needs: "{_cut(wide[0])}" covers more than any one tool does'
    if tool.effect is Effect.READ and (
        changing := [each for each in needs.capabilities if each in _CHANGING]
    ):
        return f'needs: a tool that only reads asks for "{_cut(changing[0])}"'
    if any(name == "*" or (name.endswith("*") and len(name) < 4) for name in needs.env):
        return "needs: asks for all variables of the host's environment"
    return ""


def _starters(allowed: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for program, subcommands in allowed.items():
        name = program.rpartition("/")[2]
        for subcommand in subcommands:
            first = subcommand.partition(" ")[0]
            is_open = not first or first in _CODE_FLAGS
            if name in _STARTERS or (name in _SHELLS and is_open) or (name in _INTERPRETERS and is_open):
                yield f'"{_cut(f"{name} {subcommand}".strip())}"'
                break
            if name == "find" and any(word in subcommand for word in ("-exec", "-ok", "-delete")):
                yield f'"{_cut(f"{name} {subcommand}")}"'
                break
