"""The mark of a tool's processes: every one has it, at every level, and none can take it off."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import toolcrib
from tests.levels import each_level, sandbox_of
from toolcrib.config import Config
from toolcrib.model import Level
from toolcrib.sandbox import marks
from toolcrib.sandbox.rules import MARK_MAX

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows limits; run it there")
SCRIPT = """#!/bin/bash
# At the levels without a supervisor the mark comes just after the start.
until [ "$(ulimit -Hx)" != unlimited ]; do :; done
ulimit -Hx
(ulimit -Hx)
setsid bash -c 'ulimit -Hx'
ulimit -Hx unlimited 2>/dev/null || echo refused
ulimit -x 0 && ulimit -Hx
"""
HANDLER = """
from pathlib import Path

def execute_limits_tool(tool_name, tool_input, user_id):
    return {"success": True, "result": Path("/proc/self/limits").read_text()}
"""


@pytest.mark.parametrize("level", each_level())
def test_a_tool_and_all_that_it_starts_are_marked(tmp_path: Path, level: Level) -> None:
    script = tmp_path / "tools" / "limits"
    script.parent.mkdir()
    script.write_text(SCRIPT, encoding="utf-8")
    tool = {
        "name": "limits",
        "description": "Says its limits.",
        "command": ["/bin/bash", str(script)],
        "schema": {"type": "object"},
    }
    (script.parent / "tools.json").write_text(json.dumps({"tools": [tool]}), encoding="utf-8")
    config = Config(state=str(tmp_path / "state"))
    with (
        sandbox_of(level) as sandbox,
        toolcrib.open(script.parent, config=config, sandbox=sandbox) as crib,
    ):
        result = crib.call("limits", {})
        assert result.error is None, result
    found = result.content.split()
    assert len(set(found[:3])) == 1
    assert int(found[0]) <= MARK_MAX
    if level is not Level.PORTABLE:
        assert found[3:] == found[:1], "the filter answers that it was set, and nothing changed"
    elif os.geteuid() != 0:  # root's tools may do what root may
        assert found[3:] == ["refused", "0"]
    assert not marks.is_marked(os.getpid())


@pytest.mark.parametrize("level", each_level())
def test_a_python_tool_is_marked_where_it_is_kept_loaded_too(tmp_path: Path, level: Level) -> None:
    groups = tmp_path / "groups"
    (tmp_path / "handlers").mkdir()
    groups.mkdir()
    (tmp_path / "handlers" / "limits.py").write_text(HANDLER, encoding="utf-8")
    tool = {
        "name": "limits",
        "description": "Says its limits.",
        "category": "retrieval",
        "input_schema": {"type": "object", "properties": {}},
        "metadata": {"executor": "limits"},
    }
    group = {"group": "limits", "version": "1.0.0", "description": "D.", "tools": [tool]}
    document = {**group, "selection": {"strategy": "always"}}
    (groups / "limits_tools.json").write_text(json.dumps(document), encoding="utf-8")
    config = Config(state=str(tmp_path / "state"))
    with sandbox_of(level) as sandbox, toolcrib.open(groups, config=config, sandbox=sandbox) as crib:
        results = [crib.call("limits", {}, context={"user_id": "ann"}) for _ in range(3)]
    for result in results:
        assert result.error is None, result
    line = next(line for line in str(results[-1].content).split("\\n") if line.startswith("Max file locks"))
    assert int(line.split()[4]) <= MARK_MAX
