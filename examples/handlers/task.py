"""The tools of groups/task_tools.json: a list of things to do in SQLite, one per user.

Arguments come from the model and are checked before this is called; `user_id` and `database` come from the
host, so nobody can reach another user's tasks by asking for them.
"""

import sqlite3
from contextlib import closing
from datetime import date

TABLE = """
CREATE TABLE IF NOT EXISTS task (
    id INTEGER PRIMARY KEY,
    user_id TEXT NOT NULL,
    title TEXT NOT NULL,
    due TEXT,
    priority TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0
)
"""


def execute_task_tool(tool_name: str, tool_input: dict, *, user_id: str, database: str = "crib.db") -> dict:
    with closing(sqlite3.connect(database)) as db, db:
        db.row_factory = sqlite3.Row
        db.execute(TABLE)
        try:
            match tool_name:
                case "add_task":
                    return add(db, user_id, tool_input)
                case "list_tasks":
                    return tasks(db, user_id, tool_input)
                case "complete_task":
                    return complete(db, user_id, tool_input)
        except ValueError as error:
            return {"success": False, "error": str(error)}
    return {"success": False, "error": f"Unknown tool: {tool_name}"}


def add(db: sqlite3.Connection, user_id: str, tool_input: dict) -> dict:
    row = db.execute(
        "INSERT INTO task (user_id, title, due, priority) VALUES (?, ?, ?, ?)",
        (user_id, tool_input["title"], day(tool_input, "due"), tool_input.get("priority", "normal")),
    )
    return {"success": True, "result": {"task_id": row.lastrowid}}


def tasks(db: sqlite3.Connection, user_id: str, tool_input: dict) -> dict:
    done = {"open": 0, "done": 1, "all": None}[tool_input.get("status", "open")]
    due_by = day(tool_input, "due_by")
    rows = db.execute(
        "SELECT id AS task_id, title, due, priority, done FROM task"
        " WHERE user_id = :user_id AND (:done IS NULL OR done = :done) AND (:due_by IS NULL OR due <= :due_by)"
        " ORDER BY due IS NULL, due, id",
        {"user_id": user_id, "done": done, "due_by": due_by},
    )
    return {"success": True, "result": [{**row, "done": bool(row["done"])} for row in map(dict, rows)]}


def complete(db: sqlite3.Connection, user_id: str, tool_input: dict) -> dict:
    task_id = tool_input["task_id"]
    found = db.execute("UPDATE task SET done = 1 WHERE id = ? AND user_id = ?", (task_id, user_id)).rowcount
    if not found:
        return {"success": False, "error": f"There is no task {task_id}."}
    return {"success": True, "result": f"Task {task_id} is done."}


def day(tool_input: dict, key: str) -> str | None:
    given = tool_input.get(key)
    if not given:
        return None
    try:
        return date.fromisoformat(given).isoformat()
    except ValueError:
        raise ValueError(f"{key} must be YYYY-MM-DD (got {given!r})") from None
