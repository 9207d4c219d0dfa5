"""What can be set about transactional producers, beside what can be set about all producers."""

from __future__ import annotations

from dataclasses import dataclass

from txmq.client.settings import ProducerSettings, check_bounds

__all__ = ["ManagerSettings", "TransactionSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings(ProducerSettings):
    """How a transactional producer sends, ends and answers.

    ``retries`` counts further attempts to send a half message of which nothing is stored yet.

    Raises:
        ConfigError: A value cannot work.
    """

    end_timeout_s: float = 3.0
    """How long the broker may take to acknowledge a decision, over all attempts."""
    repeats_end: bool = False
    """Tell a decision again where the answer to it was lost. Brokers of ours take it once; a stock
    broker may show its message twice, and without this is left to ask by itself."""
    local_threads: int = 20
    """Plain local transactions of an asyncio program that run at once, in threads."""
    check_workers: int = 5
    """Checks that are worked on at once."""
    check_queue: int = 1024
    """Checks that wait for it, each with its message; one more is left to the broker, which asks
    again, and counts this one as spent. Brokers of ours ask a producer about no more at once."""
    check_timeout_s: float = 10.0
    """A check that takes longer is answered with "unknown" for now."""
    stop_s: float = 30.0
    """How long a stop waits for local transactions and checks that are under way."""

    def __post_init__(self) -> None:
        """See that the values can work."""
        # Not super(): with slots the class is made twice, and it would look for the first.
        ProducerSettings.__post_init__(self)
        check_bounds(self, {
            "end_timeout_s": 0.001, "local_threads": 1, "check_workers": 1, "check_queue": 0,
            "check_timeout_s": 0.001, "stop_s": 0.0,
        })  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings(TransactionSettings):
    """How a transaction manager runs local transactions, beside what its producer does.

    Raises:
        ConfigError: A value cannot work.
    """

    local_timeout_s: float = 60.0
    """How long a local transaction may take, with all attempts; then it is rolled back. As long as
    brokers wait by default before they ask about it. A plain function cannot be cut off in the
    middle: it is rolled back when it returns."""
    local_attempts: int = 5
    """How often it is run while serialization failures and deadlocks end it."""

    def __post_init__(self) -> None:
        """See that the values can work."""
        TransactionSettings.__post_init__(self)
        check_bounds(self, {"local_timeout_s": 0.001, "local_attempts": 1})
