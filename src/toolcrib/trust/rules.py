"""The rules of ``[[policy]]``: reading them, and whether one fits a tool and a call. Pure and total.

A rule is a table: ``match`` says which calls, ``decision`` what it says then, ``because`` why, and
``examples`` what its author expects, which is checked when the rule is read. Reading never raises: what
cannot be understood is written down in ``Rule.mistakes``, and the rule then refuses more, never less. Whether
the mistake is an error of the configuration is ``config.py``'s business, and what a decision gives besides is
``policy.py``'s.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import FORMATS, WRITE, Effect, Trust
from toolcrib.paths import is_below

LASTING: Final = ("name", "key", "format", "effect", "needs")
"""What a rule may ask about that follows from the tool and the house alone."""
PASSING: Final = ("trust", "caller")
"""What it may ask about that differs from call to call."""
SUBJECTS: Final = (*LASTING, *PASSING)
RULE_KEYS: Final = ("match", "decision", "because", "examples")
TEST_KEYS: Final = ("like", "equals", "min", "max", "present", "under", "outside")
_EXAMPLE_KEYS: Final = ("call", "decision")
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "effect": tuple(Effect),
    "trust": tuple(Trust),
    "format": FORMATS,
}
"""Subjects with a closed vocabulary: a pattern that fits none of it is a typing error."""
_SUMMARIES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "effect": {WRITE: (Effect.CREATE.value, Effect.CHANGE.value)},
}
"""Words of rules that stand for several words of a subject."""
_WILD: Final = r"[*?\[]"
_WILD_STEPS: Final = ("*", "**")
_SINGLE: Final = (str, int, float, bool)
_NUMBER_CHARS_MAX: Final = 400
_NUMBER_CHARS: Final = frozenset("0123456789+-.eE_ ")
_SHOWN_CHARS_MAX: Final = 60


class Answer(StrEnum):
    """What a rule of ``[[policy]]`` says, the strongest first."""

    DENY = "deny"
    ASK = "ask"
    ALLOW = "allow"


STRENGTH: Final = {answer: place for place, answer in enumerate(Answer)}


class Patterns(Struct, frozen=True, kw_only=True):
    """Shell patterns: a text fits that fits one of ``wanted`` (none: any) and none of ``unwanted``."""

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    def fit(self, text: str) -> bool:
        if self.unwanted and any(_compiled(pattern).match(text) for pattern in self.unwanted):
            return False
        return not self.wanted or any(_compiled(pattern).match(text) for pattern in self.wanted)

    def fit_any(self, texts: Iterable[str]) -> bool:
        """Whether one of the texts fits: a tool escapes no rule by one more name that does not."""
        return any(map(self.fit, texts))


@lru_cache(maxsize=8192)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


class ArgumentTest(Struct, frozen=True, kw_only=True):
    """What must hold for one place in the arguments. All that is set must hold for one and the same value."""

    steps: tuple[str, ...]
    """The way to the place; ``*`` is every member or item there, ``**`` everything below."""
    like: Patterns | None = None
    equals: tuple[JsonValue, ...] = ()
    least: float | None = None
    most: float | None = None
    present: bool | None = None
    under: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


class Match(Struct, frozen=True, kw_only=True):
    """Which calls: every subject named must fit, and every test of the arguments hold."""

    subjects: tuple[tuple[str, Patterns], ...] = ()
    arguments: tuple[ArgumentTest, ...] = ()

    def fits(self, seen: Mapping[str, Sequence[str]], among: Sequence[str] = SUBJECTS) -> bool:
        """Whether the subjects (those ``among`` the given ones) fit what is known of a tool and a caller."""
        return all(patterns.fit_any(seen[name]) for name, patterns in self.subjects if name in among)

    def asks_about(self, among: Sequence[str]) -> bool:
        return any(name in among for name, _ in self.subjects)

    def holds(self, arguments: JsonObject | None, cwd: str, meant: JsonObject | None = None) -> bool:
        """Whether every test of the arguments holds. Arguments that nobody could read fit anything.

        ``meant``: the same as the tool will understand them. Attack: an argument that is left out, so that
        the tool takes the very value that a rule refuses; a switch that is set by a word or a number, past a
        rule about true. A test holds where it does for either.
        """
        if arguments is not None:
            for test in self.arguments:
                if not _holds(test, arguments, cwd) and (meant is None or not _holds(test, meant, cwd)):
                    return False
        return True


class Rule(Struct, frozen=True, kw_only=True):
    """One ``[[policy]]``: what it fits, and what it says then.

    With ``mistakes`` it was not understood. Such a rule never allows anything, and refuses whatever the rest
    of it fits: not knowing a word must not open a door.
    """

    match: Match = Match()
    answer: Answer
    because: str = ""
    place: str = ""
    """The file, the line and the number: what people are shown."""
    mistakes: tuple[str, ...] = ()


# -- reading rules ------------------------------------------------------------------------------------------


def rules_of(tables: Sequence[object], places: Sequence[str] = ()) -> tuple[Rule, ...]:
    """The rules of ``[[policy]]`` tables. Total: what it cannot read, it distrusts."""
    return tuple(
        _rule(table, places[number] if number < len(places) else f"policy[{number}]")
        for number, table in enumerate(tables)
    )


def _rule(table: object, place: str) -> Rule:
    mistakes: list[str] = []
    if not isinstance(table, Mapping):
        return Rule(
            answer=Answer.DENY, because="a rule that is no table", place=place, mistakes=("no table",)
        )
    mistakes += (f"unknown key {_shown(key)}" for key in table if key not in RULE_KEYS)
    match = match_of(table.get("match", {}), mistakes)
    decision = table.get("decision")
    if decision not in [*Answer]:
        mistakes.append(
            "needs decision" if decision is None else f"decision: {_choices(decision, [*Answer])}"
        )
    because = table.get("because")
    if not isinstance(because, str) or not because.strip():
        mistakes.append("needs because")
        because = "a rule that gives no reason"
    answer = Answer(str(decision)) if decision in [*Answer] else Answer.DENY
    return Rule(match=match, answer=answer, because=because, place=place, mistakes=tuple(mistakes))


def match_of(given: object, mistakes: list[str]) -> Match:
    """A ``match`` table; what cannot be read of it is left out, so that the rest fits more."""
    if not isinstance(given, Mapping):
        mistakes.append("match: must be a table")
        return Match()
    subjects: list[tuple[str, Patterns]] = []
    tests: list[ArgumentTest] = []
    for subject, wanted in given.items():
        where = f"match.{subject}"
        if subject == "arguments":
            tests += _tests(wanted, mistakes)
        elif subject not in SUBJECTS:
            mistakes.append(f"unknown key {_shown(where)}")
        elif (patterns := _patterns(wanted, where, mistakes)) is not None:
            words, summary = _WORDS.get(subject, ()), _SUMMARIES.get(subject, {})
            given_words = [word for word in _each(wanted) if word.removeprefix("!") not in summary]
            strange = next((word for word in given_words if words and not _names_any(word, words)), None)
            if strange is not None:
                # Attack: a refusal of the effect "chnage", which nothing ever has.
                mistakes.append(f"{where}: {_choices(strange, (*words, *summary))}")
            else:
                subjects.append((subject, _expanded(patterns, summary)))
    return Match(subjects=tuple(subjects), arguments=tuple(tests))


def _expanded(patterns: Patterns, summary: Mapping[str, tuple[str, ...]]) -> Patterns:
    """Return the patterns with each word of `summary` replaced by the words it stands for."""

    def expand(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(word for text in texts for word in summary.get(text, (text,)))

    return Patterns(wanted=expand(patterns.wanted), unwanted=expand(patterns.unwanted))


def _names_any(pattern: str, words: Sequence[str]) -> bool:
    return any(_compiled(pattern.removeprefix("!")).match(word) for word in words)


def _each(wanted: Any) -> Sequence[str]:
    return (wanted,) if isinstance(wanted, str) else wanted


def _patterns(wanted: object, where: str, mistakes: list[str]) -> Patterns | None:
    texts = (wanted,) if isinstance(wanted, str) else wanted
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        mistakes.append(f"{where}: must be a pattern or a list of patterns")
        return None
    if not texts or not all(texts):
        mistakes.append(f"{where}: must not be empty")
        return None
    return Patterns(
        wanted=tuple(text for text in texts if not text.startswith("!")),
        unwanted=tuple(text[1:] for text in texts if text.startswith("!")),
    )


def _tests(given: object, mistakes: list[str]) -> Iterator[ArgumentTest]:
    if not isinstance(given, Mapping) or not given:
        mistakes.append("match.arguments: must be a table of arguments")
        return
    for name, wanted in given.items():
        where = f"match.arguments.{name}"
        before = len(mistakes)
        steps = _steps(str(name))
        if steps.count("**") > 1:  # each more would multiply the work by the size of the arguments
            mistakes.append(f"{where}: has more than one **")
        test = _test(steps, wanted, where, mistakes)
        if len(mistakes) == before:
            yield test


def _steps(name: str) -> tuple[str, ...]:
    """``path`` is the argument of that name, dots and all; ``/options/path`` is an RFC 6901 pointer."""
    if not name.startswith("/"):
        return (name,)
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in name[1:].split("/"))


def _test(steps: tuple[str, ...], wanted: object, where: str, mistakes: list[str]) -> ArgumentTest:
    if isinstance(wanted, str):
        return ArgumentTest(steps=steps, like=_patterns(wanted, where, mistakes))
    if isinstance(wanted, (bool, int, float)):
        return ArgumentTest(steps=steps, equals=(wanted,))
    if isinstance(wanted, (list, tuple)):
        if wanted and not any(isinstance(item, str) for item in wanted) and all(map(_is_json, wanted)):
            return ArgumentTest(steps=steps, equals=tuple(wanted))
        return ArgumentTest(steps=steps, like=_patterns(wanted, where, mistakes))
    if not isinstance(wanted, Mapping) or not wanted:
        mistakes.append(f"{where}: must be a pattern, a value, or a table of {', '.join(TEST_KEYS)}")
        return ArgumentTest(steps=steps)
    mistakes += (f"unknown key {_shown(f'{where}.{key}')}" for key in wanted if key not in TEST_KEYS)
    for key in ("min", "max"):
        if key in wanted and (type(wanted[key]) not in (int, float) or wanted[key] != wanted[key]):
            mistakes.append(f"{where}.{key}: must be a number")
            return ArgumentTest(steps=steps)
    present = wanted.get("present")
    if present is not None and not isinstance(present, bool):
        mistakes.append(f"{where}.present: must be true or false")
    if present is False and len(wanted) > 1:
        mistakes.append(f"{where}: what is not present is nothing else, so present = false stands alone")
    if "equals" in wanted and not _is_json(wanted["equals"]):
        mistakes.append(f"{where}.equals: must be a value that JSON has")
    like = _patterns(wanted["like"], f"{where}.like", mistakes) if "like" in wanted else None
    return ArgumentTest(
        steps=steps,
        like=like,
        equals=(wanted["equals"],) if "equals" in wanted else (),
        least=wanted.get("min"),
        most=wanted.get("max"),
        present=present,
        under=_roots(wanted, "under", where, mistakes),
        outside=_roots(wanted, "outside", where, mistakes),
    )


def _roots(wanted: Mapping[str, Any], key: str, where: str, mistakes: list[str]) -> tuple[str, ...]:
    if key not in wanted:
        return ()
    given = wanted[key]
    roots = (given,) if isinstance(given, str) else given
    if not (
        isinstance(roots, (list, tuple))
        and roots
        and all(isinstance(root, str) and root.startswith("/") for root in roots)
    ):
        mistakes.append(f"{where}.{key}: must be an absolute path or a list of them")
        return ()
    return tuple(_normal(root) for root in roots)


def _is_json(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_json, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return value is None or isinstance(value, (str, bool, int, float))


def _choices(given: object, words: Sequence[str]) -> str:
    return f"must be one of {', '.join(words)} (got {_shown(given)})"


def _shown(value: object) -> str:
    return repr(str(value)[:_SHOWN_CHARS_MAX])


# -- examples -----------------------------------------------------------------------------------------------


def failing(table: object, rules: Sequence[Rule]) -> Iterator[str]:
    """Which examples of a rule's table do not come out as it says, by all the rules of its file together."""
    examples = table.get("examples", []) if isinstance(table, Mapping) else []
    if not isinstance(examples, (list, tuple)):
        yield "examples: must be a list of tables"
        return
    for number, example in enumerate(examples):
        where = f"examples[{number}]"
        mistakes: list[str] = []
        seen, arguments = _example(example, mistakes)
        if mistakes:
            yield from (f"{where}: {mistake}" for mistake in mistakes)
            continue
        found = strongest(rules, seen, arguments)
        said = found.answer if found is not None else Answer.ALLOW
        if said != example["decision"]:
            by = f" by {found.place}" if found is not None else ": no rule fits"
            yield f"{where}: expects {example['decision']}, but it is {said}{by}"


def _example(example: object, mistakes: list[str]) -> tuple[dict[str, tuple[str, ...]], JsonObject]:
    seen: dict[str, tuple[str, ...]] = {
        **dict.fromkeys(SUBJECTS, ("",)),
        "needs": (),
        "effect": (Effect.CHANGE.value,),
        "trust": (Trust.UNSIGNED.value,),
    }
    if not isinstance(example, Mapping) or not isinstance(example.get("call"), Mapping):
        mistakes.append("must be a table with call and decision")
        return seen, {}
    mistakes += (f"unknown key {_shown(key)}" for key in example if key not in _EXAMPLE_KEYS)
    if example.get("decision") not in [*Answer]:
        mistakes.append(f"decision: {_choices(example.get('decision'), [*Answer])}")
    call = example["call"]
    for key, value in call.items():
        texts = (value,) if isinstance(value, str) else value
        if key == "arguments":
            if not isinstance(value, Mapping) or not _is_json(value):
                mistakes.append("call.arguments: must be a table of values that JSON has")
        elif key not in SUBJECTS:
            mistakes.append(f"unknown key {_shown(f'call.{key}')}")
        elif not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
            mistakes.append(f"call.{key}: must be a text or a list of texts")
        elif key in _WORDS and not set(texts) <= set(_WORDS[key]):
            only_rules = next((text for text in texts if text in _SUMMARIES.get(key, {})), None)
            mistakes.append(
                f"call.{key}: {_choices(value, _WORDS[key])}"
                + (f"; {_shown(only_rules)} is a word of `match` only" if only_rules else "")
            )
        else:
            seen[key] = tuple(texts)
    arguments = call.get("arguments", {})
    return seen, dict(arguments) if isinstance(arguments, Mapping) else {}


def strongest(
    rules: Sequence[Rule], seen: Mapping[str, Sequence[str]], arguments: JsonObject | None, cwd: str = ""
) -> Rule | None:
    """The rule that decides, of those that fit: a refusal wins, then a question; the earlier of equals."""
    for rule in in_order(rules):
        if rule.match.fits(seen) and rule.match.holds(arguments, cwd):
            return rule
    return None


def in_order(rules: Sequence[Rule]) -> list[Rule]:
    """The strongest first. What was not understood allows nothing."""
    kept = (rule for rule in rules if rule.answer is not Answer.ALLOW or not rule.mistakes)
    return sorted(kept, key=lambda rule: STRENGTH[rule.answer])


class Index:
    """Rules by how their patterns begin, so that a tool is compared with the few that may fit it."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = in_order(rules)
        self._by_start: dict[tuple[str, str], list[int]] = {}
        self._lengths: dict[str, set[int]] = {}
        self._rest: list[int] = []
        for rank, rule in enumerate(self._rules):
            starts = _starts(rule.match)
            if starts is None:
                self._rest.append(rank)
                continue
            subject, texts = starts
            for text in texts:
                self._by_start.setdefault((subject, text), []).append(rank)
                self._lengths.setdefault(subject, set()).add(len(text))

    def __bool__(self) -> bool:
        return bool(self._rules)

    def fitting(self, seen: Mapping[str, Sequence[str]]) -> Iterator[Rule]:
        """The rules whose lasting subjects fit, the strongest first."""
        ranks = {*self._rest}
        for subject, lengths in self._lengths.items():
            for text in seen[subject]:
                for length in lengths:
                    ranks.update(self._by_start.get((subject, text[:length]), ()))
        for rank in sorted(ranks):
            rule = self._rules[rank]
            if rule.match.fits(seen, LASTING):
                yield rule


def _starts(match: Match) -> tuple[str, list[str]] | None:
    """A subject of which every pattern begins with letters of its own, and these; the longest ones."""
    best: tuple[str, list[str]] | None = None
    for subject, patterns in match.subjects:
        starts = [re.split(_WILD, pattern, maxsplit=1)[0] for pattern in patterns.wanted]
        found = subject in LASTING and starts and all(starts)
        if found and (best is None or min(map(len, starts)) > min(map(len, best[1]))):
            best = (subject, starts)
    return best


class ByArgument:
    """Rules whose other subjects fit, found again by the names of a call's arguments."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """``rules``: the strongest first."""
        self._always: list[tuple[int, Rule]] = []
        self._named: dict[str, list[tuple[int, Rule]]] = {}
        for rank, rule in enumerate(rules):
            name = _needed_name(rule.match)
            held = self._always if name is None else self._named.setdefault(name, [])
            held.append((rank, rule))

    def first(self, arguments: JsonObject | None, cwd: str, meant: JsonObject | None = None) -> Rule | None:
        """The strongest rule that fits the arguments, as they are or as they are ``meant``."""
        found = self._always
        # Defaults only add names, so that ``meant`` has all of them.
        for name in self._named if arguments is None else arguments if meant is None else meant:
            held = self._named.get(name)
            if held is not None:
                found = [*found, *held] if found else held
        if found is not self._always and len(found) > 1:
            found = sorted(found, key=_rank)
        for _, rule in found:
            if not rule.match.arguments or rule.match.holds(arguments, cwd, meant):
                return rule
        return None


def _rank(held: tuple[int, Rule]) -> int:
    return held[0]


def _needed_name(match: Match) -> str | None:
    """An argument without which the rule fits nothing."""
    for test in match.arguments:
        if test.present is not False and test.steps[0] not in _WILD_STEPS:
            return test.steps[0]
    return None


# -- arguments ----------------------------------------------------------------------------------------------


def _holds(test: ArgumentTest, arguments: JsonObject, cwd: str) -> bool:
    steps = test.steps
    if len(steps) == 1 and steps[0] not in _WILD_STEPS:
        value = arguments.get(steps[0])
        if type(value) in _SINGLE:  # what most arguments are, and the long way gives the same
            return test.present is not False and _leaf_holds(test, value, cwd)
        found = [] if value is None else [value]
    else:
        found = [value for value in _reach(arguments, steps) if value is not None]
    if test.present is False:
        return not found
    others = (test.like, test.least, test.most, test.under or None, test.outside or None)
    if others == (None,) * len(others):
        if not test.equals:
            return bool(found)
        if any(_same(value, wanted) for value in found for wanted in test.equals):
            return True
    # Attack: a value that escapes its rule inside a list or an object. Every single value in it counts.
    return any(_leaf_holds(test, leaf, cwd) for value in found for leaf in _leaves(value))


def _leaf_holds(test: ArgumentTest, leaf: JsonValue, cwd: str) -> bool:
    if test.equals and not any(_same(leaf, wanted) for wanted in test.equals):
        return False
    if test.like is not None:
        texts = _texts(leaf)
        if texts and not test.like.fit_any(texts):
            return False
    bounded = test.least is not None or test.most is not None
    if bounded and not _within(leaf, test.least, test.most):
        return False
    if test.under or test.outside:
        if not isinstance(leaf, str):
            return False
        path = _path(leaf, cwd)
        if path is not None:
            if test.under and not is_below(path, test.under):
                return False
            if test.outside and is_below(path, test.outside):
                return False
    return True


def _reach(value: JsonValue, steps: Sequence[str]) -> Iterator[JsonValue]:
    """The values at a place: none, one, or several where a step is a wildcard."""
    waiting: list[tuple[JsonValue, int]] = [(value, 0)]
    while waiting:
        here, depth = waiting.pop()
        if depth == len(steps):
            yield here
            continue
        step = steps[depth]
        inside: Iterable[JsonValue]
        if isinstance(here, Mapping):
            inside = here.values()
            exact = step in here
        elif isinstance(here, (list, tuple)):
            inside = here
            exact = step.isdecimal() and len(step) < 10 and int(step) < len(here)
        else:
            if step == "**" and depth == len(steps) - 1:
                yield here
            continue
        if step == "**":
            if depth == len(steps) - 1:
                yield here  # its single values are looked at one by one
                continue
            waiting.append((here, depth + 1))
            waiting.extend((item, depth) for item in inside)
        elif step == "*":
            waiting.extend((item, depth + 1) for item in inside)
        elif exact:
            waiting.append((here[step] if isinstance(here, Mapping) else here[int(step)], depth + 1))


def _leaves(value: JsonValue) -> Iterator[JsonValue]:
    waiting = [value]
    while waiting:
        here = waiting.pop()
        if isinstance(here, Mapping):
            waiting.extend(here.values())
        elif isinstance(here, (list, tuple)):
            waiting.extend(here)
        else:
            yield here


def _texts(value: JsonValue) -> tuple[str, ...]:
    """A single value as it may be written; none: too long to write, so that nobody can say.

    Attack: a number that escapes its pattern as 100.0, which schemas take for the integer 100.
    """
    if isinstance(value, str):
        return (value,)
    if value is None or isinstance(value, bool):
        return (_JSON_WORDS[value],)
    if isinstance(value, float) and value.is_integer():
        return (str(value), str(int(value)))
    try:
        return (str(value),)
    except ValueError:  # an integer of thousands of digits
        return ()


_JSON_WORDS: Final[Mapping[bool | None, str]] = {None: "null", True: "true", False: "false"}


def _within(value: JsonValue, least: float | None, most: float | None) -> bool:
    """Attack: an amount that escapes its bound as a text. What reads as a number counts as one."""
    if isinstance(value, str):
        if len(value) > _NUMBER_CHARS_MAX:
            return not set(value) - _NUMBER_CHARS
        try:
            value = float(value)
        except ValueError:
            return False
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if value != value:  # NaN is within nothing and outside of nothing: nobody can say
        return True
    return (least is None or value >= least) and (most is None or value <= most)


def _same(value: JsonValue, wanted: JsonValue) -> bool:
    """Equal as JSON: 1 is 1.0, and true is no number. A text that reads as what is wanted counts as it.

    Attack: a value that escapes its rule as a text, where the tool's schema takes one and its program reads
    it as the number or the switch it spells.
    """
    if isinstance(value, str) is not isinstance(wanted, str):
        text, other = (value, wanted) if isinstance(value, str) else (wanted, value)
        if not isinstance(text, str) or isinstance(other, (list, tuple, Mapping)):
            return False
        if other is None or isinstance(other, bool):
            return text.strip().lower() == _JSON_WORDS[other]
        return not isinstance(other, str) and _within(text, other, other)
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, Mapping) and isinstance(wanted, Mapping):
        return value.keys() == wanted.keys() and all(_same(value[key], wanted[key]) for key in value)
    if isinstance(value, (list, tuple)) and isinstance(wanted, (list, tuple)):
        return len(value) == len(wanted) and all(map(_same, value, wanted))
    return bool(value == wanted)


def _path(text: str, cwd: str) -> str | None:
    """Where a path leads by its letters; None where nobody can say without looking.

    Attack: ``/data/../etc/passwd``, which begins like a path below ``/data``. Links are not followed: no
    rule is a wall, the permit is. Blanks around a path are what programs often take away.
    """
    if text[:5].lower() == "file:" or text[:1] == "~" or text != text.strip() or "\0" in text:
        return None
    if not (cwd or text.startswith("/")):
        return None
    return _normal(posixpath.join(cwd, text))


def _normal(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")
