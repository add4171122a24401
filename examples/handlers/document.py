"""The tools of groups/document_tools.json: the documents of a project in SQLite.

The project comes from the host's context, never from the model, so a conversation reaches its own project's
documents and no others.
"""

import sqlite3
from contextlib import closing

TABLE = """
CREATE TABLE IF NOT EXISTS document (
    project_id TEXT NOT NULL,
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    author TEXT NOT NULL,
    changed TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (project_id, title)
)
"""


def execute_document_tool(
    tool_name: str,
    tool_input: dict,
    *,
    project_id: str,
    user_id: str | None = None,
    database: str = "crib.db",
) -> dict:
    with closing(sqlite3.connect(database)) as db, db:
        db.row_factory = sqlite3.Row
        db.execute(TABLE)
        match tool_name:
            case "save_document":
                db.execute(
                    "INSERT OR REPLACE INTO document (project_id, title, text, author) VALUES (?, ?, ?, ?)",
                    (project_id, tool_input["title"], tool_input["text"], user_id),
                )
                return {"success": True, "result": f"Saved {tool_input['title']!r}."}
            case "list_documents":
                rows = db.execute(
                    "SELECT title, author, changed, length(text) AS characters FROM document"
                    " WHERE project_id = ? ORDER BY title",
                    (project_id,),
                )
                return {"success": True, "result": [dict(row) for row in rows]}
            case "read_document":
                row = db.execute(
                    "SELECT title, text FROM document WHERE project_id = ? AND title = ?",
                    (project_id, tool_input["title"]),
                ).fetchone()
                if row is None:
                    return {"success": False, "error": f"There is no document {tool_input['title']!r}."}
                return {"success": True, "result": dict(row)}
    return {"success": False, "error": f"Unknown tool: {tool_name}"}
