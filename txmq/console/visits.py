"""What a page receives and returns. Page modules use nothing else of the web server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.requests import Request

from txmq.client import Admin
from txmq.console.outbox_databases import OutboxDatabases
from txmq.console.report_links import ReportLinks
from txmq.console.sessions import VisitorSession
from txmq.console.settings import ConsoleSettings
from txmq.errors import UsageError
from txmq.runtime.clock import Clock

__all__ = [
    "ChangeDone",
    "ChangeForm",
    "ChangeRoute",
    "PageContent",
    "PageRoute",
    "Visit",
]

_TEXT_CHARS_MAX = 4_096


@dataclass(slots=True, kw_only=True)
class Visit:
    """One request of one visitor."""

    request: Request
    session: VisitorSession
    admin: Admin
    settings: ConsoleSettings
    clock: Clock
    outboxes: OutboxDatabases
    reports: ReportLinks
    form: Mapping[str, str] = field(default_factory=dict)
    """The fields of a form that was refused, so that the visitor need not type them again."""
    problem: str = ""
    """Why it was refused."""

    def text(self, name: str) -> str:
        """A field of the address, without blanks around it; empty if it is missing."""
        return self.request.query_params.get(name, "").strip()

    def texts(self, name: str) -> list[str]:
        """All values of a field that the address repeats."""
        return self.request.query_params.getlist(name)

    def required(self, name: str) -> str:
        """A field of the address.

        Raises:
            UsageError: It is missing, or too long.
        """
        value = self.request.query_params.get(name, "")
        if not value:
            raise UsageError(f"the address of this page lacks {name!r}; go back to the list")
        if len(value) > _TEXT_CHARS_MAX:
            raise UsageError(f"{name!r} in the address is longer than {_TEXT_CHARS_MAX} characters")
        return value

    def typed(self, name: str) -> str:
        """What the visitor typed into a field of the form that was refused."""
        return self.form.get(name, "")

    def page_number(self) -> int:
        """The page of a list, from 1."""
        text = self.text("page")
        return max(1, int(text)) if text.isdecimal() and len(text) < 7 else 1


class PageContent(NamedTuple):
    """A template, and what it shows."""

    template: str
    values: Mapping[str, Any]
    status: int = 200
    to: str = ""
    """Another page of the console that the visitor sees instead."""


class ChangeDone(NamedTuple):
    """A change that was made: where to go, and the sentence to show there."""

    to: str
    notice: str


PageFunction = Callable[[Visit], Awaitable[PageContent]]


class ChangeForm(NamedTuple):
    """A form that a visitor sent."""

    visit: Visit
    fields: Mapping[str, str]


class PageRoute(NamedTuple):
    """A page, by its path."""

    path: str
    show: PageFunction
    refresh_s: float | None = None
    """The pause between two renderings of an open page, if it is shorter than usual."""


class ChangeRoute(NamedTuple):
    """A change, by its path. If it is refused, its page shows the form again, with the reason."""

    path: str
    make: Callable[[ChangeForm], Awaitable[ChangeDone]]
    page: PageFunction
    limit_s: float | None = None
    """How long it may take, if it is longer than a page."""
