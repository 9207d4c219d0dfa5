"""Checks for every request, and headers for every answer.

The banks have no passwords: everyone who reaches them may use them. But a page of another site must
not make a browser send a form here.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["SecurityMiddleware", "TooLarge", "read_form"]

FORM_BYTES_MAX: Final = 8 * 1024
FIELDS_MAX: Final = 16

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing here."""

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class TooLarge(Exception):
    """A form has more bytes or fields than any of ours."""


class SecurityMiddleware:
    """Refuses forms of other sites, and adds security headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def out(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        app = self._app
        if scope["method"] not in SAFE and is_cross_site(Headers(scope=scope)):
            app = PlainTextResponse("a page of another site cannot send forms here\n", 403)
        await app(scope, receive, out)


def is_cross_site(headers: Headers) -> bool:
    """True if a browser reports that a page of another site made this request.

    This is enough here, without a token in each form. A page cannot set either header. Every
    current browser sends Origin with each POST, and also Sec-Fetch-Site if the address is secure or
    local. A client that sends neither is a program that acts for its user; there is no cookie that
    it could send unknowingly.
    """
    if site := headers.get("sec-fetch-site"):
        # "same-site" is another port of this machine: another program, such as the other bank.
        return site not in {"same-origin", "none"}
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; reading stops at the limits.

    Raises:
        TooLarge: The form has more bytes or fields than any of ours.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            raise TooLarge(f"a form has {FORM_BYTES_MAX} bytes at most")
    text = body.decode(errors="replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError as error:
        raise TooLarge(f"a form has {FIELDS_MAX} fields at most") from error
