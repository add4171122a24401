"""How to test tools: load the file, call execute. The tool checks/run-unittests runs this."""

import importlib.util
import tempfile
import unittest
from pathlib import Path
from types import ModuleType

TOOLS = Path(__file__).parent.parent / ".ai" / "tools"


def tool(item_id: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tool", TOOLS / f"{item_id}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ReplaceText(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.project = Path(folder.name)
        (self.project / "a.txt").write_text("one two two", encoding="utf-8")

    def replace(self, old_text: str, new_text: str, file_path: str = "a.txt") -> dict:
        params = {"file_path": file_path, "old_text": old_text, "new_text": new_text}
        return tool("files/replace-text").execute(params, str(self.project))

    def test_a_unique_text_is_replaced(self) -> None:
        self.assertTrue(self.replace("one", "1")["success"])
        self.assertEqual((self.project / "a.txt").read_text(encoding="utf-8"), "1 two two")

    def test_a_text_that_is_not_unique_is_refused(self) -> None:
        self.assertEqual(self.replace("two", "2")["error"], "old_text occurs 2 times; add what is around it")

    def test_a_file_outside_the_project_is_refused(self) -> None:
        self.assertEqual(self.replace("x", "y", "../a.txt")["error"], "file_path is outside the project")


if __name__ == "__main__":
    unittest.main()
