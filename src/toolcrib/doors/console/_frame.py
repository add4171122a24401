"""What every page of the console stands in: templates, navigation, static files, headers, errors.

Everything that a declaration or a tool says is hostile here. Three walls stand between it and the reader's
browser, and each would hold alone: templates escape every value (none is ever marked as safe), characters
that hide or reorder text are written out, and the content policy lets no script run but our own files.

Not the place for a page, nor for who may see one: a guest comes with rights that ``Entrance`` gave.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, MutableMapping
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

import jinja2
from markupsafe import Markup
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from toolcrib.doors import _reach
from toolcrib.doors._documents import shown_path
from toolcrib.doors._entrance import NOBODY
from toolcrib.doors._visible import visible
from toolcrib.doors.console._forms import exact
from toolcrib.doors.console._serving import Serving as Serving
from toolcrib.errors import StoreError, UnknownTool
from toolcrib.model import Guest, Right, Tool

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Attack: a description that brings a script, a style, a form or a frame. data: is for images and sound that
tools return; it never names a document or a script."""

_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_PACKAGE: Final = "toolcrib.doors.console"
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
_LINE_CHARS: Final = 240
_log = logging.getLogger(__name__)


class Nav(Struct, frozen=True, kw_only=True):
    """One entry of the navigation."""

    path: str
    label: str
    right: Right | None = None
    """What a guest must have for the page to be of use; None: nothing."""


NAVIGATION: Final = (
    Nav(path="/", label="Tools"),
    Nav(path="/skills", label="Skills"),
    Nav(path="/problems", label="Problems"),
    Nav(path="/calls", label="Calls", right=Right.AUDIT),
    Nav(path="/approvals", label="Approvals", right=Right.APPROVE),
    Nav(path="/audit", label="Audit", right=Right.AUDIT),
    Nav(path="/health", label="Health"),
)


class Statics:
    """Our own style and script, read once. The address of each bears the digest of all of them, so that a
    browser may keep them for ever and a new version is fetched at once."""

    def __init__(self) -> None:
        folder = resources.files(_PACKAGE) / "static"
        self._files = {
            each.name: each.read_bytes()
            for each in folder.iterdir()
            if each.name.rpartition(".")[2] in _TYPES
        }
        whole = hashlib.sha256()
        for name in sorted(self._files):
            whole.update(name.encode() + b"\0" + hashlib.sha256(self._files[name]).digest())
        self.version = whole.hexdigest()[:16]
        self._tags = {
            name: f'"{hashlib.sha256(body).hexdigest()[:32]}"' for name, body in self._files.items()
        }

    def url(self, name: str) -> str:
        if name not in self._files:  # a template that names what is not there
            raise KeyError(name)
        return f"/static/{self.version}/{name}"

    async def answer(self, request: Request) -> Response:
        name = request.path_params["name"]
        body = self._files.get(name)  # a name in a table, never a path
        if body is None:
            raise HTTPException(404)
        is_current = request.path_params["version"] == self.version
        kept = "public, max-age=31536000, immutable" if is_current else "no-cache"
        headers = {"etag": self._tags[name], "cache-control": kept}
        if self._tags[name] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])


class Frame:
    """Makes whole pages out of templates and values."""

    def __init__(self, serving: Serving, statics: Statics) -> None:
        self.serving = serving
        self.crib = serving.crib
        self._paths: frozenset[str] = frozenset()
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader(_PACKAGE, "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.globals = {
            "static": statics.url,
        }
        self._templates.filters["line"] = one_line
        self._templates.filters["number"] = lambda number: f"{number:,}"
        self._templates.filters["pretty"] = pretty
        self._templates.filters["exact"] = exact
        self._templates.filters["segment"] = segment
        self._templates.filters["path"] = shown_path

    def know(self, paths: Iterable[str]) -> None:
        """Which pages there are: only these are in the navigation."""
        self._paths = frozenset(paths)

    def page(
        self,
        request: Request,
        template: str,
        values: Mapping[str, Any] | None = None,
        *,
        status: int = 200,
    ) -> Response:
        """A template in the frame. ``guest``, ``rights``, ``path`` and ``navigation`` are known in each."""
        guest = guest_of(request)
        rights = guest.rights
        text = self._templates.get_template(template).render(
            guest=guest,
            rights=rights,
            path=request.url.path,
            navigation=[
                nav
                for nav in NAVIGATION
                if guest != NOBODY and nav.path in self._paths and (nav.right is None or nav.right in rights)
            ],
            **(values or {}),
        )
        return Response(
            # Attack: a lone surrogate in a name, so that no page with it can be sent at all.
            text.encode("utf-8", "backslashreplace"),
            status,
            {"cache-control": "no-store"},
            "text/html; charset=utf-8",
        )

    def tools(self, request: Request) -> list[Tool]:
        """Every record that the guest may know of."""
        return _reach.near(self.crib, guest_of(request).reach)

    def find(self, request: Request, key: str) -> Tool:
        """One of them. What is beyond the guest's reach is answered as what does not exist."""
        try:
            return _reach.find(self.crib, key, guest_of(request).reach)
        except UnknownTool:
            raise HTTPException(404, "There is no such tool.") from None

    # -- errors ---------------------------------------------------------------------------------------------

    async def refuse(self, request: Request, error: Exception) -> Response:
        """A page that is not there, or not for this guest."""
        assert isinstance(error, HTTPException)
        heading = _REFUSALS.get(error.status_code, "That did not work")
        said = "" if error.detail in _PHRASES else error.detail
        values = {"heading": heading, "said": said, "hint": ""}
        page = self.page(request, "error.html", values, status=error.status_code)
        page.headers.update(error.headers or {})
        return page

    async def say_unread(self, request: Request, error: Exception) -> Response:
        """What the host keeps (the store, the journal) is not to be had: no fault of the page's."""
        assert isinstance(error, StoreError)
        values = {"heading": _UNREAD, "said": error.message, "hint": error.hint or ""}
        return self.page(request, "error.html", values, status=503)

    async def break_down(self, request: Request, error: Exception) -> Response:
        """A fault of ours: what it was stands in the log, not on the page."""
        _log.error("a page of the console broke", exc_info=error)
        said = "What went wrong stands in the server's log."
        values = {"heading": "This page broke", "said": said, "hint": ""}
        return self.page(request, "error.html", values, status=500)


_REFUSALS: Final = {
    403: "That is not yours to see",
    404: "Nothing is here",
    405: "That cannot be done here",
}
_UNREAD: Final = "What this page shows cannot be read"
_PHRASES: Final = ("Not Found", "Forbidden", "Method Not Allowed")


class Guarded:
    """Puts the headers that keep a page harmless on every answer, whichever page or error it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        await self._app(scope, receive, guarded)


def guest_of(request: Request) -> Guest:
    guest: Guest = request.scope["guest"]
    return guest


def require(request: Request, right: Right) -> None:
    """Raises the page for 403 where the guest does not have the right."""
    if right not in guest_of(request).rights:
        raise HTTPException(403, f"This needs the right “{right.value}”, which you do not have.")


def one_line(text: str, chars_max: int = _LINE_CHARS) -> str:
    """The first words of a text on one line."""
    line = " ".join(text[: chars_max * 4].split())
    return line if len(line) <= chars_max else line[: chars_max - 1].rstrip() + "…"


def segment(text: str) -> str:
    """A text as one segment of a path: slashes in it too are encoded."""
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def pretty(value: Any) -> str:
    """JSON for people."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _shown(value: Any) -> Any:
    """Attack: text that hides or reverses what stands beside it. Every value passes here, then is escaped."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
