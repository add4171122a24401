"""An MCP server on stdin and stdout whose description of a tool is what a file says when it is asked.

Arguments: the file with the description, and a file that gets a line for each call that reaches the server.
Its tool ``stir`` writes the given text into the description and says that the list changed. It imports only
the standard library.
"""

import json
import sys

DESCRIPTION, REACHED = sys.argv[1:3]
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tools():
    with open(DESCRIPTION, encoding="utf-8") as file:
        description = file.read()
    return [
        {"name": "lookup", "description": description, "inputSchema": SCHEMA},
        {"name": "stir", "description": "Changes the other one.", "inputSchema": SCHEMA},
    ]


def call(params):
    text = params.get("arguments", {}).get("text", "")
    with open(REACHED, "a", encoding="utf-8") as file:
        file.write(params["name"] + "\n")
    if params["name"] == "stir":
        with open(DESCRIPTION, "w", encoding="utf-8") as file:
            file.write(text)
        send({"method": "notifications/tools/list_changed"})
    return {"content": [{"type": "text", "text": text or "found"}]}


for line in sys.stdin:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if number is None:
        continue
    if method == "initialize":
        result = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "changing", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": tools()}
    elif method == "tools/call":
        result = call(message["params"])
    else:
        send({"id": number, "error": {"code": -32601, "message": "unknown method"}})
        continue
    send({"id": number, "result": result})
