"""What every request must satisfy before a page sees it, and the headers of every answer.

Another site can make a visitor's browser send requests here. The header Host reveals a foreign name
that points at this machine, and the header Origin reveals whose page sent a form.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from txmq.console.settings import ConsoleSettings
from txmq.errors import LimitExceeded, UsageError
from txmq.limits import CONSOLE_FORM_BYTES_MAX
from txmq.text import printable

__all__ = ["HEADERS", "RequestChecks", "read_form", "refusal_of"]

log = logging.getLogger(__name__)

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Not "no-referrer": browsers would then send "Origin: null" with forms.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
FIELDS_MAX: Final = 20
FORM_S: Final = 10.0
"""How long a browser may take to send a form."""
_TYPE: Final = "application/x-www-form-urlencoded"
_SAFE: Final = frozenset({"GET", "HEAD"})


def refusal_of(method: str, headers: Headers, settings: ConsoleSettings) -> tuple[int, str] | None:
    """Why a request is refused, as a status and a sentence; ``None`` if it may pass."""
    host = headers.get("host", "").lower()
    if host not in settings.hosts:
        expected = " or ".join(sorted(settings.hosts))
        return 421, f"this console is {expected}, not {host[:100]!r}; open it at that address\n"
    if method in _SAFE:
        is_of_other_site = headers.get("sec-fetch-site") in {"cross-site", "same-site"}
        if is_of_other_site and headers.get("sec-fetch-mode") != "navigate":
            return 403, "the console is not a part of another page\n"
        return None
    if method != "POST":
        return 405, "the console answers GET, HEAD and POST\n"
    origin = headers.get("origin", "")
    if origin not in settings.origins:
        return 403, (
            f"this form came from {origin[:100] or 'an unknown page'!r}, not from the console; "
            "nothing was changed\n"
        )
    return None


class RequestChecks:
    """Refuses requests of other sites, and adds the security headers to every answer.

    Args:
        app: The pages.
        settings: Has the addresses of the console.
    """

    def __init__(self, app: ASGIApp, settings: ConsoleSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; see ASGI."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        app: ASGIApp = self._app
        refused = refusal_of(scope["method"], Headers(scope=scope), self._settings)
        if refused is not None:
            status, text = refused
            log.info("refused a %s: %s", scope["method"], printable(text.strip()))
            app = PlainTextResponse(text, status)
        await app(scope, receive, send_with_headers)


async def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form by name; if a name repeats, its last value counts.

    Raises:
        LimitExceeded: The form is too large.
        UsageError: The body is not a form.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != _TYPE:
        raise UsageError(f"a form is sent as {_TYPE}")
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > CONSOLE_FORM_BYTES_MAX:
                    raise LimitExceeded("the size of a form", CONSOLE_FORM_BYTES_MAX, len(body))
    except (TimeoutError, ClientDisconnect) as error:
        raise UsageError("the form did not arrive as a whole, and nothing was changed") from error
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError as error:
        raise UsageError("the body is not a form in UTF-8 with a few fields") from error
    return dict(pairs)
