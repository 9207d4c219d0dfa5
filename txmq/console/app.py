"""The console: finds a visitor's session, runs a page or a change, and renders the answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

import txmq
from txmq.console.links import ClusterLinks
from txmq.console.markup import PageMarkup
from txmq.console.metrics import ConsoleTally, MeasuredApp
from txmq.console.pages import (
    access,
    audit,
    cluster,
    dead_letters,
    delayed,
    groups,
    messages,
    outboxes,
    overview,
    reconciliation,
    search,
    topics,
    transactions,
)
from txmq.console.pages import (
    settings as setting_pages,
)
from txmq.console.request_checks import RequestChecks, read_form
from txmq.console.sessions import SESSION_S, LoginAttempts, SessionTable, VisitorSession
from txmq.console.settings import ConsoleSettings
from txmq.console.sources import OutboxDatabases, ReportLinks
from txmq.console.streams import LiveView, PageStreams
from txmq.console.visits import (
    ChangeRoute,
    PageContent,
    PageFunction,
    PageRoute,
    Visit,
    render,
    required,
)
from txmq.errors import (
    BrokerRefused,
    ConfigError,
    GroupNotFound,
    LimitExceeded,
    LocalProtocolError,
    NoPermission,
    NotFound,
    ReconcileRefused,
    ResourceError,
    TopicNotFound,
    TransportError,
    TxmqError,
    UsageError,
)
from txmq.metrics.http import METRICS_TYPE, HttpPage, Pages, health_pages
from txmq.ops.queries import in_doubt, sentence_of
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.entropy import Entropy, SystemEntropy
from txmq.security.signatures import Credentials

__all__ = ["CHANGES", "PAGES", "Console", "console_app"]

log = logging.getLogger(__name__)

PAGE_S: Final = 10.0
"""How long a page may wait for brokers; one request waits for three seconds."""
LOGIN_COOKIE_S: Final = 600
LIVE_PATH: Final = "/live"
"""The address of all streams of changes."""

_STATIC: Final = Path(__file__).parent / "static"
_MODULES: Final = (
    overview,
    transactions,
    topics,
    messages,
    dead_letters,
    delayed,
    outboxes,
    reconciliation,
    groups,
    cluster,
    setting_pages,
    access,
    audit,
    search,
)
PAGES: Final[tuple[PageRoute, ...]] = tuple(
    page for module in _MODULES for page in module.routes.pages
)
CHANGES: Final[tuple[ChangeRoute, ...]] = tuple(
    change for module in _MODULES for change in module.routes.changes
)

_STATUS: Final[tuple[tuple[type[TxmqError], int], ...]] = (
    (TransportError, 503),
    (ResourceError, 503),
    (ReconcileRefused, 503),
    (NoPermission, 403),
    (NotFound, 404),
    (TopicNotFound, 404),
    (GroupNotFound, 404),
    (LimitExceeded, 413),
    (UsageError, 400),
    (ConfigError, 400),
    (LocalProtocolError, 400),
    (BrokerRefused, 409),
)
"""The HTTP status of an error, by the first class that it belongs to; 503 for all others."""
_TITLES: Final = {503: "No answer from the cluster", 404: "Not found", 403: "Not allowed"}


def console_app(
    settings: ConsoleSettings, clock: Clock | None = None, entropy: Entropy | None = None
) -> ASGIApp:
    """The console as an ASGI application.

    Args:
        settings: What it shows, and to whom.
        clock: Gives the time.
        entropy: Gives the ids of sessions.

    Raises:
        ConfigError: ``settings.names`` names no server, or an outbox or the
            directory of results cannot be used.
        ReconcileRefused: The file system of the results does not answer.
    """
    return Console(settings, clock, entropy).app()


class Console:
    """A console; see :func:`console_app`."""

    def __init__(
        self, settings: ConsoleSettings, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock = clock or SystemClock()
        entropy = entropy or SystemEntropy()
        self._sessions = SessionTable(entropy)
        self._attempts = LoginAttempts()
        self._links = ClusterLinks(settings.names, entropy, settings.operator)
        self._outboxes = OutboxDatabases(settings.outboxes)
        self._reports = ReportLinks(settings.reports)
        self._markup = PageMarkup()
        self.tally = ConsoleTally()
        self._pages = {page.path: page for page in PAGES}
        pauses = {page.path: page.refresh_s for page in PAGES if page.refresh_s is not None}
        self._streams = PageStreams(
            self._session_with, self._rendered, self._can_begin, clock, pauses
        )
        # Only a host's own pages over HTTPS can set a cookie with this prefix.
        prefix = "__Host-" if settings.is_encrypted else ""
        self._cookie, self._login_cookie = f"{prefix}txmq_console", f"{prefix}txmq_login"

    def stop(self) -> None:
        """End the streams of all pages, so that the server can stop at once."""
        self._streams.stop()

    def monitoring(self) -> Pages:
        """The pages for monitoring programs, by path; serve them on a separate port."""
        return {
            "/metrics": self._metrics,
            **health_pages(self._objection),
            "/info": self._info,
        }

    async def _objection(self) -> str:
        return (await self._links.reach()).problem

    async def _metrics(self) -> HttpPage:
        gauges = {
            "sessions": len(self._sessions),
            "streams": len(self._streams),
            "stream_renderings_total": self._streams.sent,
            "streams_refused_total": self._streams.refused,
        }
        self._sessions.expire(self._clock.monotonic())
        text = self.tally.text(gauges, await self._links.reach())
        return HttpPage(text, content_type=METRICS_TYPE)

    async def _info(self) -> HttpPage:
        settings = self._settings
        facts = {
            "version": txmq.__version__,
            "names": settings.names,
            "cluster": settings.cluster,
            "origins": sorted(settings.origins),
            "read_only": settings.is_read_only,
            "needs_login": settings.needs_login,
        }
        return HttpPage(f"{json.dumps(facts, indent=2)}\n", content_type="application/json")

    def app(self) -> ASGIApp:
        """The ASGI application."""
        routes: list[BaseRoute] = [
            Route(LIVE_PATH, self._live, methods=["GET"]),
            Route("/login", self._login_page, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Mount("/static", StaticFiles(directory=_STATIC)),
            *(Route(page.path, partial(self._show, page), methods=["GET"]) for page in PAGES),
            *(
                Route(change.path, partial(self._change, change), methods=["POST"])
                for change in CHANGES
            ),
        ]
        app = Starlette(routes=routes, lifespan=self._lifespan)
        app.add_exception_handler(404, self._not_found)
        pages = frozenset(route.path for route in routes if isinstance(route, Route))
        checked = RequestChecks(app, self._settings)
        return MeasuredApp(checked, self.tally, pages, LIVE_PATH, self._clock)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._outboxes.close()
            self._reports.close()
            await self._links.close()

    # Pages

    async def _show(self, page: PageRoute, request: Request) -> Response:
        try:
            async with asyncio.timeout(PAGE_S):
                found = await self._visitor(request)
        except (TxmqError, TimeoutError) as error:
            return self._answer(request, None, _problem_page(error))
        if isinstance(found, Response):
            return found
        visit = await self._visit(request, found)
        response = self._answer(request, visit, await self._content(page.show, visit))
        self._set_cookie(response, self._cookie, found.id, SESSION_S)
        return response

    async def _visit(self, request: Request, session: VisitorSession) -> Visit:
        self._sessions.expire(self._clock.monotonic())
        await self._links.keep(self._sessions.accounts() | {session.credentials})
        return Visit(
            request=request,
            session=session,
            admin=await self._links.admin(session.credentials),
            settings=self._settings,
            now_ms=self._clock.wall_ms(),
            outboxes=self._outboxes,
            reports=self._reports,
        )

    async def _content(self, show: PageFunction, visit: Visit) -> PageContent:
        try:
            async with asyncio.timeout(PAGE_S):
                return await show(visit)
        except (TxmqError, TimeoutError) as error:
            return _problem_page(error)

    def _answer(self, request: Request, visit: Visit | None, content: PageContent) -> Response:
        if content.to:
            return RedirectResponse(content.to, 303)
        view = self._view_of(visit, content)
        here = _here(request) if request.url.path in self._pages else ""
        notice = ""
        if visit is not None:
            notice, visit.session.notice = visit.session.notice, ""
            if here and request.method == "GET":
                self._streams.note(visit.session, here, view)
        values = self._values(visit, content) | {
            "notice": notice,
            "live": view.html,
            "mark": view.mark_after(""),
            "live_path": LIVE_PATH,
            "here": here if visit is not None or view.is_problem else "",
            "path": request.url.path,
        }
        return HTMLResponse(self._markup.page(content.template, values), content.status)

    def _view_of(self, visit: Visit | None, content: PageContent) -> LiveView:
        return self._markup.live(content.template, self._values(visit, content))

    def _values(self, visit: Visit | None, content: PageContent) -> dict[str, Any]:
        return {**content.values, "visit": visit, "read_only": self._settings.is_read_only}

    # Streams

    async def _live(self, request: Request) -> Response:
        """The changes of a page, as server-sent events."""
        address = request.query_params.get("page", "")
        if address.partition("?")[0] not in self._pages:
            return Response(status_code=204)  # This status stops the browser from reconnecting.
        if self._streams.refuse():
            return PlainTextResponse("too many pages are open\n", 503)
        shown = request.headers.get("last-event-id") or request.query_params.get("shown", "")
        session_id = request.cookies.get(self._cookie, "")
        events = self._streams.events(session_id, address, shown)
        # Proxies must pass each event on at once.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(events, headers=headers, media_type="text/event-stream")

    def _session_with(self, session_id: str) -> VisitorSession | None:
        return self._sessions.find(session_id, self._clock.monotonic(), is_poll=True)

    async def _can_begin(self) -> bool:
        """Whether a visitor without a session can get one, or can log in."""
        if not self._settings.needs_login:
            try:
                async with asyncio.timeout(PAGE_S):
                    await self._links.serves_unsigned()
            except (TxmqError, TimeoutError):
                return False
        return True

    async def _rendered(self, session: VisitorSession, address: str) -> LiveView:
        path, _, query = address.partition("?")
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": query.encode(),
            "headers": [],
        }
        visit = await self._visit(Request(scope), session)
        return self._view_of(visit, await self._content(self._pages[path].show, visit))

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        text = "The console has no page at this address."
        return self._answer(request, None, _problem(404, text))

    # Changes

    async def _change(self, change: ChangeRoute, request: Request) -> Response:
        session = self._session_of(request)
        if session is None:
            return RedirectResponse("/login", 303)
        visit = await self._visit(request, session)
        try:
            form = await self._form_of(request, session)
            if self._settings.is_read_only:
                raise NoPermission("this console is read-only; nothing was changed")
            visit.form = form
            async with asyncio.timeout(change.limit_s or PAGE_S):
                done = await change.make(visit)
        except (TxmqError, TimeoutError) as error:
            visit.problem = _problem_text(error, is_change=True)
            content = await self._content(change.page, visit)
            return self._answer(request, visit, content._replace(status=_status_of(error)))
        session.notice = done.notice
        return RedirectResponse(str(done.to), 303)

    async def _form_of(self, request: Request, session: VisitorSession) -> Mapping[str, str]:
        fields = await read_form(request)
        if not compare_digest(fields.get("token", "").encode(), session.token.encode()):
            raise NoPermission(
                "this form is out of date, and nothing was changed; fill it in again"
            )
        return fields

    # Sessions

    def _session_of(self, request: Request) -> VisitorSession | None:
        return self._sessions.find(request.cookies.get(self._cookie, ""), self._clock.monotonic())

    async def _visitor(self, request: Request) -> VisitorSession | Response:
        """The visitor's session, or the answer that sends the visitor to the log-in.

        Raises:
            TransportError: No broker answers whether visitors need an account.
        """
        session = self._session_of(request)
        if session is not None:
            return session
        if not self._settings.needs_login and await self._links.serves_unsigned():
            return self._sessions.open(None, self._settings.operator, self._clock.monotonic())
        wanted = quote(_here(request), safe="")
        return RedirectResponse(f"/login?next={wanted}", 303)

    def _set_cookie(self, response: Response, name: str, value: str, age_s: float) -> None:
        response.set_cookie(
            name,
            value,
            max_age=int(age_s),
            path="/",
            secure=self._settings.is_encrypted,
            httponly=True,
            samesite="strict",
        )

    async def _login_page(self, request: Request) -> Response:
        session = self._session_of(request)
        if session is not None and session.credentials is not None:
            return RedirectResponse(_next_of(request), 303)
        return self._login_form(request, "", 200)

    def _login_form(self, request: Request, problem: str, status: int) -> Response:
        token = self._sessions.new_token()
        content = render(
            "login.html", title="Log in", token=token, problem_text=problem, next=_next_of(request)
        )
        response = self._answer(request, None, content._replace(status=status))
        self._set_cookie(response, self._login_cookie, token, LOGIN_COOKIE_S)
        return response

    async def _log_in(self, request: Request) -> Response:
        now_s = self._clock.monotonic()
        address = request.client.host if request.client else ""
        if not self._attempts.is_allowed(address, now_s):
            self.tally.log_ins_refused += 1
            text = "Too many attempts failed. Wait a minute, then try again."
            return self._login_form(request, text, 429)
        try:
            fields = await read_form(request)
            expected = request.cookies.get(self._login_cookie, "")
            if not expected or not compare_digest(
                fields.get("token", "").encode(), expected.encode()
            ):
                raise NoPermission("this form is out of date; fill it in again")
            credentials = Credentials(
                access_key=required(fields, "access_key", "the access key"),
                secret_key=required(fields, "secret_key", "the secret key"),
            )
            async with asyncio.timeout(PAGE_S):
                await self._links.check_account(credentials)
        except (TxmqError, TimeoutError) as error:
            text = _problem_text(error)
            self.tally.log_ins_refused += 1
            if isinstance(error, NoPermission | ConfigError):
                self._attempts.note_failure(address, now_s)
                log.warning("a log-in from %s failed", address)
                text = "Access key and secret key do not belong together. Try again."
            return self._login_form(request, text, _status_of(error))
        old = self._session_of(request)
        if old is not None:
            self._sessions.close(old)
        session = self._sessions.open(credentials, credentials.access_key, now_s)
        self.tally.log_ins += 1
        log.info("%s logged in", session.person)
        response = RedirectResponse(_next_of(request), 303)
        response.delete_cookie(self._login_cookie, path="/")
        self._set_cookie(response, self._cookie, session.id, SESSION_S)
        return response

    async def _log_out(self, request: Request) -> Response:
        session = self._session_of(request)
        if session is not None:
            try:
                await self._form_of(request, session)
            except (TxmqError, TimeoutError) as error:
                return self._answer(request, None, _problem_page(error))
            self._sessions.close(session)
            await self._links.keep(self._sessions.accounts())
        response = RedirectResponse("/login", 303)
        response.delete_cookie(self._cookie, path="/")
        return response


def _here(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


def _next_of(request: Request) -> str:
    """The page that a visitor wanted before the log-in; never a page of another site."""
    wanted = request.query_params.get("next", "/")
    is_ours = wanted.startswith("/") and wanted[1:2] not in {"/", "\\"} and wanted.isprintable()
    return wanted if is_ours and not wanted.startswith("/login") else "/"


def _problem_text(error: TxmqError | TimeoutError, *, is_change: bool = False) -> str:
    if isinstance(error, TxmqError):
        return sentence_of(error) + (in_doubt(error) if is_change else "")
    text = f"the brokers did not answer within {PAGE_S:g} s"
    return f"{text} (the change may have taken effect all the same)" if is_change else text


def _problem_page(error: TxmqError | TimeoutError) -> PageContent:
    return _problem(_status_of(error), _problem_text(error))


def _problem(status: int, text: str) -> PageContent:
    title = _TITLES.get(status, "This did not work")
    content = render("problem.html", title=title, status=status, problem_text=text)
    return content._replace(status=status)


def _status_of(error: TxmqError | TimeoutError) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
