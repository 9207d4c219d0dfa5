"""From a request's code to whoever serves it, and from whatever goes wrong to an answer.

A peer that waits is never left without an answer, and a peer that does not wait never gets one. A
handler says "no" by raising a leaf of :class:`~txmq.errors.BrokerRefused`; anything else it lets
through is answered with code 1 and its text, as a stock server answers for a processor that threw.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from txmq.errors import BrokerRefused, TxmqError, UnknownRefusal
from txmq.protocol import command as commands
from txmq.protocol.command import ONEWAY, Command
from txmq.remoting.connection import Connection

__all__ = ["Dispatcher", "Handler"]

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Connection, Command], bytes | None]
"""Serves one request: the answer as a frame, or nothing where it comes later or never."""

_SYSTEM_ERROR: Final = 1
_NOT_SUPPORTED: Final = 3


class Dispatcher:
    """A table of handlers as the one service of a server's connections."""

    __slots__ = ("_handlers",)

    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        self._handlers: dict[int, Handler] = {}
        self.serve(handlers)

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """What is served, by code."""
        return self._handlers

    def serve(self, handlers: Mapping[int, Handler]) -> None:
        """Serve these requests from now on, beside those that are served already."""
        self._handlers |= {int(code): handler for code, handler in handlers.items()}

    def __call__(self, connection: Connection, request: Command, /) -> bytes | None:
        """The answer as a frame, or nothing where it comes later or nobody waits for it."""
        handler = self._handlers.get(request.code)
        if handler is None:
            # The leading blank is a stock server's, kept for whoever compares the text.
            remark = f" request type {request.code} not supported"
            return _refuse(request, _NOT_SUPPORTED, remark)
        try:
            found = handler(connection, request)
        except BrokerRefused as error:
            return _refuse(request, _code_of(error), str(error))
        except TxmqError as error:
            log.warning("request %d of %s: %s", request.code, connection.address, error)
            return _refuse(request, _SYSTEM_ERROR, str(error))
        except Exception as error:
            log.exception("request %d of %s failed", request.code, connection.address)
            return _refuse(request, _SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        return None if request.flag & ONEWAY else found


def _refuse(request: Command, code: int, remark: str) -> bytes | None:
    return None if request.flag & ONEWAY else commands.answer(request, code, remark=remark)


def _code_of(error: BrokerRefused) -> int:
    # A refusal passed on from another server may have a code that no leaf stands for.
    return error.response_code if isinstance(error, UnknownRefusal) else error.code
