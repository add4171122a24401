"""Resources, prompts and completions: what one request is answered, to whom, in both eras."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toolcrib
from tests.program import environment
from toolcrib import Crib, TextBlock
from toolcrib.config import Environment
from toolcrib.doors._entrance import Guest
from toolcrib.doors._mcp_desk import Desk
from toolcrib.doors._mcp_resources import PAGE_MAX
from toolcrib.doors._offers import Argument, Offers, Prompt, Resource, Withheld
from toolcrib.mcp_wire import Fault, answer, failure
from toolcrib.model import Reach

ANN = Guest(name="ann")
NEWER = "2026-07-28"
META = "io.modelcontextprotocol/"
AROUND = {META + "protocolVersion": NEWER, META + "clientCapabilities": {}}


def withhold(marks: object) -> str:
    raise Withheld("not today")


def break_down(marks: object) -> str:
    raise RuntimeError("the password is 12345")


MORE = Offers(
    resources=(
        Resource(uri="test://bytes", name="bytes", media_type="image/png", read=lambda marks: b"\0\xff"),
        Resource(uri="test://long", name="long", read=lambda marks: "x" * ((4 << 20) + 1)),
        Resource(uri="test://withheld", name="withheld", read=withhold),
        Resource(uri="test://broken", name="broken", read=break_down),
        Resource(uri="test://{kind}/{id}", name="any", read=lambda marks: json.dumps(dict(marks))),
        Resource(uri="test://one/1", name="one", read=lambda marks: "1"),
        Resource(uri="test://one/2", name="two", read=lambda marks: "2"),
    ),
    prompts=(
        Prompt(
            name="say",
            arguments=(Argument(name="what", required=True),),
            begin=lambda told: [TextBlock(text=told["what"])],
        ),
    ),
)


@pytest.fixture(scope="module")
def crib(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crib]:
    folder: Path = tmp_path_factory.mktemp("resources")
    (folder / "skills" / "notes").mkdir(parents=True)
    text = "---\nname: notes\ndescription: About notes.\n---\nKeep them short.\n"
    (folder / "skills" / "notes" / "SKILL.md").write_text(text, encoding="utf-8")
    surroundings = Environment.read(environment(folder / "home"))
    with toolcrib.open(folder / "skills", environment=surroundings) as opened:
        yield opened


def ask(crib: Crib, *messages: dict[str, Any], guest: Guest = ANN, more: Offers = MORE) -> list[Any]:
    """The answers to some messages of one client: in the newer era where a message has its envelope."""
    desk = Desk(crib, more)
    answers = []
    for message in messages:
        params = message["params"]
        found = desk.respond(message["method"], params, guest, NEWER in str(params.get("_meta")))
        number = message["id"]
        answers.append(
            json.loads(failure(number, found) if isinstance(found, Fault) else answer(number, found))
        )
    return answers


def request(method: str, number: object = 1, **params: object) -> dict[str, Any]:
    return {"id": number, "method": method, "params": params}


def both(method: str, **params: object) -> list[dict[str, Any]]:
    return [request(method, **params), request(method, **params, _meta=AROUND)]


def codes(answers: list[Any]) -> list[int]:
    return [answer["error"]["code"] for answer in answers]


def test_the_newer_era_is_told_how_long_an_answer_holds_and_by_whom_it_is(crib: Crib) -> None:
    older, newer = (each["result"] for each in ask(crib, *both("prompts/list")))
    assert older == {"prompts": newer["prompts"]}
    assert (newer["resultType"], newer["ttlMs"], newer["cacheScope"]) == ("complete", 0, "private")
    assert newer["_meta"][META + "serverInfo"]["name"] == "toolcrib"
    assert [each["name"] for each in older["prompts"]] == ["notes", "say"]


def test_a_caller_whose_reach_ends_before_a_skill_does_not_find_it(crib: Crib) -> None:
    """Attack: a token for other tools reads what skills say."""
    far = Guest(name="bob", reach=Reach(tools=("manifest:*",)))
    uri = "skill://notes/SKILL.md"
    listed, templates, prompts, read, begun, completed = ask(
        crib,
        request("resources/list"),
        request("resources/templates/list"),
        request("prompts/list"),
        request("resources/read", uri=uri),
        request("prompts/get", name="notes"),
        request(
            "completion/complete",
            ref={"type": "ref/resource", "uri": "skill://{name}/SKILL.md"},
            argument={"name": "name", "value": ""},
        ),
        guest=far,
        more=Offers(),
    )
    assert listed["result"] == {"resources": []}
    assert templates["result"] == {"resourceTemplates": []}
    assert prompts["result"] == {"prompts": []}
    assert codes([read, begun]) == [-32002, -32602]
    assert completed["result"]["completion"]["values"] == []


def test_an_address_or_name_that_was_meant_is_told_and_never_one_that_is_hidden(crib: Crib) -> None:
    wrong = (request("resources/read", uri="skill://note/SKILL.md"), request("prompts/get", name="note"))
    assert [each["error"]["message"] for each in ask(crib, *wrong)] == [
        "unknown resource 'skill://note/SKILL.md'; did you mean skill://notes/SKILL.md?",
        "unknown prompt 'note'; did you mean notes?",
    ]
    far = Guest(name="bob", reach=Reach(tools=("manifest:*",)))
    hidden = ask(crib, *wrong, guest=far, more=Offers())
    assert not any("did you mean" in each["error"]["message"] for each in hidden)


def test_what_a_host_offers_is_read_as_it_is(crib: Crib) -> None:
    held, marked = ask(
        crib,
        request("resources/read", uri="test://bytes"),
        request("resources/read", uri="test://a/b%2Fc"),
    )
    assert held["result"]["contents"] == [{"uri": "test://bytes", "mimeType": "image/png", "blob": "AP8="}]
    assert json.loads(marked["result"]["contents"][0]["text"]) == {"kind": "a", "id": "b/c"}


def test_nothing_of_what_went_wrong_inside_is_told(crib: Crib, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "toolcrib.doors")
    broken, withheld, long = ask(
        crib,
        request("resources/read", uri="test://broken"),
        request("resources/read", uri="test://withheld"),
        request("resources/read", uri="test://long"),
    )
    assert broken["error"] == {"code": -32603, "message": "Internal server error"}
    assert withheld["error"] == {"code": -32602, "message": "not today"}
    assert long["error"] == {"code": -32603, "message": "'test://long' is too large to be read"}


def test_a_prompt_says_what_it_needs_and_takes_no_book(crib: Crib) -> None:
    said, missing, long, wrong = ask(
        crib,
        request("prompts/get", name="say", arguments={"what": "Hello."}),
        request("prompts/get", name="say"),
        request("prompts/get", name="say", arguments={"what": "x" * ((64 << 10) + 1)}),
        request("prompts/get", name="say", arguments={"what": 7}),
    )
    assert said["result"]["messages"] == [{"role": "user", "content": {"type": "text", "text": "Hello."}}]
    assert codes([missing, long, wrong]) == [-32602] * 3
    assert missing["error"]["message"] == "missing arguments: what"


def test_the_marks_of_a_template_are_completed_from_what_is_listed(crib: Crib) -> None:
    ref = {"type": "ref/resource", "uri": "test://{kind}/{id}"}
    kinds, numbers, other, prompt = ask(
        crib,
        request("completion/complete", ref=ref, argument={"name": "kind", "value": ""}),
        request("completion/complete", ref=ref, argument={"name": "id", "value": "2"}),
        request("completion/complete", ref=ref, argument={"name": "nothing", "value": ""}),
        request(
            "completion/complete",
            ref={"type": "ref/prompt", "name": "say"},
            argument={"name": "what", "value": "H"},
        ),
    )
    assert kinds["result"]["completion"] == {"values": ["one"], "total": 1, "hasMore": False}
    assert numbers["result"]["completion"]["values"] == ["2"]
    assert other["result"]["completion"]["values"] == prompt["result"]["completion"]["values"] == []


def test_long_lists_come_in_pages(crib: Crib) -> None:
    prompts = tuple(Prompt(name=f"p{number}", begin=lambda told: []) for number in range(PAGE_MAX + 1))
    first, second, beyond, wrong = ask(
        crib,
        request("prompts/list"),
        request("prompts/list", cursor=str(PAGE_MAX)),
        request("prompts/list", cursor="999999999"),
        request("prompts/list", cursor="-1"),
        more=Offers(prompts=prompts),
    )
    assert (len(first["result"]["prompts"]), first["result"]["nextCursor"]) == (PAGE_MAX, str(PAGE_MAX))
    assert [each["name"] for each in second["result"]["prompts"]] == [f"p{PAGE_MAX - 1}", f"p{PAGE_MAX}"]
    assert beyond["result"] == {"prompts": []}
    assert codes([wrong]) == [-32602]


def test_a_text_that_is_no_unicode_is_a_mistake_of_the_host(crib: Crib) -> None:
    half = Resource(uri="test://half", name="half", read=lambda marks: "\ud83d")
    (broken,) = ask(crib, request("resources/read", uri="test://half"), more=Offers(resources=(half,)))
    assert broken["error"] == {"code": -32603, "message": "the answer cannot be written as UTF-8"}


def test_a_method_that_is_not_offered_is_unknown_whatever_its_params_are(crib: Crib) -> None:
    asked = [request("logging/setLevel", level=7), request("resources/subscribe"), request("tools/sing")]
    assert codes(ask(crib, *asked)) == [-32601] * 3


@pytest.mark.parametrize("method", ["resources/list", "prompts/get", "completion/complete"])
def test_a_meta_that_is_no_object_is_refused(crib: Crib, method: str) -> None:
    (refused,) = ask(crib, {"id": 1, "method": method, "params": {"_meta": 7}})
    assert refused["error"] == {"code": -32602, "message": "_meta: must be an object"}
