"""What a page receives and returns. Page modules use no other part of the web server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from starlette.requests import Request

from txmq.client import Admin
from txmq.console.sessions import VisitorSession
from txmq.console.settings import ConsoleSettings
from txmq.console.sources import OutboxDatabases, ReportLinks
from txmq.errors import UsageError
from txmq.limits import REASON_CHARS_MAX
from txmq.ops.moments import moment_ms

__all__ = ["ChangeDone", "ChangeRoute", "PageContent", "PageRoute", "Routes", "Visit", "render"]
__all__ += ["check_bytes", "required"]

_TEXT_CHARS_MAX = 4_096


@dataclass(slots=True, kw_only=True)
class Visit:
    """One request of one visitor."""

    request: Request
    session: VisitorSession
    admin: Admin
    settings: ConsoleSettings
    now_ms: int
    """The time of the request, from which the page computes all ages."""
    outboxes: OutboxDatabases
    reports: ReportLinks
    form: Mapping[str, str] = field(default_factory=dict)
    """The form that the visitor sent. If it was refused, the page shows its fields again."""
    problem: str = ""
    """Why it was refused."""

    @property
    def person(self) -> str:
        """The name that brokers record."""
        return self.session.person

    @property
    def cluster(self) -> str | None:
        """The cluster that the console shows, if there are several."""
        return self.settings.cluster

    # The address

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

    def page_number(self) -> int:
        """The page of a list, from 1."""
        text = self.text("page")
        return max(1, int(text)) if text.isdecimal() and len(text) < 7 else 1

    def moment(self, text: str) -> int:
        """The moment that a text means, such as "2h" or "latest".

        Raises:
            UsageError: It is not a moment.
        """
        try:
            return moment_ms(text, self.now_ms)
        except ValueError as error:
            raise UsageError(f"{text!r} is not a moment; write {error}") from error

    def moment_in(self, name: str) -> int:
        """The moment in a field of the address; 0 if the field is empty.

        Raises:
            UsageError: It is not a moment.
        """
        text = self.text(name)
        return max(0, self.moment(text)) if text else 0

    # The form

    def typed(self, name: str) -> str:
        """What the visitor typed into a field of the form."""
        return self.form.get(name, "")

    def filled(self, name: str, what: str) -> str:
        """A field of the form that must not be empty; see :func:`required`.

        Raises:
            UsageError: It is missing or empty.
        """
        return required(self.form, name, what)

    def reason(self) -> str:
        """The reason in the form.

        Raises:
            UsageError: It is missing, or too long.
        """
        reason = self.filled("reason", "the reason")
        if len(reason) > REASON_CHARS_MAX:
            raise UsageError(f"the reason has at most {REASON_CHARS_MAX} characters")
        return reason

    def check_repeated(self, name: str, expected: str) -> None:
        """Check that the visitor has typed a name again.

        Raises:
            UsageError: It is missing or different.
        """
        if self.filled("repeated", f"the {name}") != expected.strip():
            raise UsageError(f"the {name} is not the same; type it as it is shown")


def required(form: Mapping[str, str], name: str, what: str) -> str:
    """A field of a form that must not be empty, without blanks around it.

    Raises:
        UsageError: It is missing or empty.
    """
    value = form.get(name, "").strip()
    if not value:
        raise UsageError(f"{what} is missing; fill it in")
    return value


def check_bytes(reason: str, bytes_max: int) -> None:
    """Check that a reason has no more bytes than a broker keeps next to the visitor's name.

    Raises:
        UsageError: It has more.
    """
    size = len(reason.encode())
    if size > bytes_max:
        raise UsageError(
            f"the reason has {size} bytes, and beside your name the broker keeps {bytes_max}; a "
            "Chinese character has 3, and one of ASCII 1: shorten the reason"
        )


class PageContent(NamedTuple):
    """A template and its values."""

    template: str
    values: Mapping[str, Any]
    status: int = 200
    to: str = ""
    """Another page of the console to redirect the visitor to."""


def render(template: str, **values: Any) -> PageContent:
    """A page made from a template; every page has a ``title``."""
    return PageContent(template, values)


class ChangeDone(NamedTuple):
    """A change that was made: where to go, and the sentence to show there."""

    to: str
    notice: str


PageFunction: TypeAlias = Callable[[Visit], Awaitable[PageContent]]
ChangeFunction: TypeAlias = Callable[[Visit], Awaitable[ChangeDone]]


class PageRoute(NamedTuple):
    """A page, by its path."""

    path: str
    show: PageFunction
    refresh_s: float | None = None
    """The pause between two renderings of an open page, if it is shorter than usual."""


class ChangeRoute(NamedTuple):
    """A change, by its path. If it is refused, its page shows the form again, with the reason."""

    path: str
    make: ChangeFunction
    page: PageFunction
    limit_s: float | None = None
    """How long the change may take, if longer than a page."""


class Routes:
    """The pages and changes of one module."""

    def __init__(self) -> None:
        self.pages: list[PageRoute] = []
        self.changes: list[ChangeRoute] = []

    def page(
        self, path: str, refresh_s: float | None = None
    ) -> Callable[[PageFunction], PageFunction]:
        """Serve a function as a page; see :class:`PageRoute`."""

        def add(show: PageFunction) -> PageFunction:
            self.pages.append(PageRoute(path, show, refresh_s))
            return show

        return add

    def change(
        self, path: str, page: PageFunction, limit_s: float | None = None
    ) -> Callable[[ChangeFunction], ChangeFunction]:
        """Serve a function as a change; see :class:`ChangeRoute`."""

        def add(make: ChangeFunction) -> ChangeFunction:
            self.changes.append(ChangeRoute(path, make, page, limit_s))
            return make

        return add
