"""Schemathesis against a really served catalog: every route of ``/openapi.json``, with every check it has.

    make fuzz-http                                  10,000 requests and more
    make fuzz-http ARGS="--examples 50 --seed 7"    fewer, from another seed

Only the stream of events is left out, because it does not end; tests/doors/test_http.py reads it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.doors.web import opened, served
from toolcrib.config import Config
from toolcrib.doors._entrance import Guest
from toolcrib.doors._events import Event, EventKind
from toolcrib.functions import tool
from toolcrib.store.tokens import Tokens

ROOT = Path(__file__).parent.parent.parent
PROGRAM = Path(sysconfig.get_path("scripts"), "st")

# What a call is answered with besides 200 though the request is as it should be: the tool's own schema does
# not take its arguments (422), the caller's own time is over (504), a rule asks a person first (409), or it
# is switched off (403). A message that is short enough may be too long once it is percent-encoded (414).
SETTINGS = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "304", "404"]

[checks.negative_data_rejection]
expected-statuses = ["400", "404", "406", "413", "414", "415", "422", "431"]

[[operations]]
include-operation-id = "list_tools"
checks.positive_data_acceptance.expected-statuses = ["2xx", "304", "414"]

[[operations]]
include-operation-id = "call_tool"
checks.positive_data_acceptance.expected-statuses = ["2xx", "403", "404", "409", "422", "504"]
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", "504"]

[[operations]]
include-operation-id = "answer_approval"
checks.positive_data_acceptance.expected-statuses = ["2xx", "404", "409", "422"]
"""


@tool(effect="read")
def echo(text: str = "", times: int = 1) -> str:
    """Says it again."""
    return text[:100] * max(0, min(times, 10))


@tool(effect="read")
def measure(values: list[float] | None = None) -> dict[str, float]:
    """Counts and adds up."""
    return {"count": float(len(values or ()))}


@tool(effect="change")
def pay(amount: int = 1) -> str:
    """A rule asks about it."""
    return f"paid {amount}"


@tool(effect="change")
def spare() -> str:
    """Switched off and on."""
    return "there"


@dataclass(frozen=True)
class Fuzzed:
    """What became of a run."""

    status: int
    said: str
    requests: int
    calls: Counter[str]


def fuzz(folder: Path, *, examples: int, seed: int, timeout_s: float = 3600.0) -> Fuzzed:
    """One run against a server of its own."""
    asks = {"match": {"key": "python:*/pay"}, "decision": "ask", "because": "money"}
    config = Config(state=str(folder / "state"), policy=(asks,), policy_places=("toolcrib.toml 1",))
    calls: Counter[str] = Counter()

    def count(event: Event) -> None:
        if event.kind is EventKind.CALL_ENDED:
            calls[event.data["kind"] or "ok"] += 1

    with ExitStack() as stack:
        crib = stack.enter_context(opened(folder / "state", tools=[echo, measure, pay, spare], config=config))
        # To the server, programs that its own process starts are tools: they show a token like anybody else.
        token = "tw_" + "fuzz" * 12
        held = folder / "tokens"
        held.touch(mode=0o600)
        held.write_text(f"fuzz {token}\n", encoding="utf-8")
        tokens = Tokens(None, str(held))
        server = stack.enter_context(
            served(crib, guest=Guest(name="fuzz"), tokens=tokens, approval_wait_s_max=0.1)
        )
        server.events.hook(count)
        ids = [server.call("echo", {"text": "x" * number}).json()["call_id"] for number in range(3)]
        approvals = [
            server.call("pay", {"amount": amount}).json()["error"]["details"]["approval_id"]
            for amount in range(5)
        ]
        keys = [each.key for each in crib.tools]
        known = {"name": ["echo", "measure", "pay", "spare", *keys], "call_id": ids, "id": approvals}
        settings = folder / "schemathesis.toml"
        settings.write_text(SETTINGS, encoding="utf-8")
        environment = {
            **os.environ,
            "SCHEMATHESIS_HOOKS": "tests.doors.fuzz_hooks",
            "PYTHONPATH": str(ROOT),
            "FUZZ_KNOWN": json.dumps(known),
            "NO_COLOR": "1",
        }
        run = subprocess.run(
            [
                PROGRAM, "--config-file", settings, "run", f"{server.url}/openapi.json",
                "--checks", "all", "--exclude-path", "/v1/events", "--phases", "examples,coverage,fuzzing",
                "--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure", "--no-shrink",
                "--request-timeout", "20", "--warnings", "off", "-H", f"Authorization: Bearer {token}",
            ],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )  # fmt: skip
        return Fuzzed(run.returncode, run.stdout.decode("utf-8", "replace"), server.requests(), calls)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--examples", type=int, default=900, help="for each route, besides the systematic ones"
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(Path(folder), examples=given.examples, seed=given.seed)
    sys.stdout.write(found.said)
    sys.stdout.write(f"{found.requests} requests, calls by outcome: {dict(found.calls)}\n")
    return found.status


if __name__ == "__main__":
    sys.exit(main())
