"""An MCP server on stdin and stdout that misbehaves as its arguments and its tools' names say.

It imports only the standard library, so that many of them start quickly. Everything it does wrong is bounded.
"""

import json
import os
import subprocess
import sys
import time

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
NAMES = [
    "echo", "env", "die", "hang", "long-line", "storm", "noise", "broken", "wrong-id", "twice", "ask-us",
    "steps", "slow-then-fast", "blocks", "fail", "grow", "daemon", "half", "huge", "refuse", "complain",
    "not-fitting", "emoji", "torn",
]  # fmt: skip


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def say(words, stream=sys.stdout):
    stream.write(words + "\n")
    stream.flush()


def result(number, value):
    send({"id": number, "result": value})


def text(number, words, **more):
    result(number, {"content": [{"type": "text", "text": words}], **more})


def options():
    found = {}
    for argument in sys.argv[1:]:
        name, _, value = argument.partition("=")
        found[name] = value
    return found


class Server:
    def __init__(self):
        self.options = options()
        self.extra = []
        self.held = []
        self.heard = []
        if "banner" in self.options:
            say("Welcome to the odd server!")
        if "complains" in self.options:
            say("odd server: \x1b[31mcannot find its feet\x1b[0m", sys.stderr)
        if "marks" in self.options:  # one more line for each start
            with open(self.options["marks"], "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()}\n")

    def tools(self):
        names = [*NAMES, *self.extra]
        if "tools" in self.options:
            names = [f"tool_{number}" for number in range(int(self.options["tools"]))]
        if "names" in self.options:
            names = [name for name in self.options["names"].split(",") if name]
        if "names-in" in self.options:
            with open(self.options["names-in"], encoding="utf-8") as file:
                names = file.read().split(",")
        tools = [{"name": name, "description": f"does {name}", "inputSchema": SCHEMA} for name in names]
        for tool in tools:
            if tool["name"] == "not-fitting":
                tool["outputSchema"] = {"type": "object", "required": ["there"]}
            if tool["name"] in self.options.get("read", "").split(","):
                tool["annotations"] = {"readOnlyHint": True}
        return tools

    def handle(self, message):
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            if "mute" in self.options or os.path.exists(self.options.get("mute-if", "")):
                return
            if "modern" in self.options:
                send({"id": number, "error": {"code": -32022, "message": "Unsupported protocol version",
                                              "data": {"supported": ["2026-07-28"]}}})  # fmt: skip
                return
            result(number, {"protocolVersion": self.options.get("version", "2025-11-25"),
                            "capabilities": {"tools": {"listChanged": True}},
                            "serverInfo": {"name": "odd", "version": "1"}})  # fmt: skip
        elif method == "server/discover":
            self.heard.append(message["params"]["_meta"])
            result(number, {"supportedVersions": ["2026-07-28"], "resultType": "complete", "ttlMs": 0,
                            "capabilities": {"tools": {"listChanged": True}}})  # fmt: skip
        elif method == "tools/list":
            if "when" in self.options:
                self.wait_for(self.options["when"])
            if "slow" in self.options:
                time.sleep(float(self.options["slow"]))
            if "endless" in self.options:
                result(number, {"tools": [], "nextCursor": f"again{number}"})
                return
            tools, cursor = self.tools(), message.get("params", {}).get("cursor")
            start, size = int(cursor or 0), int(self.options.get("page", "100000"))
            more = {"nextCursor": str(start + size)} if start + size < len(tools) else {}
            result(number, {"tools": tools[start : start + size], **more})
            if "grows" in self.options and not self.extra:  # straight after its first answer
                self.extra.append("later")
                send({"method": "notifications/tools/list_changed"})
        elif method == "tools/call":
            params = message["params"]
            self.call(params["name"], params.get("arguments", {}), number, params.get("_meta", {}))
        elif method == "subscriptions/listen":
            self.heard.append("listening")
        elif method is None or method.startswith("notifications/"):
            self.heard.append(message.get("error", method))
        elif number is not None:
            send({"id": number, "error": {"code": -32601, "message": "Method not found"}})

    @staticmethod
    def wait_for(path):
        until = time.monotonic() + 60
        while not os.path.exists(path) and time.monotonic() < until:
            time.sleep(0.01)

    def call(self, name, arguments, number, meta):
        if name == "pid":
            text(number, str(os.getpid()))
        elif name == "env":
            text(number, json.dumps(sorted(os.environ)))
        elif name == "die":
            os._exit(7)
        elif name == "half":
            sys.stdout.write('{"jsonrpc": "2.0", "id": ')
            sys.stdout.flush()
            os._exit(0)
        elif name == "hang":
            pass
        elif name == "long-line":
            try:
                for _ in range(int(arguments.get("text", "64"))):
                    sys.stdout.write("x" * (1 << 20))
                sys.stdout.flush()
            except BrokenPipeError:
                os._exit(0)
        elif name == "storm":
            line = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}) + "\n"
            try:
                for _ in range(50):
                    sys.stdout.write(line * 1000)
                sys.stdout.flush()
            except BrokenPipeError:
                os._exit(0)
            text(number, "after the storm")
        elif name == "noise":
            say("this is no JSON\n")
            text(number, "after the noise")
        elif name == "broken":
            say(f'{{"jsonrpc": "2.0", "id": {number}, "result": {{"content": []}}, "result": {{}}}}')
        elif name == "emoji":
            halved = '{"content": [{"type": "text", "text": "half a smile: \\ud83d"}]}'
            say(f'{{"result": {halved}, "jsonrpc": "2.0", "id": {number}}}')
        elif name == "torn":
            say('{"jsonrpc": "2.0", "result": {"content": [')
        elif name == "wrong-id":
            text(number + 100_000, "for somebody else")
            text("1", "for a text")
            text(True, "for a truth")
            text(number, "for you")
        elif name == "twice":
            text(number, "once")
            text(number, "twice")
        elif name == "slow-then-fast":
            self.held.append((number, arguments.get("text", "")))
            if len(self.held) == 3:
                for held, words in reversed(self.held):
                    text(held, words)
                self.held = []
        elif name == "ask-us":
            send({"id": "a", "method": "ping"})
            send({"id": "b", "method": "sampling/createMessage", "params": {}})
            answers = [json.loads(sys.stdin.readline()) for _ in range(2)]
            text(number, json.dumps(answers))
        elif name == "steps":
            for step in range(3):
                send({"method": "notifications/progress",
                      "params": {"progressToken": meta.get("progressToken"), "progress": step}})  # fmt: skip
            text(number, "done")
        elif name == "odd-steps":
            words = arguments.get("text", "")
            for odd in (
                {"progress": 1, "total": 4, "message": f"with {words}"},
                {"progress": "2", "message": "no number"},
                {"progress": True},
                {"progress": 2.5, "total": "many", "message": "m" * 5000},
                {"progress": 3, "progressToken": -1},
            ):
                told = {"progressToken": meta.get("progressToken"), **odd}
                send({"method": "notifications/progress", "params": told})
            text(number, "done")
        elif name == "held-back":
            self.held.append(number)
            told = {"progressToken": meta.get("progressToken"), "progress": 1, "message": "gone on"}
            send({"method": "notifications/progress", "params": told})
        elif name == "let-go":
            text(number, arguments.get("text", ""))
            text(self.held.pop(), "let go")
        elif name == "blocks":
            result(number, {"content": [
                {"type": "text", "text": "a word", "annotations": {"audience": ["user"]}},
                {"type": "image", "data": "aGk=", "mimeType": "image/png"},
                {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
                {"type": "resource_link", "uri": "file:///a", "name": "a", "title": "A", "size": 3},
                {"type": "resource", "resource": {"uri": "file:///b", "text": "in", "mimeType": "text/x"}},
                {"type": "resource", "resource": {"uri": "file:///c", "blob": "aGk=", "_meta": {"k": 1}}},
                {"type": "hologram", "data": "?"},
            ], "structuredContent": {"n": 1}})  # fmt: skip
        elif name == "deaf":  # reads nothing more for a while, and says so
            sys.stderr.write("deaf now\n")
            sys.stderr.flush()
            time.sleep(float(arguments.get("text", "3")))
        elif name == "no-list":
            result(number, {"content": json.loads(arguments["text"])})
        elif name == "odd-structured":
            text(number, "a word", structuredContent=json.loads(arguments["text"]))
        elif name == "beside":
            blocks = [{"type": "text", "text": "in words"}, {"type": "text", "text": '{"n": 1}'}]
            result(number, {"content": blocks, "structuredContent": {"n": 1}})
        elif name == "fail":
            text(number, "it went wrong: " + arguments.get("text", ""), isError=True)
        elif name == "refuse":
            send(
                {
                    "id": number,
                    "error": {"code": -32602, "message": "Unknown tool" + arguments.get("text", "")},
                }
            )
        elif name == "not-fitting":
            text(number, "no", structuredContent={"here": 1})
        elif name == "repeat":
            words = arguments.get("text", "")
            text(number, words, structuredContent={"list": [words], words: 1})
        elif name == "grow":
            self.extra.append(arguments.get("text", "grown"))
            text(number, "grown")
            send({"method": "notifications/tools/list_changed"})
        elif name == "daemon":
            code = "import os,time\nos.setsid()\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
            child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE)
            assert child.stdout is not None
            text(number, child.stdout.readline().decode().strip())
        elif name == "huge":
            text(number, "h" * (1 << 20) * int(arguments.get("text", "9")))
        elif name == "heard":
            text(number, json.dumps(self.heard))
        elif name == "write":
            try:
                with open(arguments["text"], "w", encoding="ascii") as file:
                    file.write("evil")
                text(number, "written")
            except OSError as error:
                text(number, type(error).__name__)
        elif name == "complain":
            say("about " + arguments.get("text", ""), sys.stderr)
            os._exit(9)
        else:
            text(number, arguments.get("text", name))

    def serve(self):
        for line in sys.stdin:
            message = json.loads(line)
            self.handle(message)


if __name__ == "__main__":
    Server().serve()
