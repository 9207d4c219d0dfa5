"""The outboxes that a console shows: an engine and threads of its own for each database."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from txmq.console.bounded_threads import ANSWER_S, BoundedThreads
from txmq.console.settings import OutboxAddress
from txmq.errors import DatabaseFailed, NotFound
from txmq.settings.extras import named_extra

if TYPE_CHECKING:
    from txmq.outbox.operator_access import OutboxOperator

__all__ = ["OutboxDatabases"]

T = TypeVar("T")

STATEMENT_S: Final = 5


class OutboxDatabases:
    """Reads and changes outboxes in threads, so that no page waits for the database of another.

    Args:
        addresses: The outboxes, each with its name.

    Raises:
        ConfigError: A URL is invalid, a driver or the extra ``sql`` is missing, or a name of a
            table is invalid.
    """

    def __init__(self, addresses: Iterable[OutboxAddress]) -> None:
        self._open: dict[str, _OutboxLink] = {}
        for address in addresses:
            self._open[address.name] = _OutboxLink(address)

    @property
    def names(self) -> list[str]:
        """The names of the outboxes, in the order of the options."""
        return list(self._open)

    def address_of(self, name: str) -> str:
        """The URL of a database without its password, and the table.

        Raises:
            NotFound: The console has no such outbox.
        """
        return self._link(name).shown

    async def ask(self, name: str, question: Callable[[OutboxOperator], T]) -> T:
        """The answer of an outbox.

        Raises:
            NotFound: The console has no such outbox, or the outbox has no such row.
            TableMissing: The database has no such table.
            DatabaseFailed: The database refused, or does not answer in time.
        """
        return await self._link(name).ask(question)

    def close(self) -> None:
        """Close the connections; a statement that still runs ends by its limit."""
        for link in self._open.values():
            link.close()

    def _link(self, name: str) -> _OutboxLink:
        link = self._open.get(name)
        if link is None:
            raise NotFound(f"this console has no outbox {name!r}; go back to the list")
        return link


class _OutboxLink:
    def __init__(self, address: OutboxAddress) -> None:
        with named_extra():
            from txmq.databases.engines import engine_of
            from txmq.outbox.operator_access import OutboxOperator
            from txmq.outbox.table import Outbox

        self._name = address.name
        self._engine = engine_of(address.url, limit_s=STATEMENT_S)
        outbox = Outbox(address.table, address.schema)
        self._operator = OutboxOperator(outbox, self._engine)
        self._threads = BoundedThreads("outbox")
        shown = self._engine.url.difference_update_query(self._engine.url.query)
        self.shown = f"{outbox.rows.fullname} in {shown.render_as_string(hide_password=True)}"

    async def ask(self, question: Callable[[OutboxOperator], T]) -> T:
        try:
            return await self._threads.run(lambda: question(self._operator))
        except TimeoutError as error:
            raise DatabaseFailed(
                f"the database of outbox {self._name} did not answer within {ANSWER_S:.0f} s"
            ) from error

    def close(self) -> None:
        self._threads.close()
        self._engine.dispose()
