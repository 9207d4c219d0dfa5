"""What only Django does: blocks in blocks, a connection for each thread, hooks after commits."""

import asyncio
import contextlib
import functools
import threading

import pytest

from tests.integration.resources.resource_stage import (
    COMMIT,
    KINDS,
    ROLLBACK,
    UNKNOWN,
    django_source,
    insert,
    now_ms,
)
from txmq import SQLResource
from txmq.errors import ConfigError, OutcomeUnknown, TransactionBroken, UsageError

ON_DJANGO = [kind for kind in KINDS if kind.endswith("django")]
ON_POSTGRES = pytest.mark.parametrize("bank", ["postgres-django"], indirect=True)


class Refused(Exception):
    """What an application raises."""


class Service:
    """A thread with Django's connection, like a worker that serves requests."""

    def __init__(self, bank, connection, resource):
        self.bank = bank
        self.connection = connection
        self.resource = resource
        self.local = None

    def order(self, work, xid="x-1"):
        self.local = self.resource.local(xid, "icbc", now_ms())
        try:
            with self.local as session:
                assert session is self.connection
                self.say(insert(xid))
                work()
        finally:
            assert self.connection.execute_wrappers == []

    def say(self, statement):
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def check(self, xid="x-1"):
        return asyncio.run(self.resource.check(xid, "icbc", now_ms()))


@contextlib.contextmanager
def opened(bank, **settings):
    with (
        django_source(bank.url, settings) as connection,
        contextlib.closing(SQLResource(connection)) as resource,
    ):
        asyncio.run(resource.verify())
        yield Service(bank, connection, resource)
        connection.close()


@pytest.fixture(params=ON_DJANGO)
def bank(request, bank_of_kind):
    return bank_of_kind(request.param)


@pytest.fixture
def service(bank):
    with opened(bank) as found:
        yield found


def test_an_inner_atomic_block_is_a_savepoint(bank, service):
    from django.db import transaction

    def work():
        with contextlib.suppress(Refused), transaction.atomic(using="bank"):
            service.say(insert("undone"))
            raise Refused
        with transaction.atomic(using="bank"):
            service.say(insert("done"))

    service.order(work)

    assert service.local.state is COMMIT
    assert bank.orders == {"x-1", "done"}


def test_a_local_transaction_inside_an_atomic_block_is_refused(bank, service):
    """As with ATOMIC_REQUESTS or in a TestCase: the commit would only release a savepoint."""
    from django.db import transaction

    with transaction.atomic(using="bank"), pytest.raises(UsageError, match="ATOMIC_REQUESTS"):
        service.order(lambda: None)
    assert service.local.state is ROLLBACK
    with contextlib.suppress(UsageError):
        service.connection.set_autocommit(False)
        service.order(lambda: None)
    service.connection.set_autocommit(True)
    assert bank.orders == set()
    service.order(lambda: None)
    assert bank.orders == {"x-1"}


def test_on_commit_hooks_run_after_the_commit_and_cannot_undo_it(bank, service, caplog):
    from django.db import transaction

    seen = []

    def fail():
        seen.append(bank.orders)
        service.say("SELECT 1 FROM nowhere")

    def work():
        transaction.on_commit(fail, using="bank")
        transaction.on_commit(lambda: seen.append("next"), using="bank")

    service.order(work)

    assert service.local.state is COMMIT
    assert seen == [{"x-1"}, "next"]
    assert "the transaction is committed" in caplog.text


def test_on_commit_hooks_of_a_rolled_back_transaction_are_not_called(service):
    from django.db import transaction

    seen = []

    def work():
        transaction.on_commit(lambda: seen.append("never"), using="bank")
        raise Refused

    with pytest.raises(Refused):
        service.order(work)
    service.order(lambda: None, "x-2")
    assert seen == []


def test_a_transaction_marked_for_rollback_by_django_is_not_committed(bank, service):
    from django.db import transaction

    with pytest.raises(TransactionBroken):
        service.order(lambda: transaction.set_rollback(True, using="bank"))
    assert service.local.state is ROLLBACK
    with pytest.raises(TransactionBroken):
        service.order(service.connection.close)
    assert service.local.state is ROLLBACK
    with pytest.raises(TransactionBroken):
        service.order(transaction.atomic(using="bank").__enter__)
    assert service.local.state is ROLLBACK

    service.order(lambda: None)
    assert bank.orders == {"x-1"}


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_nothing_is_written_after_a_raw_commit_or_rollback(bank, service, end):
    """Such a write would be in a transaction without a fence, or in none."""
    from django.db import Error

    def work():
        service.say(end)
        with contextlib.suppress(Error):
            service.say(insert("late"))

    with pytest.raises(OutcomeUnknown):
        service.order(work)
    assert service.local.state is UNKNOWN
    is_committed = end == "COMMIT"
    assert service.check() is (COMMIT if is_committed else ROLLBACK)
    assert bank.orders == ({"x-1"} if is_committed else set())


def test_an_open_connection_is_kept_and_one_of_another_thread_is_closed(bank):
    """Threads that serve no requests, such as those of checks, never get a request's end."""
    from django.db import connections

    with opened(bank, CONN_MAX_AGE=None) as service:
        service.order(lambda: None)
        kept = service.connection.connection
        service.order(lambda: None, "x-2")
        assert service.connection.connection is kept

        def elsewhere():
            with service.resource.local("x-3", "icbc", now_ms()) as session:
                assert session.connection is not kept
            assert connections.all(initialized_only=True) == []

        apart = threading.Thread(target=elsewhere)
        apart.start()
        apart.join()
        assert {service.check(f"x-{number}") for number in (1, 2, 3)} == {COMMIT}
        assert service.check("x-4") is ROLLBACK


@ON_POSTGRES  # SQLite has one that writes at a time.
def test_threads_have_transactions_of_their_own(bank, service):
    from django.db import connections

    def elsewhere():
        with (
            service.resource.local("x-2", "icbc", now_ms()),
            connections["bank"].cursor() as cursor,
        ):
            cursor.execute(insert("x-2"))

    def work():
        apart = threading.Thread(target=elsewhere)
        apart.start()
        apart.join()
        raise Refused

    with pytest.raises(Refused):
        service.order(work)

    assert bank.orders == {"x-2"}


@ON_POSTGRES
def test_the_next_transaction_reconnects_after_a_killed_connection(bank):
    """With CONN_MAX_AGE a connection outlives its server."""
    with opened(bank, CONN_MAX_AGE=None) as service:
        from django.db import Error

        service.say("SELECT 1")
        kill = "SELECT pg_terminate_backend(:pid)"
        bank.order(kill, pid=service.connection.connection.info.backend_pid)
        with pytest.raises(Error):
            service.order(lambda: None)
        assert service.local.state is ROLLBACK
        service.order(lambda: None)
        assert service.local.state is COMMIT


def test_unsupported_django_databases_are_refused(bank):
    class Oracle:
        vendor, alias = "oracle", "default"

    with django_source(bank.url, {}) as connection:
        connection.vendor = "oracle"
        with pytest.raises(ConfigError, match="through Django"):
            SQLResource(connection)
    with pytest.raises(ConfigError, match="is not a source of sessions"):
        SQLResource(Oracle())


@functools.cache
def model():
    from django.db import models

    class Order(models.Model):
        xid = models.CharField(max_length=64, primary_key=True)
        amount = models.IntegerField()

        class Meta:
            app_label = "bank"
            db_table = "orders"
            managed = False

        def __str__(self):
            return self.xid

    return Order


def test_orm_writes_commit_and_roll_back_with_the_fence(bank, service):
    orders = model().objects.using("bank")

    def work():
        orders.create(xid="by-orm", amount=7)
        raise Refused

    with pytest.raises(Refused):
        service.order(work)
    assert bank.orders == set()
    service.order(lambda: orders.create(xid="by-orm", amount=7))
    assert bank.orders == {"x-1", "by-orm"}
    assert orders.get(xid="by-orm").amount == 7
