"""The same tools, resources and prompts behind the official SDK's low-level server, over HTTP or a pipe.

Tests send the same messages here and to our own server, and compare the answers. What a message means is the
SDK's: reading, versions, envelopes, sessions, the shape of params and results, codes and statuses of errors.
Only what there is comes from us: the desk's tools and the offers.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import mcp_types as types
from mcp.server.context import CallNext, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.app import Crib
from toolcrib.dialects import mcp as dialect
from toolcrib.doors._crew import Crew
from toolcrib.doors._mcp_desk import SERVER, Desk
from toolcrib.doors._offers import (
    SAID_CHARS_MAX,
    Absent,
    Offers,
    Prompt,
    Resource,
    Withheld,
    kept_results,
    offers,
)
from toolcrib.doors._web import Receive, Scope, Send
from toolcrib.errors import did_you_mean, nearest
from toolcrib.jsontext import JsonObject
from toolcrib.mcp_wire import Fault, elicits
from toolcrib.model import Guest, Right, ToolCall, ToolResult

SESSIONS_MAX: Final = 1000
LISTENERS_MAX: Final = 256
PAGE_MAX: Final = 1000
"""Resources and prompts in one answer."""
VALUES_MAX: Final = 100
"""Completions in one answer, as the protocol says."""
BODY_BYTES_MAX: Final = 64 << 20
"""The entrance's limit is the lower one."""
BLOCK_BYTES_MAX: Final = 4 << 20
"""Of a resource that the host offers."""

_RESOURCE_NOT_FOUND: Final = -32002
"""As the handshake era says; the newer one gave the code up."""
_Context: TypeAlias = ServerRequestContext[Any, Any]
_T = TypeVar("_T")


class Oracle:
    """One for a server, on one event loop. ``guest`` asks where a request does not say who does."""

    def __init__(self, crib: Crib, crew: Crew, more: Offers, guest: Guest) -> None:
        self._crib = crib
        self._crew = crew
        self._more = more
        self._guest_of_pipe = guest
        self._loop: asyncio.AbstractEventLoop | None = None
        self._desk = Desk(crib)
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus, max_subscriptions=LISTENERS_MAX)
        self._server = self._make()
        self._sessions = StreamableHTTPSessionManager(
            self._server, max_sessions=SESSIONS_MAX, max_request_body_size=BODY_BYTES_MAX
        )
        self._running: _Running | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        crib.watch(self._changed)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, in either era, handshake and sessions included."""
        self._loop = asyncio.get_running_loop()
        if self._running is None:
            self._running = _Running(self._sessions)
        await self._running.ready()
        await self._sessions.handle_request(scope, receive, send)

    async def serve_stdio(self) -> None:
        """Serve one client on stdin and stdout, until it leaves."""
        self._loop = asyncio.get_running_loop()
        async with stdio_server() as (heard, said):
            await self._server.run(heard, said, self._server.create_initialization_options())

    async def close(self) -> None:
        """End what streams, and every session."""
        self._listen.close()
        if self._running is not None:
            await self._running.stop()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- the server -----------------------------------------------------------------------------------------

    def _make(self) -> Server[Any]:
        who = {key: str(value) for key, value in SERVER.items()}
        server = _Server(
            who["name"],
            title=who["title"],
            version=who["version"],
            # No schema of ours has x-mcp-header (the dialect takes it out), so nothing is to be compared.
            get_tool_input_schema=lambda name: None,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete,
            on_subscriptions_listen=self._listen,
        )
        server.middleware[:] = [self._instruct]  # spans are told by the crew, once
        return server

    async def _instruct(self, ctx: _Context, call_next: CallNext) -> Any:
        """Say in a greeting what the client's model shall know, which is not the same for every caller."""
        result = await call_next(ctx)
        if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
            guest = self._guest(ctx)
            text = await asyncio.to_thread(self._crib.instructions, caller=guest.name, reach=guest.reach)
            return {**result, **({"instructions": text} if text else {})}
        return result

    def _guest(self, context: _Context) -> Guest:
        if context.request is None:
            return self._guest_of_pipe
        guest: Guest = context.request.scope["guest"]
        return guest

    # -- tools ----------------------------------------------------------------------------------------------

    async def _list_tools(self, context: _Context, params: types.PaginatedRequestParams | None) -> Any:
        fault = self._desk.check_cursor({"cursor": None if params is None else params.cursor})
        if fault is not None:
            raise _error(fault)
        listing = await asyncio.to_thread(self._desk.listing, self._guest(context))
        return _cached({"tools": jsontext.loads_own(listing.tools)})

    async def _call_tool(self, context: _Context, params: types.CallToolRequestParams) -> Any:
        """As our own server does, by the same desk."""
        guest, desk, said = self._guest(context), self._desk, dict(context.params or {})
        newer = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        if Right.CALL not in guest.rights:
            raise MCPError(types.INVALID_REQUEST, "this caller may look at tools, not call them")
        asks = _can_elicit(context) and desk.may_ask(guest)
        if newer and (params.request_state is not None or params.input_responses is not None):
            fault = await asyncio.to_thread(desk.answered, guest, said)
            if fault is not None:
                raise _error(fault)
            asks = False
        listing = await asyncio.to_thread(desk.listing, guest)
        call = desk.call(guest, said, listing.keys)
        if isinstance(call, Fault):
            raise _error(call)
        result = await self._run(context, call)
        question = await asyncio.to_thread(desk.question, result, b"") if asks else None
        if question is not None and newer:
            return jsontext.loads_own(desk.asked(guest, said, question))
        if question is not None and context.session.can_send_request:
            told = await self._elicit(context, question.params)
            if await asyncio.to_thread(desk.decide, guest, question.approval_id, told):
                result = await self._run(context, replace(call, id=self._crib.new_call_id()))
        _, body = desk.write(0, call, result, newer=newer)
        answer = jsontext.loads_own(body)
        if "error" in answer:
            raise MCPError.from_error_data(types.ErrorData.model_validate(answer["error"]))
        return answer["result"]

    async def _elicit(self, context: _Context, question: JsonObject) -> JsonObject:
        form = question["requestedSchema"]
        assert isinstance(form, dict)
        reply = await context.session.elicit_form(str(question["message"]), form, context.request_id)
        told: JsonObject = reply.model_dump(mode="json", by_alias=True)
        return told

    async def _run(self, context: _Context, call: ToolCall) -> ToolResult:
        """Have the crew run a call, and tell the client how far it is, in order and before the result."""
        steps: asyncio.Queue[tuple[float, float | None, str] | None] = asyncio.Queue()

        def tell(done: float, total: float | None, message: str) -> None:
            self._soon(lambda: steps.put_nowait((done, total, message)))

        async def work() -> ToolResult:
            try:
                return await self._crew.call(call, door="mcp", progress=tell)
            finally:
                steps.put_nowait(None)

        # A task of its own: the SDK's scopes cancel again and again, and a call's end is waited for once.
        task = self._task(work())
        try:
            while (step := await steps.get()) is not None:
                done, total, message = step
                await context.session.report_progress(done, total, message or None)
            return await asyncio.shield(task)
        except BaseException:
            task.cancel()
            raise

    def _task(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _soon(self, do: Callable[[], object]) -> None:
        if self._loop is None:  # nobody has asked for anything yet
            return
        try:
            self._loop.call_soon_threadsafe(do)
        except RuntimeError:  # the loop has ended: nobody listens any more
            return

    # -- resources and prompts ------------------------------------------------------------------------------

    async def _offers(self, context: _Context) -> Offers:
        guest = self._guest(context)
        return await asyncio.to_thread(offers, self._crib, self._more, caller=guest.name, reach=guest.reach)

    async def _list_resources(self, context: _Context, params: types.PaginatedRequestParams | None) -> Any:
        listed = [each for each in (await self._offers(context)).resources if not each.is_template]
        page, following = _page(listed, params)
        return _cached({"resources": [{"uri": each.uri, **_heading(each)} for each in page], **following})

    async def _list_templates(self, context: _Context, params: types.PaginatedRequestParams | None) -> Any:
        listed = [each for each in (await self._offers(context)).resources if each.is_template]
        page, following = _page(listed, params)
        listing = [{"uriTemplate": each.uri, **_heading(each)} for each in page]
        return _cached({"resourceTemplates": listing, **following})

    async def _read_resource(self, context: _Context, params: types.ReadResourceRequestParams) -> Any:
        uri = params.uri
        offered = await self._offers(context)
        # Of kept results none is listed: a link in a cut result leads to each.
        kept = Offers(resources=(*offered.resources, *kept_results(self._crib, self._guest(context))))
        try:
            resource, marks = kept.resource(uri)
            content = await asyncio.to_thread(resource.read, marks)
        except Absent:
            newer = context.protocol_version in MODERN_PROTOCOL_VERSIONS
            code = types.INVALID_PARAMS if newer else _RESOURCE_NOT_FOUND
            known = [each.uri for each in offered.resources if not each.is_template]
            raise MCPError(code, _unknown("resource", uri, known), {"uri": uri[:200]}) from None
        except Withheld as why:
            raise MCPError(types.INVALID_PARAMS, str(why)) from None
        if len(content) > BLOCK_BYTES_MAX:
            raise MCPError(types.INTERNAL_ERROR, f"{uri[:200]!r} is too large to be read")
        held = (
            {"text": content}
            if isinstance(content, str)
            else {"blob": base64.b64encode(content).decode("ascii")}
        )
        return _cached({"contents": [{"uri": uri, "mimeType": resource.media_type, **held}]})

    async def _list_prompts(self, context: _Context, params: types.PaginatedRequestParams | None) -> Any:
        page, following = _page((await self._offers(context)).prompts, params)
        return _cached({"prompts": [_prompt(each) for each in page], **following})

    async def _get_prompt(self, context: _Context, params: types.GetPromptRequestParams) -> Any:
        told = params.arguments or {}
        if any(len(text) > SAID_CHARS_MAX for text in told.values()):
            raise MCPError(types.INVALID_PARAMS, f"an argument is longer than {SAID_CHARS_MAX:,} characters")
        offered = await self._offers(context)
        try:
            prompt = offered.prompt(params.name)
            missing = [each.name for each in prompt.arguments if each.required and each.name not in told]
            if missing:
                raise MCPError(types.INVALID_PARAMS, f"missing arguments: {', '.join(missing)}")
            blocks = await asyncio.to_thread(prompt.begin, told)
        except Absent:
            known = [each.name for each in offered.prompts]
            raise MCPError(types.INVALID_PARAMS, _unknown("prompt", params.name, known)) from None
        except Withheld as why:
            raise MCPError(types.INVALID_PARAMS, str(why)) from None
        messages = [{"role": "user", "content": dialect.write_block(block)} for block in blocks]
        return {"resultType": "complete", "description": prompt.description, "messages": messages}

    async def _complete(self, context: _Context, params: types.CompleteRequestParams) -> Any:
        """What may stand at a mark of a template's address, by the addresses that are listed (the names of
        skills); there is nothing else to complete."""
        found: dict[str, None] = {}
        if isinstance(params.ref, types.ResourceTemplateReference):
            listed = (await self._offers(context)).resources
            for template in listed:
                if template.is_template and template.uri == params.ref.uri:
                    marks = (template.fits(each.uri) or {} for each in listed if not each.is_template)
                    found |= dict.fromkeys(each.get(params.argument.name, "") for each in marks)
        values = [each for each in found if each and each.startswith(params.argument.value)]
        told = {"values": values[:VALUES_MAX], "total": len(values), "hasMore": len(values) > VALUES_MAX}
        return {"resultType": "complete", "completion": told}

    # -- what changes ---------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """The catalog is another: in the thread that replaced it."""

        async def tell() -> None:
            for event in (ToolsListChanged(), PromptsListChanged(), ResourcesListChanged()):
                await self._bus.publish(event)

        self._soon(lambda: self._task(tell()))


class _Server(Server[Any]):
    """Says that lists may change; left alone, it would say so only where it sends notifications itself."""

    def get_capabilities(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
        *,
        protocol_version: str | None = None,
    ) -> types.ServerCapabilities:
        return types.ServerCapabilities(
            tools=types.ToolsCapability(list_changed=True),
            prompts=types.PromptsCapability(list_changed=True),
            resources=types.ResourcesCapability(list_changed=True, subscribe=False),
            completions=types.CompletionsCapability(),
        )


class _Running:
    """A session manager's life, in a task of its own: who enters its task group must leave it."""

    def __init__(self, sessions: StreamableHTTPSessionManager) -> None:
        self._sessions = sessions
        self._is_ready = asyncio.Event()
        self._is_over = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._live())

    async def ready(self) -> None:
        await self._is_ready.wait()

    async def stop(self) -> None:
        self._is_over.set()
        await self._task

    async def _live(self) -> None:
        try:
            async with self._sessions.run():
                self._is_ready.set()
                await self._is_over.wait()
        finally:
            self._is_ready.set()  # whoever waits shall not wait for ever


def _can_elicit(context: _Context) -> bool:
    able = context.session.client_capabilities
    return able is not None and elicits(able.model_dump(mode="json", by_alias=True, exclude_none=True))


def _error(fault: Fault) -> MCPError:
    return MCPError(fault.code, fault.message, fault.data)


def _cached(result: dict[str, Any]) -> dict[str, Any]:
    """A list or a text, which belongs to one caller and may be another the next moment. The older era is not
    sent what only the newer one knows."""
    return {"resultType": "complete", **result, "ttlMs": 0, "cacheScope": "private"}


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    return f"unknown {what} {name[:200]!r}" + (f"; {did_you_mean(near)}" if near else "")


def _heading(resource: Resource) -> JsonObject:
    told: JsonObject = {"name": resource.name, "mimeType": resource.media_type}
    return {**told, "description": resource.description} if resource.description else told


def _prompt(prompt: Prompt) -> JsonObject:
    arguments = [
        {"name": each.name, "description": each.description, "required": each.required}
        for each in prompt.arguments
    ]
    told: JsonObject = {"name": prompt.name, "arguments": jsontext.loads_own(jsontext.plain(arguments))}
    return {**told, "description": prompt.description} if prompt.description else told


def _page(
    listed: Sequence[_T], params: types.PaginatedRequestParams | None
) -> tuple[Sequence[_T], JsonObject]:
    """The part of a list that a cursor (a number of ours) asks for, and the cursor of the next part."""
    cursor = None if params is None else params.cursor
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 9):
        raise MCPError(types.INVALID_PARAMS, "unknown cursor")
    start = int(cursor or 0)
    following: JsonObject = {"nextCursor": str(start + PAGE_MAX)} if len(listed) > start + PAGE_MAX else {}
    return listed[start : start + PAGE_MAX], following
