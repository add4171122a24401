# rye:signed:2026-11-15T21:28:06Z:5feb5a769d357eaa63237c0de05943b64342adb320b500b7e0b130a2ecc04d92:OK7n3j-ewN_ZRrokY6Fctf89fNi69FQ2CeHruvi7yCZDRG6bOJcAy6SF6V9DmtR5-2VRsnMaKjv9jEOuagqlCw:6c87fa7f65dc3b96
"""Replace a text in a file of the project, only where it is clear which text is meant."""

import argparse
import json
from pathlib import Path

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "files"
__tool_description__ = "Replace an exact text in a file; fails when the text is not there or not unique"
__requires__ = ["fs.read", "fs.write"]

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {
        "file_path": {
            "type": "string",
            "description": "The file, relative to the project root",
        },
        "old_text": {
            "type": "string",
            "description": "Exact text to replace, with enough around it to be unique",
            "minLength": 1,
        },
        "new_text": {
            "type": "string",
            "description": "Text to put in its place",
        },
        "replace_all": {
            "type": "boolean",
            "description": "Replace every occurrence instead of asking for a unique one",
            "default": False,
        },
    },
    "required": ["file_path", "old_text", "new_text"],
}


def execute(params: dict, project_path: str) -> dict:
    project = Path(project_path).resolve()
    path = (project / params["file_path"]).resolve()
    if not path.is_relative_to(project):
        return {"success": False, "error": "file_path is outside the project"}
    try:
        with path.open(encoding="utf-8", newline="") as file:  # newline="": line ends stay as they are
            text = file.read()
    except OSError as error:
        return {"success": False, "error": f"{params['file_path']}: {error.strerror}"}
    except UnicodeDecodeError:
        return {"success": False, "error": f"{params['file_path']} is not UTF-8 text"}

    count = text.count(params["old_text"])
    if count == 0:
        return {"success": False, "error": "old_text does not occur in the file"}
    if count > 1 and not params.get("replace_all", False):
        return {"success": False, "error": f"old_text occurs {count} times; add what is around it"}

    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text.replace(params["old_text"], params["new_text"]))
    return {"success": True, "file_path": params["file_path"], "replaced": count}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", required=True)
    parser.add_argument("--project-path", required=True)
    args = parser.parse_args()
    print(json.dumps(execute(json.loads(args.params), args.project_path)))
