"""Pytest fixtures: a real broker for the test that asks for one.

Installed with txmq; nothing has to be imported. Needs the extra ``txmq[broker]`` only where the
fixture is used.
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
    """A broker of this test's own: ``.names`` is what a client needs, ``.address`` the broker
    itself.
    """
    from txmq_broker.testing import BrokerThread

    with BrokerThread() as running:
        yield running
