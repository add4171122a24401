"""Selection by the formats' own rules, switching tools off, and rye's query language."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from toolcrib.errors import UsageError
from toolcrib.model import (
    Always,
    Choice,
    Disabled,
    Needs,
    NotCallable,
    Notes,
    OnContext,
    OnDemand,
    OnKeywords,
    Origin,
    Role,
    Schema,
    Selected,
    Selection,
    Tool,
)
from toolcrib.selection import rules
from toolcrib.selection.rules import KeywordMatch


def tool(name: str, selection: Selection | None = None, *, scope: str = "g", **more: Any) -> Tool:
    settings: dict[str, Any] = {
        "key": f"capability:{scope}/{name}",
        "description": f"Does {name}.",
        "invocation": NotCallable(reason="in a test"),
        "origin": Origin(format="capability", path="g_tools.json"),
    }
    return Tool(name=name, scope=scope, selection=selection, **settings | more)


def choose(tools: list[Tool], message: str = "", **more: Any) -> Selected:
    return rules.select(tools, message, **{"context": {}, "checks": {}} | more)


def chosen(tools: list[Tool], message: str = "", **more: Any) -> list[str]:
    return [choice.name for choice in choose(tools, message, **more).chosen]


def reasons(choices: tuple[Choice, ...]) -> dict[str, str]:
    return {choice.name: choice.because for choice in choices}


def matches(keyword: str, message: str, match: KeywordMatch = KeywordMatch.WORD) -> bool:
    return bool(chosen([tool("t", OnKeywords(keywords=(keyword,)))], message, match=match))


# -- strategies ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("capability.select.always", "capability.group.always-keywords")
def test_always_is_in_every_request_unless_the_host_leaves_it_out() -> None:
    journal = tool("recall_journal", Always(keywords=("journal", "recall")), scope="journal")
    assert chosen([journal], "") == ["recall_journal"]
    assert chosen([journal], "hello") == ["recall_journal"]
    assert chosen([journal], "my journal", include_always=False) == []


@pytest.mark.requirement("capability.select.keyword")
def test_a_keyword_is_found_whatever_the_case() -> None:
    assert matches("Meeting", "MEETING at 3")
    assert matches("Meeting", "MEETING at 3", KeywordMatch.SUBSTRING)
    assert matches("straße", "STRASSE")
    assert not matches("Meeting", "lunch at 3")


@pytest.mark.requirement("capability.select.word-boundary")
@pytest.mark.parametrize(
    ("keyword", "message", "found"),
    [
        ("may", "maybe later", False),
        ("task", "my tasks", True),
        ("event", "prevent it", False),
        ("event", "events, please", True),
        ("remind", "reminding me", True),
        ("remind", "reminded", True),
        ("box", "two boxes", True),
        ("schedule", "it is scheduled", True),
        ("schedule", "scheduling a call", True),
        ("diary", "my diaries", True),
        ("task", "taskforce", False),
        ("task", "add_task", False),
        ("today", "today's list", True),
        ("r", "red", False),
        ("c++", "write c++ code", True),
        ("会议", "明天的会议安排", True),
        ("회의", "회의를 잡아줘", True),
        (".*", "anything", False),
        ("(", "an (aside)", True),
        ("", "anything", False),
    ],
)
def test_keywords_are_whole_words_with_an_ending_or_none(keyword: str, message: str, found: bool) -> None:
    assert matches(keyword, message) is found


@pytest.mark.requirement("capability.select.word-boundary")
def test_substring_mode_finds_keywords_inside_of_words() -> None:
    assert matches("may", "maybe later", KeywordMatch.SUBSTRING)
    assert matches("event", "prevent it", KeywordMatch.SUBSTRING)
    assert not matches("may", "perhaps", KeywordMatch.SUBSTRING)
    assert not matches("", "anything", KeywordMatch.SUBSTRING)


@pytest.mark.requirement("capability.select.phrases")
@pytest.mark.parametrize(
    ("keyword", "message", "found"),
    [
        ("clear my", "please clear  my friday", True),
        ("clear my", "please clear\n\tmy friday", True),
        ("to-do", "to-do list", True),
        ("to-do", "what to do today", False),
        ("clear my", "clear, my friend", False),
        ("clear my", "my desk is clear", False),
        ("set task", "set tasks for monday", True),
        ("a b c d e f g h i j", "x a b c d e f g h i j y", True),
        ("a b c d e f g h i j", "x a b c d e f g h i", False),
        ("  clear my ", "clear my friday", True),
    ],
)
def test_phrases_are_words_in_a_row(keyword: str, message: str, found: bool) -> None:
    assert matches(keyword, message) is found


@pytest.mark.requirement("capability.select.context")
def test_a_context_group_is_included_when_its_check_holds() -> None:
    docs = [tool("read_document", OnContext(check="has_project"))]
    assert chosen(docs, context={"project_id": "p1"}) == ["read_document"]
    assert chosen(docs, context={}) == []
    assert chosen(docs, context={"project_id": None}) == []


@pytest.mark.requirement("capability.select.builtin-checks")
def test_three_checks_are_built_in_and_others_have_to_be_registered() -> None:
    tools = [
        tool("memory", OnContext(check="enable_memory")),
        tool("tools", OnContext(check="enable_tools")),
        tool("xyz", OnContext(check="xyz")),
        tool("none", OnContext()),
    ]
    assert chosen(tools, context={}) == ["memory", "tools"]
    assert chosen(tools, context={"enable_memory": False, "enable_tools": True}) == ["tools"]
    assert chosen(tools, context={}, checks={"xyz": lambda context: True}) == ["memory", "tools", "xyz"]
    assert reasons(choose(tools).left_out)["xyz"] == 'g: no context check "xyz" is registered'


def test_a_registered_check_takes_the_place_of_a_built_in_one() -> None:
    assert chosen([tool("t", OnContext(check="has_project"))], checks={"has_project": lambda context: 1}) == [
        "t"
    ]


@pytest.mark.requirement("capability.select.check-failure")
def test_a_check_that_raises_counts_as_no_and_is_reported_once() -> None:
    asked = []

    def broken(context: object) -> bool:
        asked.append(context)
        raise ValueError("secret")

    tools = [
        tool("a", OnContext(check="broken"), scope="one"),
        tool("b", OnContext(check="broken"), scope="two"),
        tool("c", Always()),
    ]
    selected = choose(tools, checks={"broken": broken})
    assert [choice.name for choice in selected.chosen] == ["c"]
    assert selected.note == 'context check "broken" raised ValueError and counts as no'
    assert len(asked) == 1


def test_a_check_that_nobody_awaits_counts_as_no() -> None:
    """Attack: a check that was never awaited, and so holds for everybody."""

    async def later() -> bool:
        return True

    begun: list[Any] = []

    def check(context: object) -> object:
        begun.append(later())
        return begun[-1]

    selected = choose([tool("a", OnContext(check="later")), tool("c", Always())], checks={"later": check})
    assert [choice.name for choice in selected.chosen] == ["c"]
    assert selected.note == 'context check "later" is async and counts as no'
    assert begun[0].cr_frame is None  # closed, so nothing warns that it was never awaited


@pytest.mark.requirement("capability.select.order")
def test_tools_come_in_the_order_given() -> None:
    calendar = OnKeywords(keywords=("meeting",))
    tools = [
        tool("create_event", calendar, scope="calendar"),
        tool("get_agenda", calendar, scope="calendar"),
        tool("recall_journal", Always(), scope="journal"),
    ]
    assert chosen(tools, "a meeting") == ["create_event", "get_agenda", "recall_journal"]


@pytest.mark.requirement("capability.select.metadata-neutral")
def test_cost_latency_and_context_keys_change_nothing() -> None:
    dear = tool(
        "dear",
        Always(),
        notes=Notes(cost="high", latency="slow"),
        needs=Needs(context=("memory",)),
    )
    assert chosen([dear], context={}) == ["dear"]


def test_a_tool_without_a_rule_is_shown_and_one_on_demand_is_not() -> None:
    tools = [tool("plain"), tool("deferred", OnDemand(), scope="")]
    selected = choose(tools)
    assert reasons(selected.chosen) == {"plain": "no rule: always shown"}
    assert reasons(selected.left_out) == {"deferred": "only on demand"}


def test_parts_and_support_items_are_never_shown() -> None:
    selected = choose([tool("part", role=Role.PART), tool("support", role=Role.SUPPORT)])
    assert selected.chosen == ()
    assert selected.left_out == ()
    assert selected.note == "there are no tools to choose from"


# -- explanations --------------------------------------------------------------------------------------------

HOUSE = [
    tool("create_event", OnKeywords(keywords=("meeting", "remind", "tomorrow")), scope="calendar"),
    tool("recall_journal", Always(), scope="journal"),
    tool("read_document", OnContext(check="has_project"), scope="docs"),
    tool("add_task", OnKeywords(keywords=("task",)), scope="task"),
    tool("note", OnKeywords(keywords=("note", "write down")), scope="note"),
    tool("lost", OnKeywords(), scope="lost"),
]


@pytest.mark.requirement("capability.select.explain")
def test_every_group_has_its_reason() -> None:
    selected = choose(HOUSE, "remind me tomorrow")
    assert reasons(selected.chosen) == {
        "create_event": 'calendar: keyword "remind"',
        "recall_journal": "journal: always",
    }
    assert reasons(selected.left_out) == {
        "read_document": 'docs: context check "has_project" does not hold',
        "add_task": "task: its keyword is not in the message",
        "note": "note: none of its 2 keywords is in the message",
        "lost": "lost: it has no keywords, so it is never selected",
    }
    assert selected.note == ""
    assert all(choice.score is None for choice in selected.chosen)


def test_nothing_is_never_silent() -> None:
    selected = choose(HOUSE, "hello", include_always=False)
    assert selected.chosen == ()
    assert selected.note == (
        "no tool fits this message: no keyword in the message (4), "
        "always shown, but left out of this request (1), the context does not fit (1)"
    )


def test_a_limit_keeps_what_the_message_speaks_for() -> None:
    tools = [tool("plain"), tool("steady", Always()), tool("wanted", OnKeywords(keywords=("task",)))]
    selected = choose(tools, "a task", limit=2)
    assert [choice.name for choice in selected.chosen] == ["steady", "wanted"]
    assert reasons(selected.left_out) == {"plain": "over the limit of 2"}
    assert (
        choose(tools, limit=0).note
        == "no tool fits this message: over the limit (2), no keyword in the message (1)"
    )
    with pytest.raises(UsageError, match="limit: must not be negative"):
        choose(tools, limit=-1)


# -- the registry call ---------------------------------------------------------------------------------------


@pytest.mark.requirement("capability.select.format", "capability.tool.input-schema-default")
def test_the_registry_call_knows_two_shapes_and_refuses_others() -> None:
    schema = {"type": "object", "properties": {"date": {"type": "string"}}, "required": []}
    tools = [
        tool("recall", Always(), description="Recalls.", input_schema=Schema.of(schema)),
        tool("bare", Always(), description="Takes nothing."),
        tool("hidden", OnKeywords(keywords=("task",))),
    ]
    assert rules.enabled_tools(tools, "hello", {}) == [
        {"name": "recall", "description": "Recalls.", "input_schema": schema},
        {
            "name": "bare",
            "description": "Takes nothing.",
            "input_schema": {"type": "object", "properties": {}},
        },
    ]
    assert rules.enabled_tools(tools, "hello", {}, "openai")[0] == {
        "type": "function",
        "function": {"name": "recall", "description": "Recalls.", "parameters": schema},
    }
    assert rules.enabled_tools(tools, "hello", {}, include_always=False) == []
    with pytest.raises(UsageError) as refused:
        rules.enabled_tools(tools, "hello", {}, "gemini")
    assert refused.value.message == "Unsupported format: gemini"


def test_the_registry_call_emits_a_name_once() -> None:
    twice = [
        tool("read", Always(), scope="a"),
        tool("read", Always(), scope="b", description="The later one."),
    ]
    assert [found["description"] for found in rules.enabled_tools(twice, "", {})] == ["The later one."]


# -- switching off -------------------------------------------------------------------------------------------


@pytest.mark.requirement("capability.control.disable")
def test_disabling_answers_what_was_done_and_what_is_disabled() -> None:
    off, answer = rules.set_status((), "delete_event", False, "too risky", 30, now=1000.0)
    assert answer == {
        "success": True,
        "action": "disabled",
        "tool": "delete_event",
        "reason": "too risky",
        "duration_minutes": 30,
        "disabled_tools": ["delete_event"],
    }
    assert off == (Disabled(tool="delete_event", reason="too risky", until=2800.0),)
    selected = choose([tool("delete_event", Always())], disabled=off, now=1000.0)
    assert reasons(selected.left_out) == {"delete_event": "disabled: too risky (for another 30 min)"}
    off, answer = rules.set_status(off, "delete_event", True, "safe again", None, now=1001.0)
    assert off == ()
    assert answer["action"] == "enabled"
    assert answer["disabled_tools"] == []


@pytest.mark.requirement("capability.control.expiry")
def test_a_disabled_tool_comes_back_when_its_time_is_over() -> None:
    off, _ = rules.set_status((), "delete_event", False, "", 30, now=0.0)
    tools = [tool("delete_event", Always())]
    assert chosen(tools, disabled=off, now=30 * 60 - 1.0) == []
    assert chosen(tools, disabled=off, now=30 * 60.0) == ["delete_event"]
    _, answer = rules.set_status(off, "other", False, "", None, now=30 * 60.0)
    assert answer["disabled_tools"] == ["other"]


def test_a_tool_disabled_for_good_stays_disabled() -> None:
    off, answer = rules.set_status((), "delete_event", False, "", None, now=0.0)
    assert answer["duration_minutes"] is None
    assert chosen([tool("delete_event", Always())], disabled=off, now=1e12) == []


@pytest.mark.requirement("capability.control.unknown-name")
def test_a_name_that_is_not_loaded_can_be_disabled() -> None:
    off, answer = rules.set_status((), "future_tool", False, "not yet", None, now=0.0)
    assert answer["success"] is True
    assert chosen([tool("future_tool", Always())], disabled=off) == []


@pytest.mark.parametrize("minutes", [0, -5, float("nan"), float("inf")])
def test_a_duration_that_makes_no_sense_changes_nothing(minutes: float) -> None:
    before = (Disabled(tool="a"),)
    off, answer = rules.set_status(before, "b", False, "", minutes, now=0.0)
    assert off == before
    assert answer["success"] is False
    assert answer["error"].startswith("duration_minutes: must be more than 0")


@pytest.mark.parametrize("name", ["read", "capability:g/read", "file_read", "old_read"])
def test_a_tool_is_off_under_every_name_when_it_is_off_under_one(name: str) -> None:
    found = tool("read", spoken="file_read", aliases=("old_read",))
    assert rules.allowed(found, None, (Disabled(tool=name, reason="no"),), 0.0) == "disabled: no"


@pytest.mark.requirement("executable.call.toolset")
def test_a_toolset_restricts_what_is_shown_and_what_may_be_called() -> None:
    read, bash = tool("file_read"), tool("bash")
    toolset = frozenset({"file_read"})
    assert chosen([read, bash], toolset=toolset) == ["file_read"]
    assert rules.allowed(read, toolset, (), 0.0) is None
    assert rules.allowed(bash, toolset, (), 0.0) == "not in the toolset"
    assert rules.allowed(bash, frozenset({bash.key}), (), 0.0) is None
    assert rules.allowed(bash, None, (), 0.0) is None
    assert choose([bash], toolset=toolset).note == "no tool fits this message: not in the toolset (1)"


# -- properties ----------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["task", "tasks", "clear", "my", "to-do", "may", "会", "c++", "'", ""])
TEXTS = st.text() | st.lists(WORDS).map(" ".join)
KEYWORDS = st.lists(TEXTS, max_size=4).map(tuple)
RULES_OF_TOOLS = st.one_of(
    st.none(),
    st.builds(Always, keywords=KEYWORDS),
    st.builds(OnKeywords, keywords=KEYWORDS),
    st.builds(OnContext, check=st.none() | st.sampled_from(["has_project", "enable_memory", "no_such"])),
    st.just(OnDemand()),
)
TOOLS = st.lists(RULES_OF_TOOLS, max_size=6).map(
    lambda found: [tool(f"t{number}", rule, scope=f"g{number % 2}") for number, rule in enumerate(found)]
)
MATCHES = st.sampled_from(KeywordMatch)


@given(TOOLS, TEXTS, MATCHES)
def test_every_tool_is_chosen_or_left_out_with_a_reason_and_always_the_same_way(
    tools: list[Tool], message: str, match: KeywordMatch
) -> None:
    selected = choose(tools, message, match=match)
    assert selected == choose(tools, message, match=match)
    assert sorted(choice.key for choice in selected.chosen + selected.left_out) == sorted(
        each.key for each in tools
    )
    assert all(choice.because for choice in selected.chosen + selected.left_out)
    assert selected.chosen or selected.note
    order = {each.key: number for number, each in enumerate(tools)}
    for choices in (selected.chosen, selected.left_out):
        assert [order[choice.key] for choice in choices] == sorted(order[choice.key] for choice in choices)


@given(TOOLS, RULES_OF_TOOLS, TEXTS, MATCHES)
def test_another_tool_changes_no_verdict(
    tools: list[Tool], rule: Selection | None, message: str, match: KeywordMatch
) -> None:
    before = choose(tools, message, match=match)
    after = choose([tool("newcomer", rule), *tools], message, match=match)
    assert [choice for choice in after.chosen if choice.name != "newcomer"] == list(before.chosen)
    assert [choice for choice in after.left_out if choice.name != "newcomer"] == list(before.left_out)


@given(st.sampled_from(["task", "may", "set", "be"]), TEXTS | st.text("taskmybeding s'-_", max_size=30))
def test_words_with_an_ending_are_always_found(keyword: str, message: str) -> None:
    expected = re.search(rf"(?<!\w){keyword}(?:s|es|ed|ing)?(?!\w)", message.casefold())
    assert not expected or matches(keyword, message)


@given(st.integers(min_value=0, max_value=8), TOOLS, TEXTS)
def test_a_limit_is_never_exceeded(limit: int, tools: list[Tool], message: str) -> None:
    whole = [choice.key for choice in choose(tools, message).chosen]
    kept = [choice.key for choice in choose(tools, message, limit=limit).chosen]
    assert len(kept) == min(limit, len(whole))
    assert [key for key in whole if key in kept] == kept


# -- rye's query language ------------------------------------------------------------------------------------


def item(name: str, description: str = "", *, root: str = "", **notes: Any) -> Tool:
    return tool(
        name,
        scope="ops",
        key=f"rye:{name}",
        description=description,
        notes=Notes(**notes),
        origin=Origin(format="rye", path=f"{root}.ai/tools/{name}.py"),
    )


ITEMS = [
    item("ops/deploy-site", "Ships the site", category="ops"),
    item("ops/deploy_image", "Builds a docker image", category="ops"),
    item("web/fetch", "Fetches a page", category="web", head="deploy notes", tags=("kubernetes",)),
]


def found(query: str, items: list[Tool] = ITEMS) -> list[str]:
    return [choice.name for choice in rules.search(items, query)]


@pytest.mark.requirement("rye.search.query")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("deploy AND NOT docker", ["ops/deploy-site", "web/fetch"]),
        ("deploy not docker", ["ops/deploy-site", "web/fetch"]),
        ("DEPLOY docker", ["ops/deploy_image"]),
        ("docker OR fetches", ["ops/deploy_image", "web/fetch"]),
        ("deploy (docker OR site)", ["ops/deploy-site", "ops/deploy_image"]),
        ("NOT (docker OR site)", ["web/fetch"]),
        ('"docker image"', ["ops/deploy_image"]),
        ('"image docker"', []),
        ('"a page', ["web/fetch"]),
        ("ship*", ["ops/deploy-site"]),
        ("*cker", ["ops/deploy_image"]),
        ("d*k*r", ["ops/deploy_image"]),
        ("hip*", []),
        ("deploy-*", ["ops/deploy-site"]),
        ("nothing", []),
        ("", ["ops/deploy-site", "ops/deploy_image", "web/fetch"]),
        ("AND", ["ops/deploy-site", "ops/deploy_image", "web/fetch"]),
        ("docker AND", ["ops/deploy_image"]),
        (") docker (", ["ops/deploy_image"]),
        ("NOT", []),
        ("NOT NOT docker", ["ops/deploy_image"]),
    ],
)
def test_queries_have_words_operators_phrases_and_wildcards(query: str, expected: list[str]) -> None:
    assert sorted(found(query)) == sorted(expected)


@pytest.mark.requirement("rye.search.query")
def test_a_query_and_an_item_id_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="not both"):
        rules.search(ITEMS, "deploy", "web/fetch")
    with pytest.raises(UsageError, match="either a query or an item_id"):
        rules.search(ITEMS)
    (only,) = rules.search(ITEMS, item_id="web/fetch")
    assert only.key == "rye:web/fetch"
    assert rules.search(ITEMS, item_id="web/fetc") == ()


@pytest.mark.requirement("rye.search.score")
def test_the_score_is_the_weight_of_the_fields_that_match() -> None:
    items = [
        item("a/content", head="deploy"),
        item("a/kind", category="deploy"),
        item("a/described", "deploy"),
        item("a/deploy"),
        item("b/deploy", "deploy", category="deploy", head="deploy"),
    ]
    scores = {choice.name: choice.score for choice in rules.search(items, "deploy")}
    assert scores == {
        "b/deploy": 1.0,
        "a/deploy": 0.4,
        "a/described": 0.2667,
        "a/kind": 0.2,
        "a/content": 0.1333,
    }
    assert list(scores) == ["b/deploy", "a/deploy", "a/described", "a/kind", "a/content"]


@pytest.mark.requirement("rye.search.score")
def test_only_the_first_200_characters_of_the_content_count() -> None:
    assert found("deploy", [item("a/b", head="x" * 195 + " deploy")]) == []
    assert found("deploy", [item("a/b", head="x" * 190 + " deploy")]) == ["a/b"]


@pytest.mark.requirement("rye.search.score")
def test_ten_are_returned_unless_another_limit_is_given() -> None:
    items = [item(f"p/deploy{number:02}") for number in range(12)]
    assert found("deploy", items) == [f"p/deploy{number:02}" for number in range(10)]
    assert len(rules.search(items, "deploy", limit=12)) == 12
    with pytest.raises(UsageError, match="limit: must not be negative"):
        rules.search(items, "deploy", limit=-1)


@pytest.mark.requirement("rye.search.score")
def test_ties_go_by_space_and_then_by_id() -> None:
    items = [
        item("p/deploy-b", root="/project/"),
        item("p/deploy-a", root="/project/"),
        item("a/deploy-u", root="/home/me/"),
        item("a/deploy", "deploy", root="/home/me/"),
        item("A/deploy-t", root="/home/me/"),
        item("a/deploy-s", root="/bundle/"),
        item("a/deploy-r", root="/bundle/"),
    ]
    assert found("deploy", items) == [
        "a/deploy",
        "p/deploy-a",
        "p/deploy-b",
        "A/deploy-t",
        "a/deploy-u",
        "a/deploy-r",
        "a/deploy-s",
    ]


@pytest.mark.requirement("rye.yaml.tags")
def test_tags_are_searched() -> None:
    (choice,) = rules.search(ITEMS, "kubernetes")
    assert (choice.name, choice.because) == ("web/fetch", "matches content")


def test_tools_of_other_formats_are_searched_and_support_items_are_not() -> None:
    support = replace(item("ops/deploy"), role=Role.SUPPORT)
    assert found("deploy", [tool("deploy"), support]) == ["deploy"]


def test_a_query_is_not_endless() -> None:
    with pytest.raises(UsageError, match="query: longer than 1000 characters"):
        rules.search(ITEMS, "a" * 1001)


@given(
    st.text(max_size=100)
    | st.lists(st.sampled_from(["a*", "AND", "or", "NOT", "(", ")", '"', "deploy"])).map(" ".join)
)
def test_no_query_makes_it_raise(query: str) -> None:
    if len(query) <= rules.QUERY_CHARS_MAX:
        results = rules.search(ITEMS, query)
        assert all(choice.score is not None and 0 <= choice.score <= 1 for choice in results)
