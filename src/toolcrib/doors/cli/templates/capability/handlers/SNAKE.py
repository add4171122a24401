"""Handlers of the group SNAKE."""


async def execute_SNAKE_tool(tool_name: str, tool_input: dict[str, str]) -> dict[str, object]:
    if tool_name == "SNAKE_greet":
        return {"success": True, "result": f"Hello, {tool_input['name']}!"}
    return {"success": False, "error": f"Unknown tool: {tool_name}"}
