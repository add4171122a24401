"""The entrance of the console: an ASGI app that costs nothing until a browser asks for a page.

The pages themselves (Starlette and Jinja2 with them) are loaded by the first request, so that whoever serves
models alone never pays for them. Nothing is decided here, and who may come in was decided before
(``Entrance``).
"""

from __future__ import annotations

import asyncio
import importlib

from toolcrib.doors._web import App, Receive, Scope, Send
from toolcrib.doors.console._serving import Serving as Serving


def console(serving: Serving) -> App:
    """The pages of a server. ``scope["guest"]`` says who asks."""
    made: list[App] = []
    making = asyncio.Lock()

    def make() -> App:
        site: App = importlib.import_module("toolcrib.doors.console._site").site(serving)
        return site

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if not made:
            async with making:
                if not made:
                    made.append(await asyncio.to_thread(make))
        await made[0](scope, receive, send)

    return answer
