"""Whose a name is: grants go by names, so that no source may take another one's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.peers import Peer, answers, response
from tests.test_servers import codes, command, keys, marking, opened, starts, written
from toolcrib.errors import ConfigError
from toolcrib.journal.redaction import MARKER


@pytest.mark.battery("I09")
def test_a_name_stays_with_a_server_that_is_down(tmp_path: Path) -> None:
    """Attack: a second server of the same name, which gets the first one's grants while that one is down."""
    written(
        tmp_path,
        {"name": "bank", "mcp": ["/bin/false"]},
        {"name": "bank", "mcp": marking(tmp_path, "names=transfer")},
        {"name": "other", "mcp": command("names=a")},
    )
    for _ in range(2):
        with opened(tmp_path) as crib:
            assert keys(crib) == ["mcp:other/a"]
            assert sorted(codes(crib.problems)) == ["mcp.server.unavailable", "mcp.servers.clash"]
    assert starts(tmp_path) == 0


@pytest.mark.battery("I09")
def test_a_list_cannot_take_the_name_of_a_server_of_the_configuration(tmp_path: Path) -> None:
    python, *arguments = marking(tmp_path, "names=more")
    listed = {"mcpServers": {"bank": {"command": python, "args": arguments}}}
    (tmp_path / "list.json").write_text(json.dumps(listed), encoding="utf-8")
    written(tmp_path, {"name": "bank", "mcp": command("names=a")}, {"path": "list.json"})
    with opened(tmp_path) as crib:
        assert keys(crib) == ["mcp:bank/a"]
        assert codes(crib.problems) == ["mcp.servers.clash"]
    assert starts(tmp_path) == 0


def api(path: Path, *names: str) -> str:
    paths = {f"/{name}": {"get": {"operationId": name}} for name in names}
    document = {"openapi": "3.0.3", "servers": [{"url": "https://a.example"}], "paths": paths}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


@pytest.mark.battery("I09")
def test_a_second_api_of_one_name_is_left_out_whether_or_not_the_first_can_be_read(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", api(tmp_path / "second.json", "echo", "other")
    first.write_text("{", encoding="utf-8")
    sources = [{"name": "loc", "openapi": str(first)}, {"name": "loc", "openapi": second}]
    written(tmp_path, *sources)
    with opened(tmp_path) as crib:
        assert keys(crib) == []
        assert "openapi.source.clash" in codes(crib.problems)
    api(first, "echo")
    with opened(tmp_path) as crib:
        assert keys(crib) == ["openapi:loc/echo"]
        assert codes(crib.problems) == ["openapi.source.clash"]


@pytest.mark.battery("I09")
def test_no_tool_of_a_second_api_falls_under_the_first_ones_scope(tmp_path: Path) -> None:
    """Attack: a file called like an API that was granted something."""
    named = [api(tmp_path / "a" / "loc.json", "echo"), api(tmp_path / "b" / "loc.json", "echo", "other")]
    written(tmp_path, *({"openapi": path} for path in named))
    with opened(tmp_path) as crib:
        assert keys(crib) == ["openapi:loc/echo", "openapi:loc~2/echo", "openapi:loc~2/other"]
        assert "openapi.source.renamed" in codes(crib.problems)


def test_a_secret_in_a_url_is_told_and_kept_nowhere(tmp_path: Path) -> None:
    """Attack: whoever reads the journal, the cache or a message learns the key that a URL holds."""
    document = Path(api(tmp_path / "api.json", "echo")).read_bytes()
    with Peer(answers(response(document))) as peer:
        url = peer.url("/openapi.json?key=sesame-77")
        down = "http://127.0.0.1:1/mcp?token=sesame-78"
        written(
            tmp_path,
            {"openapi": url},
            {"openapi": f"{url}&n=2", "name": "gone"},
            {"openapi": f"{url}&n=3", "name": "gone"},
            {"name": "m", "mcp": down},
        )
        with opened(tmp_path) as crib:
            assert "openapi:openapi/echo" in keys(crib)
            assert "openapi.source.clash" in codes(crib.problems)
            (state,) = crib.servers()
            assert state.where == f"http://127.0.0.1:1/mcp?token={MARKER}"
            told = repr((crib.problems, crib.tools, state))
        with opened(tmp_path) as crib:
            told += repr((crib.problems, crib.tools))
    assert "sesame" not in told
    assert MARKER in told
    kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert kept
    assert [path for path in kept if b"sesame" in path.read_bytes()] == []


@pytest.mark.battery("I09")
def test_models_know_tools_of_different_servers_by_different_names(tmp_path: Path) -> None:
    """Attack: a server and a tool whose names, put together, are those of another server's tool."""
    written(
        tmp_path,
        {"name": "a_b", "mcp": command("names=c")},
        {"name": "a", "mcp": command("names=b_c,b__c,_x")},
        {"name": "a__b", "mcp": command("names=c")},
    )
    with opened(tmp_path) as crib:
        assert [tool.spoken for tool in crib.tools] == [
            "a_b__c", "a__b_c", "a__b__c", "a___x", "a__b__c",
        ]  # fmt: skip
        (clash,) = [found for found in crib.problems if found.code == "mcp.tool.spoken-clash"]
        assert "mcp:a__b/c and mcp:a/b__c" in clash.message
        for dialect in ("openai", "anthropic", "mcp"):
            names = crib.declare(dialect).names.keys
            assert len(names) == 5
            assert names["a_b__c"] == "mcp:a_b/c"


# -- secrets that the configuration names -------------------------------------------------------------------


def test_a_secret_that_a_source_names_is_handed_to_its_tools(tmp_path: Path) -> None:
    with Peer(answers(response(b'{"ok": true}', content_type="application/json"))) as peer:
        document = {
            "openapi": "3.0.3",
            "servers": [{"url": peer.url("")}],
            "paths": {"/a": {"get": {"operationId": "a", "security": [{"k": []}]}}},
            "components": {"securitySchemes": {"k": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
        }
        (tmp_path / "api.json").write_text(json.dumps(document), encoding="utf-8")
        grants = '[grants."openapi:*"]\nneeds = ["net.http", "net.private"]\n'
        written(tmp_path, {"openapi": "api.json", "name": "x", "secret": "APIK"}, more=grants)
        with opened(tmp_path, APIK="sesame-77") as crib:
            assert crib.find("openapi:x/a").needs.env == ("APIK",)
            result = crib.call("openapi:x/a")
            assert result.ok, result.error


@pytest.mark.parametrize(
    "source",
    [
        {"openapi": "api.json", "secret": "sk-live 77"},
        {"openapi": "api.json", "secret": "k=GOOD, l=sk-live-77"},
        {"name": "s", "mcp": ["x"], "env": ["GOOD", "sk-live=77"]},
        {"name": "s", "mcp": ["x"], "env": [""]},
        {"openapi": "api.json", "secret": "GOOD,BAD"},
        {"openapi": "api.json", "secret": "k=sk77=GOOD"},
    ],
)
def test_what_is_no_name_of_a_variable_is_refused_and_not_repeated(
    tmp_path: Path, source: dict[str, object]
) -> None:
    written(tmp_path, source)
    with pytest.raises(ConfigError, match="must be the name of a variable") as raised:
        opened(tmp_path)
    assert "77" not in str(raised.value).replace(str(tmp_path), "")
