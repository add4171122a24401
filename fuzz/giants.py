"""Declarations at the size limit, each shaped to cost a reader as much as it can.

Whatever grows faster than the text (a list searched for each of its items, a long name repeated in every
message, a tree far larger than its source) shows at the largest text that is read at all. Nothing is judged
here: ``journey`` lies below and measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from declarations import Declaration

from toolcrib.catalog.files import DOCUMENT_BYTES_MAX
from toolcrib.formats._python_source import SOURCE_BYTES_MAX
from toolcrib.formats._yaml import NODES_MAX
from toolcrib.jsontext import VALUES_MAX

Numbered = Callable[[int], str]


Text = Callable[[], bytes]
"""Made when it is asked for: all of them together would fill the memory that one of them may take."""


def filled(head: str, unit: str | Numbered, tail: str = "", limit: int = DOCUMENT_BYTES_MAX) -> Text:
    """``unit`` again and again between ``head`` and ``tail``, up to the limit; a trailing comma goes."""

    def text() -> bytes:
        room = limit - len(head.encode()) - len(tail.encode())
        if isinstance(unit, str):
            body = unit * (room // len(unit.encode()))
        else:
            parts: list[str] = []
            while room > 0:
                parts.append(unit(len(parts)))
                room -= len(parts[-1].encode())
            body = "".join(parts[:-1])
        if body.rstrip(" ").endswith(","):
            body = body.rstrip(" ").removesuffix(",")
        return f"{head}{body}{tail}".encode()

    return text


@dataclass(frozen=True)
class Shape:
    """A JSON text that repeats a unit."""

    head: str
    unit: str | Numbered
    tail: str = ""
    values_max: int = VALUES_MAX

    def texts(self) -> Iterator[tuple[str, Text]]:
        """As dense as it can be, and, where that has too many values, with as many as are read."""
        yield "", filled(self.head, self.unit, self.tail)
        sample = self.unit if isinstance(self.unit, str) else self.unit(1000)
        values = sum(map(sample.count, ",[{"))
        length = -(-values * DOCUMENT_BYTES_MAX // (self.values_max - 500))
        if sample.endswith(",") and len(sample) < length:
            yield " (spaced)", filled(self.head, lambda number: self.at(number).ljust(length), self.tail)

    def at(self, number: int) -> str:
        return self.unit if isinstance(self.unit, str) else self.unit(number)


def giants() -> Iterator[tuple[str, Callable[[], Declaration]]]:
    """Each giant under a name that says its format and its trick."""
    for name, text in _spelt(_any_json()):
        yield f"manifest: {name}", _one("manifest", "tools.json", text)
        yield f"rye json: {name}", _one("rye", ".ai/tools/huge/big.json", text)
    for name, text in _spelt(_manifests()):
        yield f"manifest: {name}", _one("manifest", "tools.json", text)
    for name, text in _spelt(_skills()):
        yield f"skill: {name}", _one("skill", "notes/tools.json", text, {"notes/SKILL.md": b"# Notes\n"})
    for name, text in _front_matters():
        yield f"SKILL.md: {name}", _one("skill", "notes/SKILL.md", text)
    yield from _three_files()
    for name, text in _spelt(_groups()):
        yield f"capability: {name}", _one("capability", "big_tools.json", text)
    for name, text in _spelt(_printed()):
        yield f"executable: {name}", _one("executable", "bin/big-tool", text)
    for name, text in _spelt((name, replace(shape, values_max=NODES_MAX)) for name, shape in _rye_json()):
        yield f"rye json: {name}", _one("rye", ".ai/tools/huge/big.json", text)
    for name, text in _yaml():
        yield f"rye yaml: {name}", _one("rye", ".ai/tools/huge/big.yaml", text)
    yield "rye python: too long", _one("rye", ".ai/tools/huge/big.py", filled(_PYTHON, "a;"))
    for name, text in _python():
        yield f"rye python: {name}", _one("rye", ".ai/tools/huge/big.py", text)
    for name, text in _javascript():
        yield f"rye javascript: {name}", _one("rye", ".ai/tools/huge/big.js", text)
    for name, text in _bash():
        yield f"rye bash: {name}", _one("rye", ".ai/tools/huge/big.sh", text)
    for name, text in _toml():
        yield f"rye toml: {name}", _one("rye", ".ai/tools/huge/big.toml", text)


def _one(
    format: str, path: str, text: Text, beside: Mapping[str, bytes] | None = None
) -> Callable[[], Declaration]:
    return lambda: Declaration(format, {path: text(), **(beside or {})})


def _spelt(shapes: Iterator[tuple[str, Shape]]) -> Iterator[tuple[str, Text]]:
    for name, shape in shapes:
        for how, text in shape.texts():
            yield name + how, text


_LONG = "k" * 300_000


def _any_json() -> Iterator[tuple[str, Shape]]:
    yield "open brackets", Shape("", "[")
    yield "open members", Shape("", '{"a":')
    yield "open brackets and members", Shape("", '[{"a":')
    yield "just not too deep", Shape('{"tools":' + "[" * 90, "[[]],", "]" * 90 + "}")
    yield "numbers", Shape('{"tools":[', "1,", "]}")
    yield "strings", Shape('{"tools":[', '"a",', "]}")
    yield "empty objects", Shape('{"tools":[', "{},", "]}")
    yield "empty arrays", Shape('{"tools":[', "[],", "]}")
    yield "distinct keys", Shape("{", lambda number: f'"{number:x}":1,', "}")
    yield "one repeated key", Shape("{", '"a":1,', "}")
    yield "distinct repeated keys", Shape("{", lambda number: f'"{number // 2:x}":1,', "}")
    yield (
        "repeated keys far below",
        Shape('{"tools":' + '{"a":' * 90 + "{", lambda number: f'"{number // 2:x}":1,', "}" * 92),
    )
    yield "a long key above many values", Shape(f'{{"{_LONG}":[', "{},", "]}")
    yield "one string", Shape('{"tools":"', "a", '"}')
    yield "an unclosed string", Shape('{"tools":"', "a")
    yield "escapes", Shape('{"tools":"', "\\u0041", '"}')
    yield "escaped colons", Shape('{"tools":"', "\\u003a", '"}')
    yield "surrogate pairs", Shape('{"tools":"', "\\ud83d\\ude00", '"}')
    yield "blanks", Shape('{"tools":', " ", "[]}")
    yield "line ends", Shape('{"tools":', "\n", "[}")
    yield "one number", Shape('{"tools":', "1", "}")
    yield "long numbers", Shape('{"tools":[', "9" * 4300 + ",", "]}")
    yield "long fractions", Shape('{"tools":[', "0." + "9" * 4300 + ",", "]}")
    yield "minus signs", Shape('{"tools":[', "-")
    yield "commas", Shape('{"tools":[', ",")
    yield "quotes", Shape("", '"')
    yield "NUL", Shape("", "\0")
    yield "four-byte characters", Shape('{"tools":"', "\U0001f600", '"}')


def _manifests() -> Iterator[tuple[str, Shape]]:
    command = '"command":["./tools/bin/x"]'
    one = f'{{"tools":[{{"name":"a",{command}'
    yield "tools that have a command only", Shape('{"tools":[', f"{{{command}}},", "]}")
    yield "small good tools", Shape('{"tools":[', lambda number: f'{{"name":"t{number}",{command}}},', "]}")
    yield "one name again and again", Shape('{"tools":[', f'{{"name":"a",{command}}},', "]}")
    yield "names in odd cases", Shape('{"tools":[', f'{{"NAME":"a","naMe":"b",{command}}},', "]}")
    yield "repeated members in tools", Shape('{"tools":[', f'{{"name":"a","name":"b",{command}}},', "]}")
    yield "unknown keys", Shape(f"{one},", lambda number: f'"{number:x}":1,', "}]}")
    yield "keys that nearly fit", Shape(f"{one},", lambda number: f'"descriptio{number:x}":1,', "}]}")
    yield "a long key", Shape(f'{one},"', "k", '":1}]}')
    yield (
        "a long name with many problems",
        Shape(f'{{"tools":[{{"name":"{_LONG}",{command},"envPassthrough":[', "1,", "]}]}"),
    )
    yield "arguments", Shape('{"tools":[{"name":"a","command":["./tools/bin/x",', '"",', "]}]}")
    yield "steps up", Shape('{"tools":[{"name":"a","command":["./tools/bin/', "../", '"]}]}')
    yield "slashes", Shape('{"tools":[{"name":"a","command":["./tools/bin/', "/a", '"]}]}')
    yield "environment names", Shape(f'{one},"envPassthrough":[', lambda number: f'"A{number:X}",', "]}]}")
    yield "wrong environment names", Shape(f'{one},"envPassthrough":[', '"",', "]}]}")
    yield (
        "a schema of properties",
        Shape(
            f'{one},"schema":{{"type":"object","properties":{{', lambda number: f'"{number:x}":{{}},', "}}}]}"
        ),
    )
    yield (
        "a schema of wrong properties",
        Shape(
            f'{one},"schema":{{"type":"object","properties":{{', lambda number: f'"{number:x}":1,', "}}}]}"
        ),
    )
    yield "a schema of required names", Shape(f'{one},"schema":{{"required":[', '"a",', "]}}]}")
    yield (
        "a schema of distinct required names",
        Shape(f'{one},"schema":{{"required":[', lambda number: f'"{number:x}",', "]}}]}"),
    )
    yield (
        "a schema of one enumeration",
        Shape(f'{one},"schema":{{"properties":{{"a":{{"enum":[', lambda number: f"{number},", "]}}}}]}"),
    )
    yield (
        "a schema of equal long texts",
        Shape(f'{one},"schema":{{"properties":{{"a":{{"enum":[', f'"{"a" * 1000}",', "]}}}}]}"),
    )
    yield "a schema of alternatives", Shape(f'{one},"schema":{{"anyOf":[', '{"type":"object"},', "]}}]}")
    yield "a schema of references", Shape(f'{one},"schema":{{"anyOf":[', '{"$ref":"#"},', "]}}]}")
    yield (
        "a ladder of references",
        Shape(
            f'{one},"schema":{{"$defs":{{',
            lambda number: (
                f'"d{number}":{{"allOf":[{{"$ref":"#/$defs/d{number + 1}"}},'
                f'{{"$ref":"#/$defs/d{number + 1}"}}]}},'
            ),
            '"z":{}}}}]}',
        ),
    )
    yield (
        "references by long paths",
        Shape(f'{one},"schema":{{"anyOf":[', '{"$ref":"#' + "/a" * 500 + '"},', "]}}]}"),
    )
    yield (
        "a pattern of repetitions",
        Shape(f'{one},"schema":{{"properties":{{"a":{{"pattern":"', "a{1,9}", '"}}}}]}'),
    )
    yield "a pattern of groups", Shape(f'{one},"schema":{{"properties":{{"a":{{"pattern":"', "(", '"}}}}]}')
    yield (
        "patterns",
        Shape(
            f'{one},"schema":{{"properties":{{',
            lambda number: f'"{number:x}":{{"pattern":"(a+)+{number}$"}},',
            "}}}]}",
        ),
    )
    yield (
        "patterns that count",
        Shape(
            f'{one},"schema":{{"properties":{{',
            lambda number: f'"{number:x}":{{"pattern":"(\\\\w{{1,99}}{number}){{9}}"}},',
            "}}}]}",
        ),
    )
    yield (
        "names by pattern",
        Shape(
            f'{one},"schema":{{"patternProperties":{{', lambda number: f'"^[a-z]*{number}$":{{}},', "}}}]}"
        ),
    )
    yield (
        "anchors",
        Shape(
            f'{one},"schema":{{"$defs":{{', lambda number: f'"{number}":{{"$anchor":"a{number}"}},', "}}}]}"
        ),
    )
    yield (
        "identities",
        Shape(
            f'{one},"schema":{{"$defs":{{',
            lambda number: f'"{number}":{{"$id":"http://a/{number}"}},',
            "}}}]}",
        ),
    )
    yield "a description", Shape(f'{one},"description":"', "a ", '"}]}')
    yield (
        "tools with schemas",
        Shape(
            '{"tools":[',
            lambda number: (
                f'{{"name":"t{number}",{command},"schema":{{"type":"object","properties":'
                '{"a":{"type":"string"}},"required":["a"]}},'
            ),
            "]}",
        ),
    )
    yield (
        "tools whose schemas need a look",
        Shape(
            '{"tools":[',
            lambda number: (
                f'{{"name":"t{number}",{command},"schema":{{"$ref":"#/$defs/a","$defs":'
                f'{{"a":{{"pattern":"a{number}"}}}}}}}},'
            ),
            "]}",
        ),
    )
    yield (
        "tools whose schemas are none",
        Shape(
            '{"tools":[',
            lambda number: f'{{"name":"t{number}",{command},"schema":{{"type":"{number}"}}}},',
            "]}",
        ),
    )


def _skills() -> Iterator[tuple[str, Shape]]:
    def whole(tools: str = "[]", allowlist: str = "{}", execution: str = "[]") -> tuple[str, str]:
        text = f'{{"allowlist":{allowlist},"tools":{tools},"execution":{execution}}}'
        head, _, tail = text.partition("@")
        return head, tail

    def around(unit: str | Numbered, **parts: str) -> Shape:
        head, tail = whole(**parts)
        return Shape(head, unit, tail)

    tool = '[{"name":"a"}]'
    run = '{"tool":"a","binary":"b","subcommand":""'
    yield "binaries", around(lambda number: f'"{number:x}":[],', allowlist="{@}")
    yield "subcommands", around(lambda number: f'"{number:x}",', allowlist='{"b":[@]}')
    yield "wrong subcommands", around("1,", allowlist='{"b":[@]}')
    yield "a long binary of wrong subcommands", around("1,", allowlist=f'{{"{_LONG}":[@]}}')
    yield "relative binaries", around(lambda number: f'"./{number:x}":[],', allowlist="{@}")
    yield "tools without execution", around(lambda number: f'{{"name":"t{number}"}},', tools="[@]")
    yield "executions without tools", around(run + "},", tools="[]", allowlist='{"b":[""]}', execution="[@]")
    yield (
        "one execution again and again",
        around(run + "},", tools=tool, allowlist='{"b":[""]}', execution="[@]"),
    )
    yield (
        "mappings",
        around(
            lambda number: f'{{"param":"{number:x}","kind":"flag"}},',
            tools=tool,
            allowlist='{"b":[""]}',
            execution=f'[{run},"args":[@]}}]',
        ),
    )
    yield (
        "mappings of one flag",
        around(
            '{"param":"p","kind":"flag"},',
            tools=tool,
            allowlist='{"b":[""]}',
            execution=f'[{run},"args":[@]}}]',
        ),
    )
    yield (
        "wrong mappings",
        around("1,", tools=tool, allowlist='{"b":[""]}', execution=f'[{run},"args":[@]}}]'),
    )
    yield (
        "mappings with unknown keys",
        around(
            '{"parm":"p","knd":1},', tools=tool, allowlist='{"b":[""]}', execution=f'[{run},"args":[@]}}]'
        ),
    )
    yield (
        "unmapped parameters",
        around(
            lambda number: f'"{number:x}":{{}},',
            tools='[{"name":"a","parameters":{"properties":{@}}}]',
            allowlist='{"b":[""]}',
            execution=f"[{run}}}]",
        ),
    )
    yield (
        "an unmapped long parameter",
        around(
            "k",
            tools='[{"name":"a","parameters":{"properties":{"@":{}}}}]',
            allowlist='{"b":[""]}',
            execution=f"[{run}}}]",
        ),
    )
    yield (
        "repeated parameters",
        around(
            '"p":{},',
            tools='[{"name":"a","parameters":{"properties":{@}}}]',
            allowlist='{"b":[""]}',
            execution=f"[{run}}}]",
        ),
    )
    yield "unknown root keys", around(lambda number: f'"{number:x}":1,', tools='[],@"z":1')
    yield "keys that nearly fit", around(lambda number: f'"allow_list{number}":1,', tools='[],@"z":1')
    yield "spellings of one key", around(lambda number: "a" + f'"l_{number}":1,', tools='[],@"z":1')
    count = 3000
    tools = ",".join(f'{{"name":"t{number}"}}' for number in range(count))
    runs = ",".join(f'{{"tool":"t{number}","binary":"b","subcommand":""}}' for number in range(count))
    yield (
        "many tools and a long allowlist",
        around(
            lambda number: f'"s{number:x}",',
            tools=f"[{tools}]",
            allowlist='{"b":["",@]}',
            execution=f"[{runs}]",
        ),
    )
    yield (
        "many tools and many binaries",
        around(
            lambda number: f'"s{number:x}":[],',
            tools=f"[{tools}]",
            allowlist='{@,"b":[""]}',
            execution=f"[{runs}]",
        ),
    )
    yield (
        "tools with runs",
        Shape(
            f'{{"allowlist":{{"b":[""]}},"execution":[{runs}],"tools":[',
            lambda number: f'{{"name":"t{number}"}},',
            "]}",
        ),
    )
    yield (
        "later keys",
        around(
            '{"param":"p","condition":1},',
            tools=tool,
            allowlist='{"b":[""]}',
            execution=f'[{run},"args":[@]}}]',
        ),
    )
    yield (
        "resolvers",
        around(
            '{"param":"p","resolveCommand":{"script":"x","args":[1,1,1]}},',
            tools=tool,
            allowlist='{"b":[""]}',
            execution=f'[{run},"args":[@]}}]',
        ),
    )


def _front_matters() -> Iterator[tuple[str, Text]]:
    yield "unclosed", filled("---\n", "a\n")
    yield "dashes", filled("---\n", "--\n")
    yield "dash lines", filled("---\nname: a\n", "--- x\n", "---\n")
    yield "blanks after dashes", filled("---", " ", "\n---\n")
    yield "carriage returns", filled("---\n", "\r", "\n---\n")
    yield "programs", filled("---\nmetadata: {requires: {bins: [", "a,", "]}}\n---\n")
    yield "alternatives of programs", filled("---\nmetadata: {requires: {bins: [", "[a],", "]}}\n---\n")
    yield "one long name", filled("---\nname: ", "n", "\n---\n")
    yield "a long text", filled("---\nname: n\n---\n", "word ")
    for name, text in _yaml():
        yield name, lambda of=text: b"---\n" + of()[: DOCUMENT_BYTES_MAX - 10] + b"\n---\n"


def _three_files() -> Iterator[tuple[str, Callable[[], Declaration]]]:
    good: dict[str, Text] = {
        "notes/tools.json": filled("[", lambda number: f'{{"name":"t{number}"}},', "]"),
        "notes/SKILL.md": lambda: b"# Notes\n",
        "notes/allowlist.json": filled("{", lambda number: f'"{number:x}":[],', "}"),
        "notes/execution.json": filled(
            "[", lambda number: f'{{"tool":"t{number}","binary":"{number:x}","subcommand":""}},', "]"
        ),
    }
    numbers = filled("[", lambda number: "1,".ljust(11), "]")
    for name, changed in {
        "all long": {},
        "wrong pairs": {"notes/allowlist.json": numbers},
        "wrong tools": {"notes/tools.json": numbers},
        "wrong executions": {"notes/execution.json": numbers},
        "nothing right": dict.fromkeys(
            ("notes/tools.json", "notes/allowlist.json", "notes/execution.json"), numbers
        ),
    }.items():
        files = good | changed
        yield (
            f"three files: {name}",
            lambda files=files: Declaration("skill", {path: text() for path, text in files.items()}),
        )


def _groups() -> Iterator[tuple[str, Shape]]:
    always = '{"group":"big","selection":{"strategy":"always"}'
    yield (
        "keywords",
        Shape(
            '{"group":"big","selection":{"strategy":"keyword","keywords":[',
            lambda number: f'"{number:x}",',
            "]}}",
        ),
    )
    yield (
        "keywords of a tool",
        Shape(
            '{"group":"big","tools":[{"name":"a","description":"b"}],"selection":{"strategy":"keyword","keywords":[',
            lambda number: f'"{number:x} b",',
            "]}}",
        ),
    )
    yield (
        "one long keyword",
        Shape(
            '{"group":"big","tools":[{"name":"a","description":"b"}],"selection":{"strategy":"keyword","keywords":["',
            "a b ",
            '"]}}',
        ),
    )
    yield (
        "wrong keywords",
        Shape('{"group":"big","selection":{"strategy":"keyword","keywords":[', "1,", "]}}"),
    )
    yield (
        "empty keywords",
        Shape('{"group":"big","selection":{"strategy":"keyword","keywords":[', '"",', "]}}"),
    )
    yield "unknown keys", Shape('{"group":"big",', lambda number: f'"{number:x}":1,', "}")
    yield "keys that nearly fit", Shape('{"group":"big",', lambda number: f'"selectio{number:x}":1,', "}")
    yield "tools of nothing", Shape(f'{always},"tools":[', "{},", "]}")
    yield "wrong tools", Shape(f'{always},"tools":[', "1,", "]}")
    yield (
        "small tools",
        Shape(f'{always},"tools":[', lambda number: f'{{"name":"t{number}","description":""}},', "]}"),
    )
    yield "one tool again and again", Shape(f'{always},"tools":[', '{"name":"a","description":""},', "]}")
    yield (
        "executors",
        Shape(
            f'{always},"tools":[',
            lambda number: f'{{"name":"t{number}","description":"","metadata":{{"executor":"e{number}"}}}},',
            "]}",
        ),
    )
    schema = f'{always},"tools":[{{"name":"a","description":"b","input_schema":{{"type":"object"'
    yield "required names", Shape(f'{schema},"required":[', lambda number: f'"{number:x}",', "]}}]}")
    yield "required numbers", Shape(f'{schema},"required":[', "1,", "]}}]}")
    yield "properties", Shape(f'{schema},"properties":{{', lambda number: f'"{number:x}":{{}},', "}}}]}")
    meta = f'{always},"tools":[{{"name":"a","description":"b","metadata":{{'
    yield (
        "context keys",
        Shape(f'{meta}"requires_context":[', lambda number: f'"user_i{number:x}",', "]}}]}"),
    )
    yield "wrong context keys", Shape(f'{meta}"requires_context":[', "1,", "]}}]}")
    yield "a long group", Shape('{"group":"', "g", '","tools":[{"name":"a"},{},{},{}]}')
    yield (
        "a long group of many tools",
        Shape(
            f'{{"group":"{_LONG}","selection":{{"strategy":"always"}},"tools":[',
            lambda number: f'{{"name":"t{number}","description":""}},',
            "]}",
        ),
    )
    yield (
        "a long description of many tools",
        Shape(
            f'{{"group":"big","description":"{_LONG}","selection":{{"strategy":"always"}},"tools":[',
            lambda number: f'{{"name":"t{number}","description":""}},',
            "]}",
        ),
    )
    yield (
        "keywords of many tools",
        Shape(
            '{"group":"big","selection":{"strategy":"keyword","keywords":['
            + ",".join(f'"w{number}"' for number in range(30_000))
            + ']},"tools":[',
            lambda number: f'{{"name":"t{number}","description":""}},',
            "]}",
        ),
    )
    yield (
        "a long version of many tools",
        Shape(
            f'{{"group":"big","version":"{_LONG}","tools":[',
            lambda number: f'{{"name":"t{number}","description":""}},',
            "]}",
        ),
    )
    yield "a version of digits", Shape('{"group":"big","version":"', "1", '"}')
    yield "a version of hyphens", Shape('{"group":"big","version":"1.0.0-', "-.", '"}')


def _printed() -> Iterator[tuple[str, Shape]]:
    head = '{"name":"big","description":"b","parameters":{"type":"object"'
    yield "properties", Shape(f'{head},"properties":{{', lambda number: f'"{number:x}":{{}},', "}}}")
    yield (
        "good properties",
        Shape(f'{head},"properties":{{', lambda number: f'"{number:x}":{{"type":"string"}},', "}}}"),
    )
    yield (
        "required names",
        Shape(f'{head},"properties":{{}},"required":[', lambda number: f'"{number:x}",', "]}}"),
    )
    yield "a required name again and again", Shape(f'{head},"properties":{{}},"required":[', '"a",', "]}}")
    yield (
        "values that do not fit",
        Shape(f'{head},"properties":{{"a":{{"type":"string","enum":[', "1,", "]}}}}"),
    )
    yield (
        "values that do not fit below a long name",
        Shape(f'{head},"properties":{{"{_LONG}":{{"type":"string","enum":[', "1,", "]}}}}"),
    )
    yield (
        "unsupported keywords below a long name",
        Shape(
            f'{head},"properties":{{"{_LONG}":{{"type":"object","properties":{{',
            lambda number: f'"{number:x}":{{"$ref":""}},',
            "}}}}}",
        ),
    )
    yield (
        "prefix items",
        Shape(f'{head},"properties":{{"a":{{"type":"array","prefixItems":[', '{"$ref":""},', "]}}}}"),
    )
    yield "depth", Shape(head + ',"properties":{"a":' + '{"not":' * 80 + "[", "1,", "]" + "}" * 83)
    yield "unknown keys", Shape('{"name":"big",', lambda number: f'"{number:x}":1,', "}")
    yield "keys that nearly fit", Shape('{"name":"big",', lambda number: f'"descriptio{number:x}":1,', "}")
    yield "repeated keys", Shape('{"name":"big",', '"a":1,', "}")
    yield "a name", Shape('{"name":"', "a_", '","description":"b"}')


_RYE_JSON = (
    '{"tool_type":"script","version":"1.0.0","executor_id":"rye/core/runtimes/python/script",'
    '"category":"huge","description":"d"'
)


def _rye_json() -> Iterator[tuple[str, Shape]]:
    head = _RYE_JSON
    yield "unknown keys", Shape(f"{head},", lambda number: f'"{number:x}":1,', "}")
    yield "keys that nearly fit", Shape(f"{head},", lambda number: f'"executor_i{number:x}":1,', "}")
    yield "repeated keys", Shape(f"{head},", '"a":1,', "}")
    for key in (
        "requires", "tags", "parameters", "actions", "outputs", "config", "metadata", "env_config", "anchor",
    ):  # fmt: skip
        yield f"numbers in {key}", Shape(f'{head},"{key}":[', "1,", "]}")
        yield f"texts in {key}", Shape(f'{head},"{key}":[', lambda number: f'"a.{number}",', "]}")
        yield f"members of {key}", Shape(f'{head},"{key}":{{', lambda number: f'"a{number}":1,', "}}")
        yield f"objects in {key}", Shape(f'{head},"{key}":[', lambda number: f'{{"name":"a{number}"}},', "]}")
    yield (
        "parameters with patterns",
        Shape(
            f'{head},"parameters":[',
            lambda number: f'{{"name":"a{number}","pattern":"[\\\\w\\\\s]{{900}}{number}"}},',
            "]}",
        ),
    )
    yield (
        "parameters with wrong keys",
        Shape(
            f'{head},"parameters":[',
            lambda number: f'{{"name":"a{number}","descriptio":1,"requird":1}},',
            "]}",
        ),
    )
    yield (
        "parameters with defaults",
        Shape(
            f'{head},"parameters":[',
            lambda number: f'{{"name":"a{number}","type":"string","minLength":9,"default":"{number}"}},',
            "]}",
        ),
    )
    yield (
        "parameters with defaults and patterns",
        Shape(
            f'{head},"parameters":[',
            lambda number: (
                f'{{"name":"a{number}","pattern":"[\\\\w\\\\s]{{99}}{number}","default":"{number}"}},'
            ),
            "]}",
        ),
    )
    yield (
        "actions of one parameter each",
        Shape(
            f'{head},"actions":{{',
            lambda number: (
                f'"a{number}":{{"parameters":[{{"name":"p","type":"string","default":"{number}"}}]}},'
            ),
            "}}",
        ),
    )
    yield (
        "actions of many parameters",
        Shape(
            f'{head},"actions":{{',
            lambda number: f'"a{number}":{{"parameters":[{{"name":"p{number}"}}]}},',
            "}}",
        ),
    )
    yield "actions without anything", Shape(f'{head},"actions":{{', lambda number: f'"a{number}":{{}},', "}}")
    for key in ("input_schema", "config_schema", "output_schema"):
        yield (
            f"{key} of properties",
            Shape(
                f'{head},"{key}":{{"type":"object","properties":{{',
                lambda number: f'"a{number}":{{}},',
                "}}}",
            ),
        )
        yield (
            f"{key} of wrong properties",
            Shape(
                f'{head},"{key}":{{"type":"object","properties":{{', lambda number: f'"a{number}":1,', "}}}"
            ),
        )
        yield (
            f"{key} of required names",
            Shape(
                f'{head},"{key}":{{"type":"object","properties":{{}},"required":[',
                lambda number: f'"a{number}",',
                "]}}",
            ),
        )
        yield (
            f"{key} of patterns",
            Shape(
                f'{head},"{key}":{{"type":"object","properties":{{',
                lambda number: f'"a{number}":{{"pattern":"[\\\\w\\\\s]{{300}}{number}"}},',
                "}}}",
            ),
        )
        yield (
            f"{key} of defaults",
            Shape(
                f'{head},"{key}":{{"type":"object","properties":{{',
                lambda number: f'"a{number}":{{"type":"string","maxLength":1,"default":"{number}"}},',
                "}}}",
            ),
        )
    yield (
        "properties that are all required",
        Shape(
            f'{head},"input_schema":{{"required":['
            + ",".join(f'"a{number}"' for number in range(4000))
            + '],"properties":{',
            lambda number: f'"a{number}":{{}},',
            "}}}",
        ),
    )
    yield (
        "defaults at every level",
        Shape(
            f'{head},"input_schema":'
            + '{"default":{},"minProperties":1,"properties":{"a":' * 25
            + '{"properties":{',
            lambda number: f'"a{number}":{{"minLength":1}},',
            "}}" + "}}" * 25 + "}",
        ),
    )
    yield (
        "a description of words",
        Shape(f'{head},"parameters":[{{"name":"a","type":"string","description":"', "a|", '"}]}'),
    )
    yield (
        "a description of digits",
        Shape(f'{head},"parameters":[{{"name":"a","type":"integer","description":"', "1 ", '"}]}'),
    )
    yield (
        "a description of one word",
        Shape(f'{head},"parameters":[{{"name":"a","type":"string","description":"', "a", '"}]}'),
    )
    yield "a command of texts", Shape(f'{head},"config":{{"command":"a","args":[', '"${A}",', "]}}")
    yield "a command of one text", Shape(f'{head},"config":{{"command":"', "${A", '"}}')


_YAML = "tool_type: script\nversion: 1.0.0\nexecutor_id: rye/core/runtimes/python/script\ndescription: d\n"


def _yaml() -> Iterator[tuple[str, Text]]:
    yield "block items", filled("", "- a\n")
    yield "empty block items", filled("", "-\n")
    yield "nested block items", filled("", "- ")
    yield "block members", filled("", lambda number: f"{number}: a\n")
    yield "open brackets", filled("", "[")
    yield "open braces", filled("", "{")
    yield "open flow members", filled("", "{a: ")
    yield "flow items", filled("[", "a,", "]")
    yield "flow brackets", filled("[", "[],", "]")
    yield "question marks", filled("", "? ")
    yield "question lines", filled("", "?\n")
    yield "colons", filled("", ": ")
    yield "anchors", filled("", lambda number: f"- &a{number} a\n")
    yield "aliases", filled("- &a a\n", "- *a\n")
    yield (
        "an alias bomb",
        filled("a0: &a0 [a,a]\n", lambda number: f"a{number + 1}: &a{number + 1} [*a{number},*a{number}]\n"),
    )
    yield (
        "a bomb of merges",
        filled(
            "a0: &a0 {a: 1}\n",
            lambda number: f"a{number + 1}: &a{number + 1} {{<<: [*a{number},*a{number}]}}\n",
        ),
    )
    yield "tags", filled("", "- !a a\n")
    yield "one long tag", filled("!", "a", " b")
    yield "one long anchor", filled("- &", "a", " b")
    yield "tag directives", filled("", "%TAG ! a\n", "---\na")
    yield "distinct tag directives", filled("", lambda number: f"%TAG !a{number}! b\n", "---\na")
    yield "comments", filled("", "#\n")
    yield "one comment", filled("", "#")
    yield "a plain text of words", filled("a: ", "b ")
    yield "a plain text of lines", filled("a:\n", "  b\n")
    yield "a block text", filled("a: |\n", "  b\n")
    yield "a block text of empty lines", filled("a: |\n", "\n", "  b\n")
    yield "a folded text", filled("a: >\n", "  b\n")
    yield "an unclosed text", filled('a: "', "b\n")
    yield "escapes", filled('a: "', "\\x41", '"')
    yield "single quotes", filled("a: '", "''", "'")
    yield "indentation", filled("", lambda number: " " * (number % 2000) + "a:\n")
    yield "growing indentation", filled("", lambda number: " " * number + "a:\n")
    yield "documents", filled("", "---\n")
    yield "long keys", filled("", "k", ": 1")
    yield "keys too long to be keys", filled("", lambda number: "k" * 1100 + ": 1\n")
    yield "blanks", filled("a:", " ", "b")
    yield "tabs", filled("a:", "\t", "b")
    yield "numbers", filled("", "- 1\n")
    yield "one number", filled("a: ", "1")
    yield "underscores", filled("a: 1", "_")
    yield "sexagesimals", filled("a: 1", ":1")
    yield "points", filled("a: ", ".")
    yield "line separators", filled("a: b", "\u2028")
    yield "unknown keys", filled(_YAML, lambda number: f"{number:x}: a\n")
    yield "keys that nearly fit", filled(_YAML, lambda number: f"executor_i{number:x}: a\n")
    yield "parameters", filled(f"{_YAML}parameters:\n", lambda number: f"- name: a{number}\n")
    yield "requirements", filled(f"{_YAML}requires:\n", lambda number: f"- a{number}\n")
    yield "a long key of wrong values", filled(f"{_YAML}config_schema: {{{'k' * 900}: [", "1,", "]}")


_PYTHON = '__version__ = "1.0.0"\n__tool_type__ = "python"\n__category__ = "huge"\n'
_PYTHON += '__executor_id__ = "rye/core/runtimes/python/function"\n'


def _python() -> Iterator[tuple[str, Text]]:
    def filled_up(head: str, unit: str | Numbered, tail: str = "") -> Text:
        return filled(head, unit, tail, SOURCE_BYTES_MAX)

    def schema(unit: str | Numbered, before: str = "", after: str = "") -> Text:
        return filled_up(f"{_PYTHON}CONFIG_SCHEMA = {before}", unit, f"{after}\ndef execute(p, q): pass\n")

    yield "open brackets", schema("(")
    yield "open square brackets", schema("[")
    yield "open braces", schema("{")
    yield "open members", schema('{"a":')
    yield "brackets", schema("()", "")
    yield "minus signs", schema("-", after="1")
    yield "not", schema("not ", after="1")
    yield "tildes", schema("~", after="1")
    yield "sums", schema("1+", after="1")
    yield "powers", schema("2**", after="2")
    yield "products of texts", schema('"a"*99*', after="9")
    yield "joined texts", schema('"a"+', after='"a"')
    yield "neighbouring texts", schema('"a"', "(", ")")
    yield "long sums of long texts", schema(f'"{"a" * 1000}"+', after='"a"')
    yield "members", schema(lambda number: f'"{number:x}":1,', "{", "}")
    yield "properties", schema(lambda number: f'"{number:x}":{{}},', '{"properties":{', "}}")
    yield "items", schema("1,", "[", "]")
    yield "texts", schema('"a",', "[", "]")
    yield "empty tuples", schema("(),", "[", "]")
    yield "ellipses", schema("...,", "[", "]")
    yield "lambdas", schema("lambda:", after="1")
    yield "conditions", schema("1 if 1 else ", after="1")
    yield "comparisons", schema("1<", after="1")
    yield "ands", schema("1 and ", after="1")
    yield "attributes", schema(".a", "a")
    yield "calls", schema("()", "a")
    yield "subscripts", schema("[0]", "a")
    yield "f-strings", schema("{a}", 'f"', '"')
    yield "f-strings in brackets", schema('f"{1}",', "[", "]")
    yield "braces in an f-string", schema("{{", 'f"', '"')
    yield "nested f-strings", schema("f'{", "", "")
    yield "unclosed f-strings", schema('f"{', "")
    yield "splats", schema("**{},", "{", "}")
    yield "stars", schema("*[],", "[", "]")
    yield "walruses", schema("(a:=1),", "[", "]")
    yield "comprehensions", schema("[a for a in b],", "[", "]")
    yield "nested comprehensions", schema(" for a in b", "[a", "]")
    yield "await", schema("await ", after="1")
    yield "decorators", filled_up(_PYTHON, "@a\n", "def execute(p, q): pass\n")
    yield "functions", filled_up(_PYTHON, lambda number: f"def f{number}(): pass\n")
    yield "parameters", filled_up(f"{_PYTHON}def execute(", lambda number: f"a{number},", "): pass\n")
    yield "classes", filled_up(_PYTHON, lambda number: f"class C{number}: pass\n")
    yield "imports", filled_up(_PYTHON, lambda number: f"import a{number}\n")
    yield "imported names", filled_up(f"{_PYTHON}from a import (", lambda number: f"a{number},", ")\n")
    yield "assignments", filled_up(_PYTHON, lambda number: f"a{number} = 1\n")
    yield "chained assignments", filled_up(_PYTHON, "a=", "1\n")
    yield "one name again and again", filled_up(_PYTHON, "CONFIG_SCHEMA = {}\n")
    yield (
        "names of names",
        filled_up(
            f"{_PYTHON}a0 = 1\n",
            lambda number: f"a{number + 1} = a{number}\n",
            f"CONFIG_SCHEMA = a{SOURCE_BYTES_MAX // 40}\n",
        ),
    )
    yield (
        "names that double",
        filled_up(
            f"{_PYTHON}a0 = [1]\n",
            lambda number: f"a{number + 1} = [a{number}, a{number}]\n",
            "CONFIG_SCHEMA = a20\n",
        ),
    )
    yield (
        "texts that double",
        filled_up(
            f'{_PYTHON}a0 = "a"\n',
            lambda number: f"a{number + 1} = a{number} + a{number}\n",
            "CONFIG_SCHEMA = a90\n",
        ),
    )
    yield (
        "one name bound often and read often",
        filled_up(
            f"{_PYTHON}b = 1\n" + "b = 2\n" * (SOURCE_BYTES_MAX // 20) + "CONFIG_SCHEMA = [", "b,", "]\n"
        ),
    )
    yield (
        "a name that is bound late and read often",
        filled_up(f"{_PYTHON}b = 1\nCONFIG_SCHEMA = [" + "b," * (SOURCE_BYTES_MAX // 6) + "]\n", "b = 2\n"),
    )
    yield "lists that are added", filled_up(f"{_PYTHON}a = [1,2,3,4,5,6,7,8]\nCONFIG_SCHEMA = ", "a+", "a\n")
    yield "blocks", filled_up(_PYTHON, lambda number: " " * (number % 90) + "if 1:\n")
    yield "ifs on one line", filled_up(_PYTHON, "if 1: pass\n")
    yield "elifs", filled_up(f"{_PYTHON}if 1: pass\n", "elif 1: pass\n")
    yield "withs", filled_up(f"{_PYTHON}with ", "a,", "a: pass\n")
    yield "matches", filled_up(f"{_PYTHON}match a:\n", " case 1: pass\n")
    yield "alternatives of a match", filled_up(f"{_PYTHON}match a:\n case ", "1|", "1: pass\n")
    yield "tries", filled_up(_PYTHON, "try: pass\nfinally: pass\n")
    yield "passes", filled_up(_PYTHON, "pass\n")
    yield "semicolons", filled_up(_PYTHON, "a;")
    yield "empty lines", filled_up(_PYTHON, "\n")
    yield "comments", filled_up(_PYTHON, "#\n")
    yield "continued lines", filled_up(_PYTHON, "\\\n")
    yield "form feeds", filled_up(_PYTHON, "\f")
    yield "carriage returns", filled_up(_PYTHON, "\r")
    yield "one name", filled_up(_PYTHON, "a")
    yield "a wide name", filled_up(_PYTHON, "\u4e00")
    yield "names to normalise", filled_up(_PYTHON, "\ufdfa ")
    yield "one number", filled_up(f"{_PYTHON}CONFIG_SCHEMA = ", "9")
    yield "one hexadecimal number", filled_up(f"{_PYTHON}CONFIG_SCHEMA = 0x", "f")
    yield "one text", filled_up(f'{_PYTHON}CONFIG_SCHEMA = "', "a", '"')
    yield "an unclosed text", filled_up(f'{_PYTHON}CONFIG_SCHEMA = """', "a\n")
    yield "doubtful escapes", filled_up(f'{_PYTHON}CONFIG_SCHEMA = "', "\\d", '"')
    yield "named characters", filled_up(f'{_PYTHON}CONFIG_SCHEMA = "', "\\N{DIGIT ONE}", '"')
    yield "a docstring", filled_up('"""', "a\n", f'"""\n{_PYTHON}')
    yield "options", filled_up(f"{_PYTHON}p = 1\n", 'p.add_argument("--a")\n')
    yield "annotations", filled_up(_PYTHON, lambda number: f"a{number}: int = 1\n")
    yield "changes", filled_up(f"{_PYTHON}a = []\n", "a.append(1)\n")
    yield "deep targets", filled_up(_PYTHON, "(", "a" + ")" * 10 + " = 1\n")
    yield "dangling names", filled_up(_PYTHON, "a\n")
    yield "indentation", filled_up(f"{_PYTHON}if 1:\n", lambda number: " " * (number % 99 + 1) + "if 1:\n")
    yield "dollar signs", filled_up(_PYTHON, "$")
    yield "an encoding line", filled_up("# coding: utf-7\n", "+AGE-")


def _javascript() -> Iterator[tuple[str, Text]]:
    constants = (
        'export const __version__ = "1.0.0";\nexport const __tool_type__ = "javascript";\n'
        'export const __executor_id__ = "rye/core/runtimes/node/node";\nexport const __category__ = "huge";\n'
    )

    def schema(unit: str | Numbered, before: str = "", after: str = "") -> Text:
        return filled(f"{constants}export const CONFIG_SCHEMA = {before}", unit, f"{after};\n")

    yield "open brackets", schema("[")
    yield "open braces", schema("{a:")
    yield "open parentheses", schema("(")
    yield "slashes", schema("/")
    yield "slashes after blanks", schema("= /")
    yield "divisions", schema("1/", after="1")
    yield "patterns", schema("/a/,", "[", "]")
    yield "patterns of classes", schema("=/[", "")
    yield "open comments", schema("/*")
    yield "comments", schema("/**/", after="1")
    yield "line comments", schema("//\n", after="1")
    yield "stars", schema("*", "/")
    yield "backquotes", schema("`")
    yield "templates", schema("`${a}`,", "[", "]")
    yield "nested templates", schema("`${")
    yield "quotes", schema("'")
    yield "quotes on lines", schema("'\n")
    yield "double quotes on lines", schema('"\n')
    yield "backslashes", schema("\\", '"')
    yield "escapes in a text", schema("\\u0041", '"', '"')
    yield "long escapes", schema("\\u{1f600}", '"', '"')
    yield "members", schema(lambda number: f"a{number:x}:1,", "{", "}")
    yield "items", schema("1,", "[", "]")
    yield "spreads", schema("...[],", "[", "]")
    yield "texts that are added", schema('"a"+', after='"a"')
    yield "types", schema(" as a", "1")
    yield "open types", schema("<", "1 as a")
    yield "angle brackets", schema("as a<", "{a:1 ")
    yield "many types", schema("1 as a,", "[", "]")
    yield "blanks", schema(" ", after="1")
    yield "numbers", schema("1")
    yield "underscores", schema("1_", after="1")
    yield "exports", filled(constants, "export const ")
    yield "export words", filled(constants, "export ")
    yield "exports on lines", filled(constants, "export\n")
    yield "constants", filled(constants, lambda number: f"const a{number} = 1;\n")
    yield "const words", filled(constants, "const ")
    yield "constants of long names", filled(constants, "const a", " = 1")
    yield "colons", filled(f"{constants}export const CONFIG_SCHEMA", ":")
    yield "annotations", filled(f"{constants}export const CONFIG_SCHEMA: ", "a=>")
    yield (
        "names of names",
        filled(
            f"{constants}const a0 = 1;\n",
            lambda number: f"const a{number + 1} = a{number};\n",
            "export const CONFIG_SCHEMA = a30000;\n",
        ),
    )
    yield (
        "names that double",
        filled(
            f"{constants}const a0 = [1];\n",
            lambda number: f"const a{number + 1} = [a{number}, a{number}];\n",
            "export const CONFIG_SCHEMA = a20;\n",
        ),
    )
    yield "functions", filled(constants, "export function a() {}\n")
    yield "async functions", filled(constants, "export async ")
    yield "function words", filled(constants, "export async function ")
    yield "members of exports", filled(constants, "module.exports.a = 1;\n")
    yield "returns of patterns", filled(constants, "return /")
    yield "blanks before names", filled(f"{constants}const", " ")
    yield "names", filled(constants, "a ")
    yield "one name", filled(constants, "a")
    yield "dollar signs", filled(constants, "$")
    yield "freezes", schema("Object.freeze(", "")
    yield "closing brackets", filled(constants, "}")
    yield "braces", filled(constants, "{}")
    yield "one name again and again", filled(constants, "const CONFIG_SCHEMA = {};\n")


def _bash() -> Iterator[tuple[str, Text]]:
    head = '#!/bin/bash\n# __version__ = "1.0.0"\n# __tool_type__ = "bash"\n# __category__ = "huge"\n'
    head += "# __executor_id__ = rye/core/runtimes/bash/bash\n"
    schema = f"{head}# CONFIG_SCHEMA = "
    yield "open brackets in a comment", filled(schema, "[")
    yield "comment lines of brackets", filled(schema + "[\n", "# [\n")
    yield "comment lines of items", filled(schema + "[\n", "# 1,\n", "# 1]\n")
    yield "quotes in a comment", filled(schema + "[", '"')
    yield "quotes on comment lines", filled(schema + "[\n", '# "\n')
    yield "backslashes in a comment", filled(schema + '["', "\\")
    yield "one name again and again", filled(head, "# CONFIG_SCHEMA = {}\n")
    yield "one unclosed name again and again", filled(head, "# CONFIG_SCHEMA = {\n")
    yield "assignments", filled(head, "CONFIG_SCHEMA='\n")
    yield "an unclosed assignment", filled(f"{head}CONFIG_SCHEMA='", "a")
    yield "members", filled(f"{head}CONFIG_SCHEMA='{{", lambda number: f'"{number:x}":1,', "}'\n")
    yield "declarations", filled(head, "declare -a ")
    yield "options of a declaration", filled(f"{head}declare", " -a")
    yield "blanks in a comment", filled(f"{head}#", " ")
    yield "comment signs", filled(head, "#")
    yield "comment lines", filled(head, "# a = 1\n")
    yield "words", filled(head, "a ")
    yield "one word", filled(head, "a")
    yield "lines", filled(head, "a\n")


def _toml() -> Iterator[tuple[str, Text]]:
    head = 'tool_type = "script"\nversion = "1.0.0"\nexecutor_id = "rye/core/runtimes/python/script"\n'
    yield "open brackets", filled("a = ", "[")
    yield "open braces", filled("", "a={")
    yield "inline members", filled("a={", "a.")
    yield "dotted keys", filled("", "a.", "a = 1\n")
    yield "dotted tables", filled("[", "a.", "a]\n")
    yield "tables", filled(head, lambda number: f"[a{number}]\n")
    yield "arrays of tables", filled(head, "[[a]]\n")
    yield "nested arrays of tables", filled(head, "[[a.b.c.d.e]]\n")
    yield "deep tables", filled(head, lambda number: "[" + "a." * 300 + f"b{number}]\n")
    yield "deep keys", filled(head, lambda number: "a." * 300 + f"b{number}=1\n")
    yield "members", filled(head, lambda number: f"a{number}=1\n")
    yield "items", filled(f"{head}a=[", "1,", "]\n")
    yield "an item again and again", filled(f"{head}a=[", "[],", "]\n")
    yield "a text", filled(f'{head}a="', "b", '"\n')
    yield "an unclosed text", filled(f'{head}a="""', "b\n")
    yield "escapes", filled(f'{head}a="', "\\u0041", '"\n')
    yield "blanks", filled(f"{head}a=", " ", "1\n")
    yield "comments", filled(head, "#\n")
    yield "line ends", filled(head, "\n")
    yield "carriage returns", filled(head, "\r\n")
    yield "one number", filled(f"{head}a=", "1", "\n")
    yield "one hexadecimal number", filled(f"{head}a=0x", "f", "\n")
    yield "underscores", filled(f"{head}a=", "1_", "1\n")
    yield "dates", filled(f"{head}a=[", "2026-01-31T00:00:00Z,", "]\n")
    yield "floats", filled(f"{head}a=[", "nan,", "]\n")
    yield "quotes", filled("", '"')
    yield "equal signs", filled("", "=")
