"""A call as one HTTP request: which method, to where, with which headers and body. Pure.

Method, URL and headers are the author's; arguments travel as JSON in the body, or in the query of a method
that has no body, and are never pasted into the URL. Where each argument goes by a document of its own
(``placed``), ``calls/operations.py`` says so instead. Nothing here connects, and nothing looks up a secret.
"""

from __future__ import annotations

from dataclasses import field

from toolwright.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One request as it is to be sent, but for the credentials, which the runtime adds."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)
