"""JSON as text: what is read, what is refused and where, what is written, and that nothing is lost."""

from __future__ import annotations

import hashlib
import json
import struct
import time
from typing import Any

import pytest
import rfc8785
from hypothesis import given, reject
from hypothesis import strategies as st

from tests.strategies import json_values, texts
from toolcrib import jsontext
from toolcrib.jsontext import DEPTH_MAX, INTEGER_DIGITS_MAX, VALUES_MAX, Duplicate, Parsed

wide_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
)
wide_values = st.recursive(
    wide_scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
)
"""Everything that a document may hold."""


def careful(text: str) -> Parsed:
    return jsontext._Careful(text, DEPTH_MAX).document()


def defect(text: str | bytes) -> str:
    found = jsontext.read(text if isinstance(text, bytes) else text.encode("utf-8")).defect
    assert found is not None, text
    return str(found)


# -- reading ------------------------------------------------------------------------------------------------


@given(wide_values)
def test_what_is_written_is_read_back_as_it_was(value: Any) -> None:
    assert repr(jsontext.read(jsontext.compact(value)).value) == repr(value)
    assert repr(jsontext.loads_own(jsontext.compact(value))) == repr(value)


@given(wide_values, st.sampled_from([None, 1, 4, "\t"]), st.booleans())
def test_both_readers_agree_on_every_valid_text(value: Any, indent: Any, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert repr(careful(text)) == repr(Parsed(value))
    assert repr(jsontext.read(text.encode("utf-8"))) == repr(Parsed(value))


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A JSON text with a few characters changed, so that it is nearly one, and sometimes one."""
    text = draw(
        json_values.map(json.dumps) | st.sampled_from(['{"a": [1, 2.5e3, "x\\n"], "b": null}', "-0.5E-7"])
    )
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        new = draw(st.sampled_from('{}[]",:\\/u0123456789abcdefn.eE+- \n\t\x01é') | st.just(""))
        text = text[:at] + new + text[at + draw(st.integers(0, 2)) :]
    return text


_ODD_STRINGS = (
    ":", r"\u003a", r"\u003A", r"\\u003a", r"\"", r"\n", r"\\", r"\u0061", "a", "é", "{", "0" * 17, r"\u0000",
    r"\ud83d\ude00", r"\ud83d", r"\u00", "\t",
)  # fmt: skip
_ODD_NUMBERS = (
    "0", "-0", "-0.0", "1e2", "1E-2", "1.50", "1e999", "-1e999", "1e-999", "5e-324", "9" * 15, "9" * 16,
    "9" * 20, "18446744073709551615", "18446744073709551616", "0.1234567890123456789", "01", "1.", "+1",
    "NaN", "-Infinity",
)  # fmt: skip
# Everything that counting colons, digits and escapes could trip over, as it stands in a text.
string_texts = st.lists(st.sampled_from(_ODD_STRINGS), max_size=3).map(lambda parts: f'"{"".join(parts)}"')
number_texts = st.sampled_from(_ODD_NUMBERS)
keyed_texts = st.sampled_from(['"a"', r'"\u0061"', '"b"', '":"', r'"\u003a"', '""'])
raw_texts = st.recursive(
    string_texts | number_texts | st.sampled_from(["null", "true", "false", "True"]),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(keyed_texts, inner), max_size=4).map(
            lambda members: "{" + ",".join(f"{key} :{value}" for key, value in members) + "}"
        )
    ),
)


@given(damaged() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | raw_texts)
def test_both_readers_agree_on_what_is_refused(text: str) -> None:
    verdict = careful(text)
    quick = jsontext._quick(text.encode("utf-8"), DEPTH_MAX, VALUES_MAX)
    assert quick is jsontext._DOUBTFUL or repr(Parsed(quick)) == repr(verdict)
    assert repr(jsontext.read(text.encode("utf-8"))) == repr(verdict)


@given(st.binary(max_size=100))
def test_no_bytes_make_it_raise(content: bytes) -> None:
    found = jsontext.read(content)
    assert found.defect is None or (found.defect.line >= 1 and found.defect.column >= 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1, column 1: the file is empty"),
        (" \n ", "line 2, column 2: the file is empty"),
        ("{", "line 1, column 2: expected a key in double quotes (got the end of the file)"),
        ('{"a"', "line 1, column 5: expected ':' after the key (got the end of the file)"),
        ('{"a":1', "line 1, column 7: expected ',' or '}' (got the end of the file)"),
        ('{"a":1,}', "line 1, column 7: a comma stands before '}'; remove it"),
        ("[1,\n2,\n]", "line 2, column 2: a comma stands before ']'; remove it"),
        ("[1 2]", "line 1, column 4: expected ',' or ']' (got '2')"),
        ("[,]", "line 1, column 2: expected a value (got ',')"),
        ("{} {}", "line 1, column 4: unexpected text after the end of the value (got '{')"),
        ("{'a':1}", 'line 1, column 2: expected a key in double quotes (got "\'")'),
        ("{a:1}", "line 1, column 2: expected a key in double quotes (got 'a')"),
        ("// x\n{}", "line 1, column 1: expected a value (got '/')"),
        ("True", "line 1, column 1: expected a value (got 'T')"),
        ("nul", "line 1, column 1: expected a value (got 'n')"),
        ('"a', "line 1, column 1: the string is not closed"),
        ('"a\nb"', "line 1, column 3: a control character stands in a string (0x0a); escape it"),
        ('"\\x41"', "line 1, column 2: unknown escape in a string (got 'x')"),
        ('"\\', "line 1, column 2: unknown escape in a string (got '')"),
        ('"\\u12"', "line 1, column 2: \\u needs four hexadecimal digits"),
        ('"\\u0000"', "line 1, column 2: a NUL character (\\u0000) is not allowed"),
        ('"\\ud800"', "line 1, column 2: a lone surrogate (\\ud800) is not a character"),
        ('"\\udc00\\ud800"', "line 1, column 2: a lone surrogate (\\udc00) is not a character"),
        ('"\\ud800\\u0041"', "line 1, column 2: a lone surrogate (\\ud800) is not a character"),
        ("-", "line 1, column 1: expected a number after '-'"),
        ("+1", "line 1, column 1: expected a value (got '+')"),
        ("01", "line 1, column 1: not a JSON number (a leading zero or a bare point)"),
        ("-01", "line 1, column 1: not a JSON number (a leading zero or a bare point)"),
        ("1.", "line 1, column 1: not a JSON number (a leading zero or a bare point)"),
        (".5", "line 1, column 1: expected a value (got '.')"),
        ("1e", "line 1, column 2: unexpected text after the end of the value (got 'e')"),
        ("٣", "line 1, column 1: expected a value (got '٣')"),
        ("NaN", "line 1, column 1: NaN is not a JSON number"),
        ("[Infinity]", "line 1, column 2: Infinity is not a JSON number"),
        ("-Infinity", "line 1, column 1: -Infinity is not a JSON number"),
        ("1e999", "line 1, column 1: the number is too large"),
        ("-1e999", "line 1, column 1: the number is too large"),
        (
            "\ufeff{}",
            "line 1, column 1: the file begins with a byte-order mark; save it as UTF-8 without one",
        ),
    ],
)
def test_a_refusal_says_what_and_where(text: str, expected: str) -> None:
    assert defect(text) == expected


@given(json_values, st.integers(0, 8))
def test_depth_is_counted_as_the_reader_counts_it(value: Any, levels: int) -> None:
    reads = jsontext.read(json.dumps(value).encode(), depth_max=levels).defect is None
    assert jsontext.is_deeper(value, levels) is not reads


def test_a_list_in_itself_is_deep_and_is_told_so_at_once() -> None:
    many: list[Any] = []
    many += [many, many, {"again": many}]
    assert jsontext.is_deeper(many, 100)


def test_an_escaped_nul_is_read_only_where_it_is_data() -> None:
    text = b'{"a\\u0000": ["\\u0000b"]}'
    assert "a NUL character" in str(jsontext.read(text).defect)
    assert jsontext.read(text, allow_nul=True).value == {"a\0": ["\0b"]}
    assert "control character" in str(jsontext.read(b'"\0"', allow_nul=True).defect)


def test_bytes_that_are_not_utf8_are_named_with_their_place() -> None:
    assert defect(b'{"a":\n "\xff"}') == "line 2, column 3: not UTF-8 (byte 0xff)"
    assert defect(b'"\xed\xa0\x80"') == "line 1, column 2: not UTF-8 (byte 0xed)"  # a surrogate as bytes
    assert defect(b'"\xc0\x80"') == "line 1, column 2: not UTF-8 (byte 0xc0)"  # NUL in two bytes


@pytest.mark.parametrize(
    "text", ["[" * DEPTH_MAX + "]" * DEPTH_MAX, '{"a":' * DEPTH_MAX + "1" + "}" * DEPTH_MAX]
)
def test_nesting_is_read_to_its_limit_and_no_further(text: str) -> None:
    assert jsontext.read(text.encode()).defect is None
    assert careful(text).defect is None
    for deeper in (f"[{text}]", f'{{"a":{text}}}', f'[1, "[", {text}]'):
        assert "nested more than 100 levels deep" in defect(deeper)
        assert "nested more than 100 levels deep" in str(careful(deeper).defect)


def test_many_brackets_are_not_deep_ones() -> None:
    value: list[Any] = [[{"a": []}] for _ in range(500)] + ["[[[{{{" * 100]
    text = jsontext.compact(value)
    assert jsontext.read(text) == Parsed(value)
    assert jsontext.read(text, depth_max=4) == Parsed(value)
    assert jsontext.read(text, depth_max=3).defect is not None


@given(json_values, st.integers(1, 12), st.integers(1, 5))
def test_both_readers_count_values_and_levels_alike(value: Any, values_max: int, depth_max: int) -> None:
    text = json.dumps(value)
    verdict = jsontext._Careful(text, depth_max, values_max).document()
    assert repr(jsontext.read(text.encode(), depth_max=depth_max, values_max=values_max)) == repr(verdict)
    count = sum(1 for _ in jsontext.walk(value))
    assert verdict.defect is None or count > values_max or depth_max < 5
    assert verdict.defect is not None or count <= values_max


def test_values_are_read_to_their_limit_and_no_further() -> None:
    fits = [0] * (VALUES_MAX - 1)
    assert jsontext.read(jsontext.compact(fits)) == Parsed(fits)
    assert "more than 100,000 values" in defect(jsontext.compact([*fits, 0]))
    members = {f"k{number}": number for number in range(VALUES_MAX)}
    assert "more than 100,000 values" in defect(jsontext.compact(members))
    assert jsontext.read(jsontext.compact("," * VALUES_MAX)).defect is None  # commas in a text are no values


def test_integers_are_read_to_their_limit_and_no_further() -> None:
    for sign in ("", "-"):
        longest = sign + "9" * INTEGER_DIGITS_MAX
        assert jsontext.read(longest.encode()).value == int(longest)
        assert careful(longest).value == int(longest)
        assert "more than 4300 digits" in defect(longest + "9")


def test_repeated_members_are_named_and_none_of_them_is_taken() -> None:
    parsed = jsontext.read(b'{"a": 1, "b": {"c": 2,\n "c": 3,\n "c": 4}, "a": 5, "d": 6}')
    assert parsed.value == {"b": {}, "d": 6}
    assert parsed.duplicates == (
        Duplicate(("b",), "c", 2),
        Duplicate(("b",), "c", 3),
        Duplicate((), "a", 3),
    )


def test_a_member_repeated_in_another_spelling_of_its_characters_is_repeated() -> None:
    assert jsontext.read(rb'{"command": 1, "comm\u0061nd": 2}').duplicates == (Duplicate((), "command", 1),)


def test_a_megabyte_is_read_in_linear_time() -> None:
    """Quadratic reading would take minutes; the bound only tells the two apart."""
    count = 100_000
    for text in (
        "[" + ",".join(["1"] * count) + "]",
        '{"a":[' + ",".join('{"b":1,"b":2}' for _ in range(count // 2)) + "]}",
        '"' + "\\u0041" * count + "\\ud83d\\ude00" + '"',
        "\n" * count * 5 + "[x]",
    ):
        start = time.process_time()
        jsontext.read(text.encode())
        careful(text)
        assert time.process_time() - start < 10


# -- places -------------------------------------------------------------------------------------------------


@given(json_values, st.sampled_from([None, 2]))
def test_every_place_is_found_in_the_text(value: Any, indent: Any) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    spans = jsontext.locate(text)
    assert set(spans) == {pointer for pointer, _ in jsontext.walk(value)}
    for pointer, span in spans.items():
        assert json.loads(text[span.start : span.end]) == jsontext.at(value, pointer)
        assert span.line == text.count("\n", 0, span.start) + 1
        if span.key_start is not None:
            assert json.loads(text[span.key_start : span.key_end]) == pointer[-1]
        else:
            assert not pointer or isinstance(pointer[-1], int)


def test_places_before_a_defect_are_found_all_the_same() -> None:
    spans = jsontext.locate('{"a": 1,\n "b": [2, x]}')
    assert {pointer: span.line for pointer, span in spans.items()} == {("a",): 1, ("b", 0): 2}


def test_addresses_are_written_for_programs_and_for_people() -> None:
    pointer = ("tools", 0, "a/b~c", "", "x")
    assert jsontext.pointer_text(pointer) == "/tools/0/a~1b~0c//x"
    assert jsontext.pointer_text(()) == ""
    assert jsontext.place_text(("tools", 0, "name")) == "tools[0].name"
    assert jsontext.place_text((3, "a")) == "[3].a"
    assert jsontext.place_text(()) == ""


# -- canonical form (RFC 8785) ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_are_written_as_appendix_b_has_them(bits: str, expected: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert jsontext.canonical(number).decode() == expected


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_numbers_without_a_json_form_are_refused(bits: str) -> None:
    with pytest.raises(ValueError, match="no JSON form"):
        jsontext.canonical(struct.unpack(">d", bytes.fromhex(bits))[0])


def test_the_rfcs_own_examples_are_written_as_it_has_them() -> None:
    numbers = rb'{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],'
    string = (
        rb'"string":"\u20ac$\u000F\u000aA'
        + rb"'\u0042\u0022\u005c\\\"\/"
        + rb'","literals":[null,true,false]}'
    )
    assert (
        jsontext.canonical(jsontext.read(numbers + string).value)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


def test_keys_are_sorted_by_their_utf16_units() -> None:
    keys = [
        "\r",
        "1",
        "\x80",
        "ö",
        "€",
        "😀",
        "\ufb33",
    ]  # the emoji begins with a surrogate, so before U+FB33
    assert list(jsontext.read(jsontext.canonical(dict.fromkeys(sorted(keys), 0))).value) == keys


@given(wide_values)
def test_the_canonical_form_is_what_another_implementation_writes(value: Any) -> None:
    try:
        expected = rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:  # it has no integers beyond 2**53
        reject()
    assert jsontext.canonical(value) == expected


@given(wide_values)
def test_the_canonical_form_is_a_fixed_point_and_does_not_depend_on_key_order(value: Any) -> None:
    text = jsontext.canonical(value)
    assert jsontext.canonical(jsontext.loads_own(text)) == text
    assert jsontext.canonical(reordered(value)) == text


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


def test_a_digest_tells_apart_what_differs_and_nothing_else() -> None:
    assert jsontext.digest({"a": 1, "b": [True, None]}) == jsontext.digest({"b": [True, None], "a": 1.0})
    assert jsontext.digest({}) == "sha256:" + hashlib.sha256(b"{}").hexdigest()
    values: list[Any] = [1, "1", True, None, [], {}, [1], [[1]], 2**53, 2**53 + 1, "a\u0301", "á"]
    assert len({jsontext.digest(value) for value in values}) == len(values)


@pytest.mark.parametrize("depth", [101, 255, 300, 1_000, 1_023, 1_100, 5_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_beyond_the_limit_is_a_defect_at_every_depth(
    depth: int, opening: bytes, closing: bytes
) -> None:
    parsed = jsontext.read(opening * depth + b"1" + closing * depth)
    assert parsed.defect is not None
    assert "levels deep" in parsed.defect.message
