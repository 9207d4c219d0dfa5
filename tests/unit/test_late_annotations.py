"""Annotations of functions that are decorated before their types exist: Python 3.14 and newer."""

import inspect
import sys

import pytest

from tests.unit.idempotent.memory_guard import MemoryGuard
from txmq.client.consume.handler_arguments import arguments_of
from txmq.errors import UsageError
from txmq.idempotent import idempotent
from txmq.transaction.listener import check_listener
from txmq.transaction.manager import TransactionManager

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="annotations are evaluated at once before Python 3.14"
)

DECORATED = """
@decorate
async def pay(session: AsyncSession, order: Order, note: str = "") -> Later: ...


class Order: ...
"""
LISTENING = """
class Listener:
    def execute_local_transaction(self, message: HalfMessage, arg: object) -> State: ...
    def check_local_transaction(self, message: ReceivedMessage) -> State: ...
"""


class Database:
    """A resource that is never opened."""

    is_blocking = False


def run(source, **names):
    """A module's names; it has no future import, unlike a program that inherits one."""
    scope = {"__name__": "late", **names}
    exec(compile(source, "late.py", "exec", dont_inherit=True), scope)  # noqa: S102
    return scope


def transactional():
    return TransactionManager("late", "127.0.0.1:9876", Database()).transactional(topic="T")


def guarded():
    return idempotent(MemoryGuard(is_blocking=False, has_session=True), key=lambda order: order.id)


@pytest.mark.parametrize("decorator", [transactional, guarded])
def test_a_decorated_function_keeps_its_signature_with_unresolvable_types(decorator):
    pay = run(DECORATED, decorate=decorator())["pay"]

    shown = inspect.signature(pay)

    assert list(shown.parameters) == ["order", "note"]
    assert shown.parameters["note"].annotation is str


def test_a_listener_may_be_annotated_with_type_checking_only_imports():
    check_listener(run(LISTENING)["Listener"]())


def test_a_guarded_handler_with_an_undefined_type_is_refused_by_name():
    pay = run(DECORATED.partition("class")[0], decorate=guarded())["pay"]

    with pytest.raises(UsageError, match="the annotation 'Order' of .* cannot be evaluated"):
        arguments_of(pay)
