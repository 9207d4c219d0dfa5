"""What every request passes on its way in, and every answer on its way out.

The banks know no passwords: whoever reaches them may use them. What must not happen is that a page
of somebody else's makes a browser send a form here.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Door", "TooLarge", "read_form"]

FORM_BYTES_MAX: Final = 8 * 1024
FIELDS_MAX: Final = 16

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""They change nothing here."""

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


class Door:
    """A whole program behind it."""

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
            app = PlainTextResponse("another site's page cannot do anything here\n", 403)
        await app(scope, receive, out)


def is_cross_site(headers: Headers) -> bool:
    """Whether a browser says that another site's page has made this request.

    That is enough here, without a token in each form: a page cannot set either header, and every
    browser of today sends Origin with each POST, and Sec-Fetch-Site too where the address is safe
    or the machine's own. Who sends neither is a program, which acts for nobody but its user, and
    there is no cookie that it could carry without knowing.
    """
    if site := headers.get("sec-fetch-site"):
        # "same-site" is another port of this machine: another program, such as the other bank.
        return site not in {"same-origin", "none"}
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; nothing is read that would not be looked at.

    Raises:
        TooLarge: It is none of ours.
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
