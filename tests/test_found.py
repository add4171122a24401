"""Which profile answers for tools that state no needs: it never gets wider because something was left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import toolcrib
from tests.program import PATH
from toolcrib.config import Environment, resolve
from toolcrib.model import Profile
from toolcrib.store import trusted
from toolcrib.store.keep import STORE_NAME
from toolcrib.store.sqlite import SqliteStore

SOURCE = '[[source]]\npath = "."\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    tool = {"name": "t", "description": "d", "schema": {"type": "object"}, "command": ["/bin/true"]}
    (folder / "tools.json").write_text(json.dumps({"tools": [tool]}), encoding="utf-8")
    return folder


def profile(project: Path, *, own: str | None = None, named: tuple[str, ...] = ()) -> Profile | None:
    """The profile of the tool of a project that somebody is in. ``own``: the user's own configuration."""
    home = project.parent / "home"
    surroundings = Environment.read({"HOME": str(home), "PATH": PATH})
    if own is not None:
        file = Path(surroundings.user_config)
        file.parent.mkdir(parents=True)
        file.write_text(own, encoding="utf-8")
    here = os.getcwd()
    os.chdir(project)
    try:
        config = resolve(surroundings, cwd=str(project), sources=named)
        with toolcrib.open(config, environment=surroundings) as crib:
            permit = crib.explain("t").permit
            assert permit is not None
            return permit.profile
    finally:
        os.chdir(here)


def trust(project: Path) -> None:
    file = project / "toolcrib.toml"
    state = Path(Environment.read({"HOME": str(project.parent / "home"), "PATH": PATH}).state)
    state.mkdir(parents=True, mode=0o700)
    store = SqliteStore(str(state / STORE_NAME))
    trusted.trust(store, str(file), trusted.digest_of(file.read_bytes()))
    store.close()


def test_tools_of_a_current_folder_that_was_not_named_get_the_profile_of_what_was_found(
    project: Path,
) -> None:
    assert profile(project) is Profile.PROJECT


@pytest.mark.parametrize("text", ["", SOURCE, '[isolation]\nundeclared = "open"\n'])
def test_an_untrusted_configuration_beside_them_makes_no_difference(project: Path, text: str) -> None:
    (project / "toolcrib.toml").write_text(text, encoding="utf-8")
    assert profile(project) is Profile.PROJECT


def test_the_users_own_configuration_does_not_vouch_for_the_folder_that_he_is_in(project: Path) -> None:
    assert profile(project, own="[timeouts]\ndefault_s = 10\n") is Profile.PROJECT


def test_a_configuration_that_is_trusted_vouches_for_the_sources_that_it_lists(project: Path) -> None:
    (project / "toolcrib.toml").write_text("[timeouts]\ndefault_s = 10\n", encoding="utf-8")
    trust(project)
    assert profile(project) is Profile.PROJECT


def test_a_source_that_a_trusted_configuration_lists_is_open(project: Path) -> None:
    # A key that only a trusted file may set, so that the file counts as trusted at all.
    (project / "toolcrib.toml").write_text(SOURCE + "[rye]\nload_dotenv = true\n", encoding="utf-8")
    trust(project)
    assert profile(project) is Profile.OPEN


@pytest.mark.parametrize("named", [".", "tools.json", "manifest=."])
def test_a_source_that_a_person_named_is_open(project: Path, named: str) -> None:
    assert profile(project, named=(named,)) is Profile.OPEN
