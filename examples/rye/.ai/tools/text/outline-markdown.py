# rye:signed:2026-11-15T21:28:06Z:e5372dfb69fcd94f99a113a68b104168719bd1826e77a84f30646deafe010792:VVy3wNuJzkckzsmcqn5GqeWHgGkl2pNXONo0U-5AvxlAOXQrdM7rtKHMTm94YxZq0p8jP-W6pno3Cc-h9TyjDg:6c87fa7f65dc3b96
"""List the headings of a Markdown file with their levels and lines."""

import argparse
import json
import re
from pathlib import Path

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "text"
__tool_description__ = "List the headings of a Markdown file, to decide which part of it to read"
__requires__ = ["fs.read"]

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {
        "file_path": {
            "type": "string",
            "description": "The Markdown file, relative to the project root",
        },
        "max_level": {
            "type": "integer",
            "description": "Deepest level of headings to list",
            "minimum": 1,
            "maximum": 6,
            "default": 6,
        },
    },
    "required": ["file_path"],
}

HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
FENCE = re.compile(r" {0,3}(```+|~~~+)")


def execute(params: dict, project_path: str) -> dict:
    project = Path(project_path).resolve()
    path = (project / params["file_path"]).resolve()
    if not path.is_relative_to(project):
        return {"success": False, "error": "file_path is outside the project"}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        return {"success": False, "error": f"{params['file_path']}: {error.strerror}"}
    except UnicodeDecodeError:
        return {"success": False, "error": f"{params['file_path']} is not UTF-8 text"}

    headings = []
    fence = None  # inside a block of code, a line that begins with # is no heading
    for number, line in enumerate(lines, start=1):
        mark = FENCE.match(line)
        if fence is None and mark:
            fence = mark[1]
        elif fence is not None and mark and line.strip() == mark[1] and mark[1].startswith(fence):
            fence = None
        elif fence is None and (found := HEADING.fullmatch(line)):
            if len(found[1]) <= params.get("max_level", 6):
                headings.append({"level": len(found[1]), "title": found[2], "line": number})
    return {"success": True, "output": headings, "lines": len(lines)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", required=True)
    parser.add_argument("--project-path", required=True)
    args = parser.parse_args()
    print(json.dumps(execute(json.loads(args.params), args.project_path)))
