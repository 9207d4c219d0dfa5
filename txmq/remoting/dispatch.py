"""Calls the handler of a request's code, and turns errors into answers.

An authorizer may look at each request first, and refuse it.

Every request gets exactly one answer; a one-way request gets none. A handler refuses by raising a
subclass of :class:`~txmq.errors.BrokerRefused`. Any other exception is answered with code 1 and its
text, as in a stock server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from txmq.errors import BrokerRefused, TxmqError, UnknownRefusal
from txmq.limits import REMARK_CHARS_MAX
from txmq.protocol import command as commands
from txmq.protocol.command import ONEWAY, Command, Frame
from txmq.remoting.connection import Connection
from txmq.text import RepeatedLines

__all__ = ["Authorize", "Dispatcher", "Handler", "Postponed", "RunHandler", "ServeRun"]

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Connection, Command], bytes | None]
"""Serves one request: returns the answer as a frame, or ``None`` if it comes later or never."""

ServeRun: TypeAlias = Callable[[Connection, list[Command]], int]
"""Serves requests from the beginning of a run, up to the first that it would refuse or that needs
separate handling, and returns how many it served.

It sends their answers later. If it raises, it has changed nothing.
"""


@dataclass(frozen=True, slots=True)
class RunHandler:
    """The handler of requests that often arrive in series.

    Attributes:
        serve: Serves any one request.
        serve_run: Serves several at once.
    """

    serve: Handler
    serve_run: ServeRun

    def __call__(self, connection: Connection, request: Command, /) -> bytes | None:
        """Serve one request."""
        return self.serve(connection, request)


Authorize: TypeAlias = Callable[[Connection, Command], None]
"""Looks at one request before its handler; refuses it by raising."""

_SYSTEM_ERROR: Final = 1
_NOT_SUPPORTED: Final = 3


class Postponed(Exception):
    """A handler cannot serve a request yet.

    Args:
        postpone: Receives the request and passes it to the dispatcher again later, as if it had
            just arrived.
    """

    def __init__(self, postpone: Callable[[Connection, Command], None]) -> None:
        super().__init__("the request has to wait")
        self.postpone = postpone


class Dispatcher:
    """The service of a server's connections: a table of handlers by request code.

    Args:
        handlers: The handlers by request code.
        authorize: Looks at each request first.
        on_error: Called with every error that is not a refusal, before it is answered.
    """

    __slots__ = ("_authorize", "_faults", "_handlers", "_serve_one", "_serve_runs", "on_error")

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        authorize: Authorize | None = None,
        on_error: Callable[[TxmqError], None] = lambda _error: None,
    ) -> None:
        self._handlers: dict[int, Handler] = {}
        self._serve_one: dict[int, Handler] = {}
        self._serve_runs: dict[int, ServeRun] = {}
        self._authorize = authorize
        self.on_error: Callable[[TxmqError], None] = on_error
        self._faults = RepeatedLines()
        self.serve(handlers)

    @property
    def decode(self) -> Callable[[Frame], Command]:
        """The decoder for connections: an authorizer needs all fields of a request."""
        return commands.decode if self._authorize is None else commands.decode_whole

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """The handlers by request code."""
        return self._handlers

    def serve(self, handlers: Mapping[int, Handler]) -> None:
        """Add handlers."""
        for code, handler in handlers.items():
            number = int(code)
            self._handlers[number] = self._serve_one[number] = handler
            self._serve_runs.pop(number, None)
            if isinstance(handler, RunHandler):
                self._serve_one[number] = handler.serve
                # An authorizer looks at each request, perhaps at all of its fields.
                if self._authorize is None:
                    self._serve_runs[number] = handler.serve_run

    @property
    def run_codes(self) -> Collection[int]:
        """The request codes that :meth:`serve_run` accepts."""
        return self._serve_runs

    def __call__(self, connection: Connection, request: Command, /) -> bytes | None:
        """The answer as a frame, or ``None`` if it comes later or the request is one-way."""
        handler = self._serve_one.get(request.code)
        if handler is None:
            # A stock server's text, with its leading blank, because clients may compare it.
            remark = f" request type {request.code} not supported"
            return _refuse(request, _NOT_SUPPORTED, remark)
        try:
            if self._authorize is not None:
                self._authorize(connection, request)
            found = handler(connection, request)
        except BrokerRefused as error:
            if isinstance(error, UnknownRefusal):
                # It comes from another server, or has a code that only tools know.
                return _refuse(request, error.response_code, error.remark)
            return _refuse(request, error.code, str(error))
        except Postponed as wait:
            wait.postpone(connection, request)
            found = None
        except TxmqError as error:
            self.on_error(error)
            # The text may quote the peer, which must not make every line look new.
            kind = f"{request.code} {connection.host} {type(error).__name__}"
            if (times := self._faults.note(kind)) is not None:
                who, text = connection.address, str(error)[:REMARK_CHARS_MAX]
                log.warning("request %d of %s: %s%s", request.code, who, text, times)
            return _refuse(request, _SYSTEM_ERROR, str(error))
        except Exception as error:
            log.exception("request %d of %s failed", request.code, connection.address)
            return _refuse(request, _SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        return None if found is None or request.flag & ONEWAY else found

    def serve_run(
        self, connection: Connection, requests: list[Command], answers: list[bytes], /
    ) -> None:
        """Serve requests of one code; see :class:`~txmq.remoting.connection.RunService`."""
        serve_run = self._serve_runs[requests[0].code]
        while requests:
            try:
                count = serve_run(connection, requests)
            except Exception:
                code, many = requests[0].code, len(requests)
                log.exception("%d requests %d of %s failed", many, code, connection.address)
                count = 0  # Serve them one by one, so that only those that fail are refused.
            if count == len(requests):
                return
            answer = self(connection, requests[count])
            if answer is not None:
                answers.append(answer)
            requests = requests[count + 1 :]


def _refuse(request: Command, code: int, remark: str) -> bytes | None:
    if request.flag & ONEWAY:
        return None
    return commands.answer(request, code, remark=remark[:REMARK_CHARS_MAX])
