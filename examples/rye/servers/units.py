"""An MCP server with one tool, convert_units: one JSON-RPC message per line on stdin and stdout."""

import json
import sys

# unit: (what it measures, factor, offset); value * factor + offset is the value in the first unit of its kind
UNITS = {
    "m": ("length", 1, 0),
    "mm": ("length", 0.001, 0),
    "cm": ("length", 0.01, 0),
    "km": ("length", 1000, 0),
    "inch": ("length", 0.0254, 0),
    "foot": ("length", 0.3048, 0),
    "yard": ("length", 0.9144, 0),
    "mile": ("length", 1609.344, 0),
    "kg": ("mass", 1, 0),
    "g": ("mass", 0.001, 0),
    "ounce": ("mass", 0.028349523125, 0),
    "pound": ("mass", 0.45359237, 0),
    "kelvin": ("temperature", 1, 0),
    "celsius": ("temperature", 1, 273.15),
    "fahrenheit": ("temperature", 5 / 9, 459.67 * 5 / 9),
    "second": ("time", 1, 0),
    "minute": ("time", 60, 0),
    "hour": ("time", 3600, 0),
    "day": ("time", 86400, 0),
}
TOOL = {
    "name": "convert_units",
    "description": "Convert a quantity from one unit into another.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "value": {"type": "number"},
            "from_unit": {"type": "string"},
            "to_unit": {"type": "string"},
        },
        "required": ["value", "from_unit", "to_unit"],
    },
}


def convert_units(*, value: float, from_unit: str, to_unit: str) -> str:
    for unit in (from_unit, to_unit):
        if unit not in UNITS:
            raise ValueError(f"unknown unit {unit!r}; known are {', '.join(UNITS)}")
    measured, factor, offset = UNITS[from_unit]
    other, other_factor, other_offset = UNITS[to_unit]
    if measured != other:
        raise ValueError(f"{from_unit} is a unit of {measured}, {to_unit} of {other}")
    return f"{(value * factor + offset - other_offset) / other_factor:.10g} {to_unit}"


def answer(method: str, params: dict) -> dict:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "units", "version": "1.0.0"},
            }
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call" if params.get("name") == TOOL["name"]:
            try:
                text, failed = convert_units(**params.get("arguments", {})), False
            except (TypeError, ValueError) as error:
                text, failed = str(error), True
            return {"content": [{"type": "text", "text": text}], "isError": failed}
    raise LookupError(f"unknown method or tool: {method}")


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue  # a notification
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            reply["result"] = answer(message["method"], message.get("params", {}))
        except LookupError as error:
            reply["error"] = {"code": -32601, "message": str(error)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
