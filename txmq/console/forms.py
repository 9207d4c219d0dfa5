"""The fields of a form that a browser sent, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from txmq.errors import LimitExceeded, UsageError
from txmq.limits import CONSOLE_FORM_BYTES_MAX

__all__ = ["read_form", "required"]

FIELDS_MAX: Final = 20
FORM_S: Final = 10.0
"""How long a browser may take to send a form."""
_TYPE: Final = "application/x-www-form-urlencoded"


async def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form by name; of two with one name, the last.

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


def required(form: Mapping[str, str], name: str, what: str) -> str:
    """A field that must not be empty, without blanks around it.

    Raises:
        UsageError: It is missing or empty.
    """
    value = form.get(name, "").strip()
    if not value:
        raise UsageError(f"{what} is missing; fill it in")
    return value
