"""What a page receives and returns, whom it lets in, and the broker that it is about.

Page modules use nothing else of the web server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.requests import Request

from txmq.client import Admin
from txmq.client.values import BrokerInfo
from txmq.console.sessions import VisitorSession
from txmq.console.settings import ConsoleSettings
from txmq.console.sources import OutboxDatabases, ReportLinks
from txmq.errors import ConnectFailed, NoPermission, RequestNotSupported, UsageError
from txmq.runtime.clock import Clock

__all__ = [
    "BrokerChoice",
    "ChangeDone",
    "ChangeForm",
    "ChangeRoute",
    "PageContent",
    "PageRoute",
    "Visit",
    "choose_broker",
    "known_brokers",
    "require_operator",
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


async def require_operator(visit: Visit) -> None:
    """Pass if the visitor's account is an administrator of all brokers of the cluster.

    The console reads outboxes and reports with its own rights, so it asks the brokers who the
    visitor is. The check is a request that only administrators may send. Visitors without an
    account pass: they use this machine, and no broker has accounts.

    Raises:
        NoPermission: The account is no administrator, or the brokers cannot say so.
        TransportError: A broker does not answer.
    """
    if visit.session.credentials is None:
        return
    try:
        await visit.admin.transactions(limit=1, cluster=visit.settings.cluster)
    except NoPermission as error:
        raise NoPermission(
            f"outboxes and reports are for administrators: {str(error).strip()}"
        ) from error
    except RequestNotSupported as error:
        raise NoPermission(
            "these brokers cannot say whether an account is an administrator, so outboxes and "
            "reports are shown only by a console on loopback without accounts"
        ) from error


class BrokerChoice(NamedTuple):
    """One broker, and all brokers of the cluster."""

    name: str
    names: list[str]


async def known_brokers(visit: Visit) -> list[BrokerInfo]:
    """The brokers of the console's cluster.

    Raises:
        TransportError: No name server answers.
    """
    return [
        broker
        for broker in await visit.admin.cluster()
        if visit.settings.cluster in {None, broker.cluster}
    ]


async def choose_broker(visit: Visit) -> BrokerChoice:
    """The broker in the address of a page, or the first one.

    Raises:
        UsageError: The cluster has no such broker.
        ConnectFailed: The name server knows no broker yet.
        TransportError: No name server answers.
    """
    names = [broker.name for broker in await known_brokers(visit)]
    wanted = visit.text("broker")
    if not names:
        raise ConnectFailed("the name server knows no broker yet; start one with: txmq serve")
    if wanted and wanted not in names:
        raise UsageError(f"{wanted!r} is not a broker of this cluster; choose {' or '.join(names)}")
    return BrokerChoice(wanted or names[0], names)
