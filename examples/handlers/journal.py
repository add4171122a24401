"""The tools of groups/journal_tools.json: a diary in SQLite, one per user.

Arguments come from the model and are checked before this is called; `user_id` and `database` come from the
host. A handler may be async, as here, or an ordinary function.
"""

import sqlite3
from contextlib import closing
from datetime import date

TABLE = "CREATE TABLE IF NOT EXISTS journal (user_id TEXT NOT NULL, day TEXT NOT NULL, text TEXT NOT NULL)"


async def execute_journal_tool(
    tool_name: str, tool_input: dict, *, user_id: str, database: str = "crib.db"
) -> dict:
    with closing(sqlite3.connect(database)) as db, db:
        db.execute(TABLE)
        try:
            match tool_name:
                case "add_journal_entry":
                    return add(db, user_id, tool_input)
                case "recall_journal":
                    return recall(db, user_id, tool_input)
                case "search_journal":
                    return search(db, user_id, tool_input)
        except ValueError as error:
            return {"success": False, "error": str(error)}
    return {"success": False, "error": f"Unknown tool: {tool_name}"}


def add(db: sqlite3.Connection, user_id: str, tool_input: dict) -> dict:
    day = day_of(tool_input)
    db.execute("INSERT INTO journal VALUES (?, ?, ?)", (user_id, day, tool_input["text"]))
    return {"success": True, "result": f"Noted under {day}."}


def recall(db: sqlite3.Connection, user_id: str, tool_input: dict) -> dict:
    day = day_of(tool_input)
    rows = db.execute("SELECT text FROM journal WHERE user_id = ? AND day = ? ORDER BY rowid", (user_id, day))
    return {"success": True, "result": {"date": day, "entries": [text for (text,) in rows]}}


def search(db: sqlite3.Connection, user_id: str, tool_input: dict) -> dict:
    rows = db.execute(
        "SELECT day, text FROM journal WHERE user_id = ? AND instr(lower(text), lower(?))"
        " ORDER BY day DESC, rowid DESC LIMIT ?",
        (user_id, tool_input["text"], tool_input.get("limit", 10)),
    )
    return {"success": True, "result": [{"date": day, "text": text} for day, text in rows]}


def day_of(tool_input: dict) -> str:
    given = tool_input.get("date")
    if not given:
        return date.today().isoformat()
    try:
        return date.fromisoformat(given).isoformat()
    except ValueError:
        raise ValueError(f"date must be YYYY-MM-DD (got {given!r})") from None
