"""Configuration in three tiers: what lies on top counts, half of it never. More in test_settings.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import json_objects, json_values
from toolcrib.runtimes._cascade import Broken, Tier, resolve

MERGED = {"path": "a.json", "mode": "deep_merge"}
FIRST = {"path": "a.json", "mode": "first_match"}


def tiers(folder: Path, *contents: Any) -> list[Tier]:
    """One tier for each content, topmost first; None: the tier has no such file."""
    made = []
    for number, content in enumerate(contents):
        at = folder / f"tier{number}"
        at.mkdir(exist_ok=True)
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (at / "a.json").write_text(text, encoding="utf-8")
        made.append(Tier(name=f"tier {number}", folder=str(at)))
    return made


def without_extends(value: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in value.items() if key != "extends"}


@given(st.lists(st.none() | json_objects, max_size=3))
@settings(max_examples=40, deadline=None)
def test_every_member_comes_from_the_topmost_tier_that_has_it(
    tmp_path_factory: pytest.TempPathFactory, layers: list[dict[str, Any] | None]
) -> None:
    found = resolve(MERGED, tiers(tmp_path_factory.mktemp("tiers"), *layers))
    there = [without_extends(layer) for layer in layers if layer is not None]
    assert found.keys() == {key for layer in there for key in layer}
    for key, value in found.items():
        having = [layer[key] for layer in there if key in layer]
        if not isinstance(having[0], dict):
            assert value == having[0]
        else:
            assert having[0].keys() <= value.keys()


@given(json_objects, json_objects)
@settings(max_examples=40, deadline=None)
def test_merging_is_what_update_is_where_nothing_is_nested(
    tmp_path_factory: pytest.TempPathFactory, above: dict[str, Any], below: dict[str, Any]
) -> None:
    flat = [
        {key: value for key, value in layer.items() if not isinstance(value, dict)}
        for layer in (above, below)
    ]
    found = resolve(MERGED, tiers(tmp_path_factory.mktemp("tiers"), *flat))
    assert found == without_extends({**flat[1], **flat[0]})


@given(st.lists(st.none() | json_values.filter(lambda value: value is not None), max_size=3))
@settings(max_examples=40, deadline=None)
def test_the_first_match_is_the_topmost_file_whole(
    tmp_path_factory: pytest.TempPathFactory, layers: list[Any]
) -> None:
    texts = [None if layer is None else json.dumps(layer) for layer in layers]
    found = resolve(FIRST, tiers(tmp_path_factory.mktemp("tiers"), *texts))
    assert found == next((layer for layer in layers if layer is not None), {})


def test_nested_mappings_are_merged_and_lists_are_replaced(tmp_path: Path) -> None:
    above = {"extends": "x", "a": {"b": {"c": 1}}, "list": [1]}
    below = {"a": {"b": {"d": 2}, "e": 3}, "list": [2, 3]}
    assert resolve(MERGED, tiers(tmp_path, above, below)) == {
        "a": {"b": {"c": 1, "d": 2}, "e": 3},
        "list": [1],
    }


def test_several_requests_give_a_mapping_by_path(tmp_path: Path) -> None:
    made = tiers(tmp_path, {"a": 1})
    assert resolve([MERGED, {"path": "none.json"}], made) == {"a.json": {"a": 1}, "none.json": {}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "must be a mapping to be merged"),
        ("{", "not JSON"),
        ('{"a": 1, "a": 2}', 'duplicate key "a" in line 1'),
        ('{"a": NaN}', "not JSON"),
    ],
)
def test_a_file_that_is_wrong_anywhere_stops_the_call_by_name(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(Broken, match=r"configuration a\.json of the tier 1: ") as broken:
        resolve(MERGED, tiers(tmp_path, {"a": 1}, text))
    assert why in str(broken.value)


def test_comments_at_the_head_are_no_part_of_the_json_and_keep_its_lines(tmp_path: Path) -> None:
    assert resolve(MERGED, tiers(tmp_path, '# signed\n# by me\n{"a": 1}')) == {"a": 1}
    with pytest.raises(Broken, match="line 3"):
        resolve(MERGED, tiers(tmp_path, "# signed\n# by me\n{,}"))


def test_only_yaml_and_json_are_configuration(tmp_path: Path) -> None:
    (made,) = tiers(tmp_path, None)
    (Path(made.folder) / "a.toml").write_text("a = 1", encoding="utf-8")
    with pytest.raises(Broken, match=r"only \.yaml, \.yml and \.json"):
        resolve({"path": "a.toml"}, [made])
