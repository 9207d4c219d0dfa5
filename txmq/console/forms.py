"""The forms of pages: fields within bounds, and previews of what a change will do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

from markupsafe import Markup
from starlette.requests import ClientDisconnect, Request

from txmq.console.visits import PageContent
from txmq.errors import LimitExceeded, UsageError
from txmq.limits import CONSOLE_FORM_BYTES_MAX, REASON_CHARS_MAX

__all__ = ["ChangePreview", "check_bytes", "check_repeated", "read_form", "reason_in", "required"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePreview:
    """The preview of one change."""

    title: str
    eyebrow: str
    """What the change is about."""
    sentences: tuple[str, ...]
    """What will happen."""
    action: Markup
    """The address of the form, with the names of what it changes."""
    button: str
    back: Markup | str
    """The page to return to without a change."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """What the change concerns, by label."""
    hidden: Mapping[str, str] = field(default_factory=dict)
    """Fields that the form repeats from the preview."""
    ticks: Mapping[str, str] = field(default_factory=dict)
    """Fields to tick, by name, with their labels."""
    wants_reason: bool = False
    reason_bytes: int = 0
    """The bytes that the reason may have, if a broker limits them."""
    repeated: str = ""
    """What a visitor types again; empty if nothing."""
    repeated_name: str = ""
    """What that is, such as ``name of the topic``."""
    refusal: str = ""
    """Why the change cannot be made; the page then has no form."""
    is_bad: bool = False
    """Whether the change destroys something."""

    def content(self) -> PageContent:
        """The page that shows it."""
        values: dict[str, Any] = {
            "title": self.title,
            "preview": self,
            "reason_max": REASON_CHARS_MAX,
        }
        return PageContent("preview.html", values)


def reason_in(fields: Mapping[str, str]) -> str:
    """The reason in a form.

    Raises:
        UsageError: It is missing, or too long.
    """
    reason = required(fields, "reason", "the reason")
    if len(reason) > REASON_CHARS_MAX:
        raise UsageError(f"the reason has at most {REASON_CHARS_MAX} characters")
    return reason


def check_bytes(reason: str, bytes_max: int) -> None:
    """Pass if a reason has no more bytes than a broker keeps beside the visitor's name.

    Raises:
        UsageError: It has more.
    """
    size = len(reason.encode())
    if size > bytes_max:
        raise UsageError(
            f"the reason has {size} bytes, and beside your name the broker keeps {bytes_max}; a "
            "Chinese character has 3, and one of ASCII 1: shorten the reason"
        )


def check_repeated(fields: Mapping[str, str], name: str, expected: str) -> None:
    """Pass if a visitor has typed a name again.

    Raises:
        UsageError: It is missing or different.
    """
    if required(fields, "repeated", f"the {name}") != expected.strip():
        raise UsageError(f"the {name} is not the same; type it as it is shown")
