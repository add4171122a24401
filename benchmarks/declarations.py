"""Ten thousand declarations of about one KiB each, in the forms that are measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def schema(number: int) -> dict[str, Any]:
    names = ("query", "folder", "limit", "order", "pattern", "since")
    return {
        "type": "object",
        "properties": {
            name: {
                "type": "integer" if name == "limit" else "string",
                "description": f"The {name} of search {number}",
            }
            for name in names
        },
        "required": ["query"],
    }


def write_json(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        document = {
            "group": f"group_{number}",
            "version": "1.0.0",
            "description": f"Search number {number} and what belongs to it, in a group of its own",
            "selection": {"strategy": "keyword", "keywords": ["search", "find", f"word{number}"]},
            "tools": [
                {
                    "name": f"search_{number}",
                    "description": f"Search collection {number} for entries that match a query.",
                    "category": "retrieval",
                    "input_schema": schema(number),
                    "metadata": {
                        "executor": "search",
                        "requires_context": ["user_id"],
                        "cost_estimate": "low",
                        "latency_estimate": "fast",
                    },
                }
            ],
        }
        (folder / f"group_{number}_tools.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "handlers").mkdir()
    (folder / "handlers" / "search.py").write_text("", encoding="utf-8")


def write_yaml(folder: Path, count: int) -> None:
    for number in range(count):
        category = f"search/part{number // 100}"
        path = folder / ".ai" / "tools" / category / f"find-entry-{number}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f"tool_id: find-entry-{number}",
            "tool_type: script",
            'version: "1.0.0"',
            "executor_id: rye/core/runtimes/python/script",
            f"category: {category}",
            f"description: Search collection {number} for entries that match a query",
            "requires:",
            "  - fs.read",
            "timeout: 30",
            "parameters:",
        ]
        for name in ("query", "folder", "order", "pattern", "since"):
            lines += [
                f"  - name: {name}",
                "    type: string",
                f"    required: {'true' if name == 'query' else 'false'}",
                f"    description: The {name} of search {number}, as words of the user",
            ]
            if name != "query":
                lines.append('    default: ""')
        lines += [
            "config:",
            "  command: python3",
            "  args:",
            "    - search.py",
            "tags:",
            "  - search",
            "  - entries",
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_python(folder: Path, count: int) -> None:
    for number in range(count):
        category = f"search/part{number // 100}"
        path = folder / ".ai" / "tools" / category / f"find-entry-{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'"""Search collection {number}."""\n\nimport json\nimport sys\n\n'
            '__version__ = "1.0.0"\n__tool_type__ = "python"\n'
            '__executor_id__ = "rye/core/runtimes/python/function"\n'
            f'__category__ = "{category}"\n__tool_description__ = "Search collection {number}"\n\n'
            f"CONFIG_SCHEMA = {json.dumps(schema(number), indent=4)}\n\n\n"
            "def execute(params: dict, project_path: str) -> dict:\n"
            '    return {"success": True, "output": params["query"]}\n\n\n'
            'if __name__ == "__main__":\n    print(json.dumps(execute(json.load(sys.stdin), ".")))\n',
            encoding="utf-8",
        )
