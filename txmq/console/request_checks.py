"""What every request must satisfy before a page sees it, and the headers of every answer.

Another site may make a visitor's browser send requests here. The header Host shows a name that was
pointed at this machine, and the header Origin shows whose page sent a form.
"""

from __future__ import annotations

import logging
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from txmq.console.settings import ConsoleSettings
from txmq.text import printable

__all__ = ["HEADERS", "RequestChecks", "refusal_of"]

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
    """Refuses requests of other sites, and adds the headers of safety to every answer.

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
