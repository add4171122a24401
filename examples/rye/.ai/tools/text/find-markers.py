# rye:signed:2026-11-15T21:28:06Z:c85993a1bb11b61b1e6c9c2b0b40a4439df0a777baafba22b382643ed98766b1:SQdtl8MIdyrIjRLxdj0cT6FY7SGf2_Mp6x5l6ttCz2cjj1_w2LhMDAIYFu36DUAYpRUFDi35SkLfHbzVU0OLCA:6c87fa7f65dc3b96
"""Find lines that carry a marker such as TODO in the text files of the project.

Which markers count and which folders are left out stands in .ai/config/text/markers.yaml; users may override
it in their own .ai/config. The runtime merges the files and hands the result over as `resolved_config`.
"""

import argparse
import json
import os
import re
from pathlib import Path

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "text"
__tool_description__ = "Find lines with markers such as TODO or FIXME in the files of the project"
__requires__ = ["fs.read"]

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {
        "folder": {
            "type": "string",
            "description": "Folder to search, relative to the project root",
            "default": ".",
        },
        "limit": {
            "type": "integer",
            "description": "Lines to return at most",
            "minimum": 1,
            "maximum": 1000,
            "default": 100,
        },
    },
    "required": [],
}

CONFIG_RESOLVE = {"path": "text/markers.yaml", "mode": "deep_merge"}


def execute(params: dict, project_path: str) -> dict:
    project = Path(project_path).resolve()
    folder = (project / params.get("folder", ".")).resolve()
    if not folder.is_relative_to(project):
        return {"success": False, "error": "folder is outside the project"}
    if not folder.is_dir():
        return {"success": False, "error": f"{params['folder']} is not a folder"}

    config = params.get("resolved_config") or {}
    markers = config.get("markers", ["TODO", "FIXME"])
    left_out = set(config.get("left_out", [".git"]))
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, markers))})\b")

    found = []
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in left_out)
        for name in sorted(files):
            path = Path(where, name)
            if path.is_symlink():  # it may lead out of the project
                continue
            try:
                lines = path.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError):
                continue  # not a text file
            found += [
                {"file": str(path.relative_to(project)), "line": number, "text": line.strip()}
                for number, line in enumerate(lines, start=1)
                if pattern.search(line)
            ]
    limit = params.get("limit", 100)
    return {"success": True, "output": found[:limit], "found": len(found)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", required=True)
    parser.add_argument("--project-path", required=True)
    args = parser.parse_args()
    print(json.dumps(execute(json.loads(args.params), args.project_path)))
