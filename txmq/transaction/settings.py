"""Settings of transactional producers and managers, beside those of all producers."""

from __future__ import annotations

from dataclasses import dataclass

from txmq.client.settings import ProducerSettings, check_bounds

__all__ = ["ManagerSettings", "TransactionSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings(ProducerSettings):
    """How a transactional producer sends, ends and answers.

    ``retries`` counts further attempts to send a half message that is not stored yet.

    Raises:
        ConfigError: A value is out of its bounds.
    """

    end_timeout_s: float = 3.0
    """How long the broker may take to acknowledge a decision, over all attempts."""
    repeats_end: bool = False
    """Repeat an END whose answer was lost. A txmq broker applies it once. A stock broker may
    deliver the message twice; leave this off, and it checks the transaction instead."""
    local_threads: int = 20
    """Threads for plain local transactions of an asyncio program."""
    check_workers: int = 5
    """Checks that run at once."""
    check_queue: int = 1024
    """Checks that may wait, each with its message. One more is dropped: the broker asks again, and
    counts this one. A txmq broker asks a producer about no more at once."""
    check_timeout_s: float = 10.0
    """A check that takes longer is answered with "unknown" for now."""
    stop_s: float = 30.0
    """How long a stop waits for local transactions and checks in progress."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        # Not super(): with slots the class is made twice, and it would look for the first.
        ProducerSettings.__post_init__(self)
        check_bounds(self, {
            "end_timeout_s": 0.001, "local_threads": 1, "check_workers": 1, "check_queue": 0,
            "check_timeout_s": 0.001, "stop_s": 0.0,
        })  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings(TransactionSettings):
    """How a transaction manager runs local transactions, beside the settings of its producer.

    Raises:
        ConfigError: A value is out of its bounds.
    """

    local_timeout_s: float = 60.0
    """How long a local transaction may take, with all attempts; then it is rolled back. The default
    is the time that brokers wait before they check it. A plain function cannot be interrupted: it
    is rolled back when it returns."""
    local_attempts: int = 5
    """How often a local transaction runs that ends in serialization failures or deadlocks."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        TransactionSettings.__post_init__(self)
        check_bounds(self, {"local_timeout_s": 0.001, "local_attempts": 1})
