"""One bound tool for each tool of a catalog that is called, and no other tool ever gets what it holds."""

from __future__ import annotations

from msgspec.structs import replace

from tests.strategies import make_tool
from toolcrib.bound import BoundTool, CatalogSnapshot
from toolcrib.catalog import digests
from toolcrib.model import Tool
from toolcrib.testing import catalog_of


def snapshot_of(*tools: Tool) -> CatalogSnapshot:
    return CatalogSnapshot(catalog_of(*tools), "v1")


def test_a_tool_is_bound_once_by_whatever_name_it_is_called() -> None:
    tool = make_tool("add")
    snapshot = snapshot_of(tool)
    assert snapshot.called("add") is None
    bound = snapshot.bind("add", tool)
    assert snapshot.bind(tool.key, replace(tool)) is bound
    assert (snapshot.called("add"), snapshot.called(tool.key)) == (bound, bound)


def test_an_equal_record_finds_the_bound_tool_and_one_that_was_never_called_is_not_kept() -> None:
    tool, other = make_tool("add"), make_tool("other")
    snapshot = snapshot_of(tool, other)
    bound = snapshot.bind("add", tool)
    assert snapshot.look(replace(tool)) is bound
    assert snapshot.look(other) is not snapshot.look(other)


def test_attack_a_record_of_the_same_key_gets_what_was_worked_out_for_another_one() -> None:
    tool = make_tool("add")
    snapshot = snapshot_of(tool)
    bound = snapshot.bind("add", tool)
    other = replace(tool, description="another one")
    assert snapshot.look(other) is not bound


def test_a_bound_tool_shows_its_key_and_knows_its_digests() -> None:
    tool = make_tool("add")
    bound = BoundTool(tool)
    assert repr(bound) == f"BoundTool({tool.key})"
    assert bound.digests is bound.digests
    assert bound.digests.seen == digests.seen(tool)
    assert bound.digests.how == digests.how(tool.invocation)
