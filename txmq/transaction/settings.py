"""Settings of transactional producers and managers, in addition to those of all producers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from txmq.client.settings import ProducerSettings
from txmq.settings.units import Duration

__all__ = ["ManagerSettings", "TransactionSettings"]


class TransactionSettings(ProducerSettings, kw_only=True):
    """How a transactional producer sends half messages, ends transactions and answers checks.

    ``retries`` counts further attempts to send a half message that is not stored yet.

    Raises:
        ConfigError: A value is out of its bounds.
    """

    end_timeout: Annotated[Duration, Meta(ge=0.001)] = Duration(3.0)
    """How long the broker may take to acknowledge a decision, over all attempts."""
    awaits_end: bool = True
    """Wait until the broker has confirmed the decision. If off, the caller receives the outcome
    while the END is on its way, which saves the wait for one write to the broker's disk, and
    ``is_acknowledged`` is false. If the END is lost, the broker asks this producer's group. A
    conflict is then logged and counted, not raised. A manager with an :class:`~txmq.XAResource`
    always waits."""
    repeats_end: bool = False
    """Repeat an END whose answer was lost. A txmq broker applies it once. A stock broker may
    deliver the message twice; leave this off, and it checks the transaction instead."""
    local_threads: Annotated[int, Meta(ge=1)] = 20
    """Threads for plain local transactions of an asyncio program."""
    check_workers: Annotated[int, Meta(ge=1)] = 5
    """Checks that run at once."""
    check_queue: Annotated[int, Meta(ge=0)] = 1024
    """Checks that may wait, each with its message. Any more are dropped: the broker asks again, but
    counts the dropped check. A txmq broker never has more than 1,024 checks open at a producer."""
    check_timeout: Annotated[Duration, Meta(ge=0.001)] = Duration(10.0)
    """A check that takes longer is answered with "unknown" for now."""
    stop_timeout: Duration = Duration(30.0)
    """How long a stop waits for local transactions and checks in progress."""


class ManagerSettings(TransactionSettings, kw_only=True):
    """How a transaction manager runs local transactions.

    Raises:
        ConfigError: A value is out of its bounds.
    """

    local_timeout: Annotated[Duration, Meta(ge=0.001)] = Duration(60.0)
    """How long a local transaction may take, over all attempts; then it is rolled back. The default
    is how long brokers wait before the first check. A plain function cannot be interrupted: it is
    rolled back when it returns."""
    local_attempts: Annotated[int, Meta(ge=1)] = 5
    """The maximum number of attempts when they end in serialization failures or deadlocks."""
