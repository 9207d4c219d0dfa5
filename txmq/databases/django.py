"""The adapter for Django's connections, so that the ORM and the fence share a transaction.

Django keeps one connection for each thread and alias. A local transaction is an ``atomic`` block on
the calling thread's connection; a check uses the connection of a resource's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from django.db import Error, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError, atomic
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from txmq.databases.adapter import DatabaseAdapter, DatabaseSession, SessionStatus, StatementResult
from txmq.databases.canary import Canary
from txmq.databases.tables import Forms
from txmq.errors import ConfigError, UsageError

__all__ = ["django_adapter", "is_connection"]

log = logging.getLogger(__name__)

_IDLE: Final = 0
_IN_TRANSACTION: Final = 2

# Django's cursors take %(name)s, whatever the driver takes.
_DIALECTS: Final = MappingProxyType({"postgresql": psycopg_dialect, "sqlite": sqlite_dialect})


def django_adapter(source: Any) -> DatabaseAdapter[Any]:
    """The adapter of a Django connection.

    Raises:
        ConfigError: Its database does not support a fence.
    """
    if source.vendor not in _DIALECTS:
        raise ConfigError(
            f"no fence for {source.vendor} through Django, only for postgresql and sqlite; pass an "
            "SQLAlchemy engine"
        )
    return DjangoAdapter(source.alias, source.vendor)


def is_connection(source: object) -> bool:
    """Whether this is a Django connection."""
    return source is connection or isinstance(source, BaseDatabaseWrapper)


class DjangoAdapter:
    """The connections of one alias."""

    is_blocking = True
    can_prepare = False
    problems: tuple[Any, type[OSError]] = (Error, OSError)

    def __init__(self, alias: str, vendor: str) -> None:
        self.kind = vendor
        self._alias = alias
        self._forms = Forms(_DIALECTS[vendor](paramstyle="pyformat"))

    async def open(self, *, begins_at_once: bool = False) -> DatabaseSession[Any]:
        """See :meth:`DatabaseAdapter.open`; the session is the calling thread's connection.

        Raises:
            UsageError: This thread already has an open Django transaction.
        """
        del begins_at_once  # An atomic block begins at once.
        # Django closes connections at the end of a request, but a resource's thread serves no
        # requests. So a connection opened here is closed here.
        had = [wrapper.alias for wrapper in connections.all(initialized_only=True)]
        session = connections[self._alias]
        db = _DjangoSession(session, self._forms, is_ours=self._alias not in had)
        try:
            db.begin()
        except BaseException:
            db.give_back()
            raise
        return db

    async def execute_outside(self, statement: str) -> None:
        """See :meth:`DatabaseAdapter.execute_outside`; only adapters that can prepare need it."""
        raise UsageError(
            f"Django's connection cannot run a statement outside a transaction: {statement}"
        )


def _refuse_used(session: Any) -> None:
    # Releasing a savepoint is not a commit, so reporting COMMIT after it would be too early.
    if session.in_atomic_block:
        raise UsageError(
            f"this thread already has an open Django transaction on {session.alias!r}; with "
            "ATOMIC_REQUESTS decorate the view with transaction.non_atomic_requests, and in tests "
            "use a TransactionTestCase"
        )
    if not session.get_autocommit():
        raise UsageError(
            f"Django's autocommit is off for {session.alias!r}, so its blocks commit nothing"
        )


class _DjangoSession:
    def __init__(self, session: Any, forms: Forms, *, is_ours: bool) -> None:
        self.session = session
        self._forms = forms
        self._is_ours = is_ours
        self._is_open = False
        self._has_begun = False
        self._block: Any = atomic(using=session.alias)
        self._guard: Any = session.execute_wrapper(self._guarded)
        self._hooks: list[Callable[[], object]] = []
        self.canary: Canary | None = None

    def begin(self) -> None:
        session = self.session
        if session.errors_occurred:
            session.close_if_unusable_or_obsolete()  # Django does the same between two requests.
        _refuse_used(session)
        self._block.__enter__()
        self._guard.__enter__()
        self._is_open = True
        if session.vendor == "postgresql":
            self.canary = Canary(session.connection)

    def _guarded(self, execute: Callable[..., Any], *statement: Any) -> Any:
        """Detect an end that Django did not notice: later statements would autocommit."""
        if self._has_begun and self._has_ended():
            raise TransactionManagementError(
                "the transaction was ended inside; leave commit and rollback to txmq"
            )
        self._has_begun = True
        return execute(*statement)

    def _leave(self, kind: type[BaseException] | None) -> None:
        self._is_open = False
        self._guard.__exit__(None, None, None)
        self._block.__exit__(kind, None, None)

    async def execute(self, statement: Any, **values: object) -> StatementResult:
        with self.session.cursor() as cursor:
            return self._forms.run(cursor, statement, values)

    async def flush(self) -> None:
        """Django's ORM writes at once; there is nothing to flush."""

    def status(self) -> SessionStatus:
        session = self.session
        if session.closed_in_transaction or session.needs_rollback or session.savepoint_ids:
            return SessionStatus.ABORTED
        if self._has_ended():
            return SessionStatus.ENDED
        if session.vendor == "sqlite":
            return SessionStatus.OPEN
        if session.connection.info.transaction_status != _IN_TRANSACTION:
            return SessionStatus.ABORTED
        is_sure = self.canary is None or self.canary.is_sure()
        return SessionStatus.OPEN if is_sure else SessionStatus.UNSURE

    def _has_ended(self) -> bool:
        session = self.session
        if session.closed_in_transaction:
            return False  # The transaction was rolled back, and Django refuses further statements.
        if session.vendor == "sqlite":
            return not session.connection.in_transaction
        return bool(session.connection.info.transaction_status == _IDLE)

    async def commit(self, *, is_last: bool = False) -> None:
        del is_last
        session = self.session
        # Django would call the on_commit functions before it leaves the block, and their errors
        # would look like errors of the commit.
        hooks = [entry[1] for entry in session.run_on_commit]
        session.run_on_commit = []
        try:
            self._leave(None)
        except BaseException:
            with suppress(Error):
                session.close()
            raise
        self._hooks = hooks

    async def _refuse(self, _statement: str = "") -> Any:
        raise UsageError("a Django connection cannot prepare transactions")

    prepare = begin_again = execute_outside = _refuse

    async def close(self) -> None:
        session = self.session
        try:
            if self._is_open:
                if session.savepoint_ids:
                    # The application left a block open: only closing the connection ends all of
                    # them.
                    session.close()
                    session.savepoint_ids.clear()
                self._leave(UsageError)
            self._call_hooks()
        finally:
            self.give_back()

    def give_back(self) -> None:
        if self._is_ours:
            self.session.close()
            del connections[self.session.alias]

    def _call_hooks(self) -> None:
        for function in self._hooks:
            try:
                function()
            except Exception:
                log.exception(
                    "on_commit function %r failed; the transaction is committed", function
                )
