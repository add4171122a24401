"""Secrets out of text."""

from __future__ import annotations

import pytest

from toolwright.journal.redaction import MARKER, Redaction, is_secret_name, shown_url
from toolwright.journal.redaction import MARKER as M


@pytest.mark.parametrize(
    "name",
    ["OAI_API_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "SECRET",
     "PGPASSWORD",
     "apikey", "SESSION_COOKIE", "SENTRY_DSN", "MYAPIKEY", "NPM_AUTH"],
)  # fmt: skip
def test_a_name_that_says_it_is_a_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "PWD", "OLDPWD", "LANG", "KEYBOARD", "MONKEY_BUSINESS", "EDITOR"]
)
def test_a_name_that_does_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.requirement("manifest.audit.redact")
@pytest.mark.parametrize(
    ("patterns", "text", "clean"),
    [
        ((), "curl -H sk-123456", f"curl -H {MARKER}"),
        ((r"card-\d+",), "card-4711 and card-x", f"{MARKER} and card-x"),
        (("(unclosed",), "an (unclosed bracket", f"an {MARKER} bracket"),
        (("",), "nothing to hide", "nothing to hide"),
    ],
    ids=["a known variable", "a regular expression", "else literally", "an empty pattern"],
)
def test_values_and_patterns_become_the_marker(patterns: tuple[str, ...], text: str, clean: str) -> None:
    redaction = Redaction({"OAI_API_KEY": "sk-123456", "EDITOR": "nothing"}, patterns)
    assert redaction(text) == clean


def test_what_was_handed_to_a_call_goes_too_but_not_the_base_environment() -> None:
    redaction = Redaction({"CITY": "Oslo", "HOME": "/home/ann", "LC_ALL": "C.UTF-8", "PWD": "/home"})
    text = "Oslo in /home/ann with C.UTF-8"
    assert redaction(text) == text
    assert redaction(text, ("CITY", "HOME", "LC_ALL", "PWD")) == f"{MARKER} in /home/ann with C.UTF-8"
    assert redaction(text) == text


def test_the_longer_secret_goes_first_and_short_ones_stay() -> None:
    redaction = Redaction({"A_KEY": "abcd", "B_KEY": "abcdef", "C_KEY": "x", "D_KEY": "line\n"})
    assert redaction("abcdef abcd x line") == f"{MARKER} {MARKER} x {MARKER}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a.example/v1/api.json", "https://a.example/v1/api.json"),
        ("https://u:pw@a.example:81/x@y?k=v&flag&n=#f", f"https://{M}@a.example:81/x@y?k={M}&{M}&n={M}"),
        ("https://a.example?key=v=w", f"https://a.example?key={M}"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret_in_it(url: str, shown: str) -> None:
    assert shown_url(url) == shown
