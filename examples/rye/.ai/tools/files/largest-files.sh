#!/bin/sh
# rye:signed:2026-11-15T20:37:25Z:112a415fdd5425904aaefbb4d9535e10e71d7b07bc8f752a6a6b1a864dc0e689:gtqrclyxXLBfNA1mz9vT98OrtWuh1E_wo_h-ykvQzc6hmoqb8cfEjVZYZCR9iESvT-kU9C8Xcszy8nPsB81oDw:f2e50e06c5504b0d
# Lists the largest files of the project, one per line: size in bytes, tab, path.
#
# __version__ = "1.0.0"
# __tool_type__ = "script"
# __executor_id__ = "rye/core/runtimes/bash/bash"
# __category__ = "files"
# __tool_description__ = "List the largest files of the project with their sizes in bytes"
# CONFIG_SCHEMA = {
#   "type": "object",
#   "properties": {
#     "limit": {
#       "type": "integer",
#       "description": "How many files",
#       "minimum": 1,
#       "maximum": 100,
#       "default": 10
#     }
#   },
#   "required": []
# }
set -eu

# Parameters come as JSON on stdin, never in the command line.
limit=$(python3 -c 'import json, sys; print(int(json.load(sys.stdin).get("limit", 10)))' 2>/dev/null) || {
    echo "the parameters must be a JSON object; limit must be a whole number" >&2
    exit 1
}

find . -name .git -prune -o -type f -printf '%s\t%P\n' | sort -k 1,1nr -k 2 | head -n "$limit"
