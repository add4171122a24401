#!/bin/sh
# rye:signed:2026-11-15T21:28:06Z:ea1887d746aa77eadf995d81b1c7f387190ba2f7486c5d2e7f5a7400119e6ad6:OtkHRwjqnUx88saxvXsgz0qAwHlonUM-kkXV-TUJE-OOAM3Yd9n8IFZVNDAkswCqbnWe_Z85bXMO1njoYx0tDA:6c87fa7f65dc3b96
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
limit=$(python3 -I -c 'import json, sys; print(int(json.load(sys.stdin).get("limit", 10)))' 2>/dev/null) || {
    echo "the parameters must be a JSON object; limit must be a whole number" >&2
    exit 1
}

find . -name .git -prune -o -type f -printf '%s\t%P\n' | sort -k 1,1nr -k 2 | head -n "$limit"
