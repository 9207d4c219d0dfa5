"""A pytest fixture: a real broker for each test that requests it.

pytest finds it without an import. Only tests that use it need the extra ``txmq[broker]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from txmq_broker.testing import BrokerThread

__all__ = ["txmq_broker"]


@pytest.fixture
def txmq_broker() -> Iterator[BrokerThread]:
    """A separate broker for this test: pass ``.names`` to clients; ``.address`` is the broker's."""
    from txmq_broker.testing import BrokerThread

    with BrokerThread() as running:
        yield running
