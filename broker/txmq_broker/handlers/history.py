"""7731 of txmq: figures of the past."""

from __future__ import annotations

from typing import Final

from txmq.errors import InvalidParameter
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.history import HistoryPage, ShowHistory
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq_broker.core.history import BROKER_COLUMNS, COARSE_S
from txmq_broker.parts import Parts

__all__ = ["HistoryHandlers"]

ROWS_MAX: Final = 500


class HistoryHandlers:
    """Serves the history of the broker, of groups and of topics."""

    def __init__(self, parts: Parts) -> None:
        self._history = parts.history

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.SHOW_HISTORY: self.show}

    def show(self, connection: Connection, request: Command) -> bytes:
        """7731: figures of the past: the broker's own, the lag of a group, or a topic's rate."""
        del connection
        wanted = request.read(ShowHistory)
        count = max(1, min(wanted.count, ROWS_MAX))
        if wanted.group and wanted.topic:
            raise InvalidParameter("name a group or a topic, not both")
        if wanted.group or wanted.topic:
            source = self._history.lag if wanted.group else self._history.rates
            name = wanted.group or wanted.topic
            columns, times, rows = source.rows(name, wanted.from_ms, count)
            has_more, period_s = source.has_more(times), COARSE_S
        else:
            ring = self._history.broker.ring(wanted.period_s)
            columns, period_s = list(BROKER_COLUMNS), ring.period_s
            times, rows, has_more = ring.after(wanted.from_ms, count)
        body = HistoryPage(columns, period_s, times, [list(row) for row in rows], has_more)
        return answer(request, body=body.write())
