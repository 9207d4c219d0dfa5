"""Reads the samples of all metrics from the parts of a broker or a follower.

Only the durations are measured just for metrics. The broker keeps all other figures for its own
use, and a scrape reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

import txmq
from txmq import limits
from txmq.errors import CorruptRecord
from txmq.limits import METRIC_SERIES_MAX
from txmq.metrics.table import Sample
from txmq.protocol.topics import DLQ
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings
from txmq_broker.core.progress import ConsumeProgress
from txmq_broker.core.statistics import Statistics
from txmq_broker.core.topics import Topic
from txmq_broker.monitoring.subject import MonitoredProcess, objection, role_of
from txmq_broker.replication.follower import Follower
from txmq_broker.services.log_verifier import LogVerifier
from txmq_broker.store.queue_store import ConsumeQueue

__all__ = ["LIMITS", "ProcessSamples"]

_ROLES: Final = ("leader", "follower", "waiting")

LIMITS: Final[Mapping[str, int]] = {
    "topics": limits.TOPICS_MAX,
    "groups": limits.GROUPS_MAX,
    "offsets": limits.OFFSETS_MAX,
    "offsets_of_unknown_groups": limits.UNKNOWN_OFFSETS_MAX,
    "members": limits.MEMBERS_MAX,
    "subscriptions": limits.SUBSCRIPTIONS_MAX,
    "locked_queues": limits.LOCKS_MAX,
    "pulls_waiting": limits.HELD_PULLS_MAX,
    "filter_characters_waiting": limits.HELD_FILTERS_CHARS_MAX,
    "filter_characters_compiled": limits.FILTERS_CHARS_MAX,
    "requests_relayed": limits.RELAYED_MAX,
    "checks_open": limits.CHECKS_MAX,
    "requests_waiting_for_topics": limits.POSTPONED_MAX,
    "bytes_waiting_for_topics": limits.POSTPONED_BYTES_MAX,
    "bytes_waiting_for_sync": limits.UNSYNCED_BYTES_MAX,
    "unfinished_bytes": limits.UNFINISHED_BYTES_MAX,
    "unread_bytes": limits.OWED_BYTES_MAX,
}
"""The limits, by the figure that they bound; two more limits are settings."""

_BETWEEN_PAUSES: Final = 512
"""The number of topics between two possible pauses; they take less than a millisecond."""

_DELIVERED: Final = {
    "messages_delivered_total": "BROKER_GET_NUMS",
    "delivered_bytes_total": "BROKER_GET_SIZE",
    "group_messages_delivered_total": "GROUP_GET_NUMS",
    "group_delivered_bytes_total": "GROUP_GET_SIZE",
}
"""The counters of delivered messages, by metric; the key of a group is ``topic@group``."""

_REFUSED: Final = "_refused"
_OTHER_REFUSALS: Final = (
    "pulls_not_held",
    "broken_frames_cut",
    "unfinished_frames_cut",
    "unread_answers_cut",
)


class ProcessSamples:
    """The samples of one process.

    Args:
        settings: Its settings.
        process: The process.
    """

    def __init__(self, settings: BrokerSettings, process: MonitoredProcess) -> None:
        self._settings = settings
        self._process = process
        self._oldest = -1, 0
        """The position of the oldest open half message that is not parked, and its store time."""
        self._unread: dict[tuple[str, int, int], int] = {}
        """When the first unread messages of groups were stored, so that each is read only once."""

    def read(self) -> Iterator[Sample | None]:
        """All samples. The caller may pause after each; ``None`` only offers a pause."""
        process, settings = self._process, self._settings
        member = settings.replication.member
        yield Sample("info", 1, (txmq.__version__, settings.cluster, settings.name, member))
        role = role_of(process)
        for name in _ROLES:
            yield Sample("role", name == role, (name,))
        yield Sample("ready", not objection(process))
        yield Sample("leaderships_total", process.leaderships)
        if process.broker is not None:
            if process.broker.parts.is_open():
                yield from self._of_broker(process.broker)
        elif process.follower is not None:
            yield from _of_follower(process.follower)

    def _of_broker(self, broker: Broker) -> Iterator[Sample | None]:
        figures = broker.parts.figures()
        yield Sample("start_time_seconds", broker.started_ms / 1000)
        yield from _messages(broker)
        yield from _delivered(broker.statistics)
        yield from self._groups(broker)
        yield from _durations(broker)
        yield from self._transactions(broker)
        yield from _log_and_disk(broker)
        yield from _limits(broker, figures)
        yield from _replication(broker, figures)

    def _transactions(self, broker: Broker) -> Iterator[Sample]:
        pending, tally = broker.store.halves.pending, broker.transactions.tally
        yield Sample("transactions_open", len(pending))
        yield Sample("transactions_parked", pending.parked)
        yield Sample("oldest_transaction_age_seconds", self._oldest_age(broker))
        yield Sample("transactions_prepared_total", tally.prepared)
        for outcome in ("committed", "rolled_back"):
            yield Sample("transactions_decided_total", getattr(tally, outcome), (outcome,))
        yield Sample("transactions_decided_by_operators_total", tally.forced)
        yield Sample("transaction_parkings_total", tally.parked)
        yield Sample("transactions_repeated_total", tally.repeated)
        yield Sample("transaction_conflicts_total", tally.conflicts)
        yield Sample("transaction_checks_sent_total", tally.checks_sent)
        for reason in ("unknown", "unanswered", "lost"):
            count = getattr(tally, f"checks_{reason}")
            yield Sample("transaction_checks_undecided_total", count, (reason,))

    def _groups(self, broker: Broker) -> Iterator[Sample | None]:
        progress = ConsumeProgress(
            broker.settings.name, broker.topics, broker.offsets, broker.clients, broker.store
        )
        known, self._unread = self._unread, {}
        now_ms = broker.clock.wall_ms()
        pairs = broker.offsets.pairs()
        yield Sample("series_left_out", max(0, len(pairs) - METRIC_SERIES_MAX), ("groups",))
        shown = list(islice(pairs, METRIC_SERIES_MAX))
        for group, name in shown:
            found = broker.topics.by_name.get(name)
            if found is None or broker.clients.lacks_subscription(group, name):
                continue
            lag = progress.lag(group, found)
            yield Sample("group_lag_messages", lag, (group, name))
            oldest = now_ms
            for queue, offset in progress.first_unread(group, found) if lag > 0 else ():
                place = name, queue.number, offset
                stored_ms = known.get(place) or _stored_ms(broker, queue, offset)
                if stored_ms is not None:
                    self._unread[place] = stored_ms
                    oldest = min(oldest, stored_ms)
            age_s = (now_ms - oldest) / 1000
            yield Sample("group_oldest_unread_age_seconds", age_s, (group, name))
        retries = broker.store.delays.waiting_retries()
        if retries is not None:
            counts = {group: 0 for group, _ in shown} | dict(retries.totals())
            for group, count in islice(counts.items(), METRIC_SERIES_MAX):
                yield Sample("group_retries_waiting", count, (group,))

    def _oldest_age(self, broker: Broker) -> float:
        halves = broker.store.halves
        half = halves.pending.oldest()
        if half is None:
            return 0.0
        if half.position != self._oldest[0]:
            stored_ms = _stored_ms(broker, halves.half_queue, half.offset)
            self._oldest = half.position, stored_ms or broker.clock.wall_ms()
        return max(0, broker.clock.wall_ms() - self._oldest[1]) / 1000


def _stored_ms(broker: Broker, queue: ConsumeQueue, offset: int) -> int | None:
    try:
        return broker.store.stored_ms(queue, offset)
    except (CorruptRecord, OSError):
        return None


def _messages(broker: Broker) -> Iterator[Sample | None]:
    topics = broker.topics
    # Read together, so that a topic deleted during the pauses counts exactly once.
    puts, size, known = topics.puts_forgotten, topics.bytes_forgotten, list(topics)
    named: list[Topic] = []
    dead: list[Topic] = []
    for number, topic in enumerate(known):
        if not number % _BETWEEN_PAUSES:
            yield None
        puts += topic.put_count
        size += topic.put_bytes
        if topic.name.startswith(DLQ):
            dead.append(topic)
        elif topic.name[0] != "%" and not topics.is_system(topic.name):
            named.append(topic)
    yield Sample("messages_received_total", puts)
    yield Sample("received_bytes_total", size)
    yield Sample("messages_delayed", len(broker.store.delays))
    yield Sample("series_left_out", max(0, len(named) - METRIC_SERIES_MAX), ("topics",))
    yield Sample("series_left_out", max(0, len(dead) - METRIC_SERIES_MAX), ("dead_letters",))
    for topic in named[:METRIC_SERIES_MAX]:
        labels = (topic.name,)
        yield Sample("topic_messages_received_total", topic.put_count, labels)
        yield Sample("topic_received_bytes_total", topic.put_bytes, labels)
        yield Sample("topic_messages_stored", _stored(topic), labels)
    for topic in dead[:METRIC_SERIES_MAX]:
        yield Sample("dead_letters", _stored(topic), (topic.name.removeprefix(DLQ),))


def _stored(topic: Topic) -> int:
    return sum([queue.max_offset - queue.min_offset for queue in topic.queues])


def _delivered(statistics: Statistics) -> Iterator[Sample]:
    for metric, counter in _DELIVERED.items():
        for key, meter in list(islice(statistics.named(counter).items(), METRIC_SERIES_MAX)):
            topic, _, group = key.partition("@")
            labels = (group, topic) if group else ()
            yield Sample(metric, meter.total, labels)


def _durations(broker: Broker) -> Iterator[Sample]:
    flusher = broker.parts.flusher
    for metric, histogram in (
        ("send_duration_seconds", flusher.send_times),
        ("sync_duration_seconds", flusher.sync_times),
        ("pull_duration_seconds", broker.statistics.pull_times),
    ):
        yield Sample(metric, histogram)


def _log_and_disk(broker: Broker) -> Iterator[Sample]:
    log = broker.store.log
    yield Sample("log_bytes", log.end - log.start)
    yield Sample("log_end_position", log.end)
    earliest_ms = None
    with suppress(CorruptRecord):
        earliest_ms = broker.store.earliest_ms()
    if earliest_ms is not None:
        yield Sample("oldest_message_timestamp_seconds", earliest_ms / 1000)
    yield Sample("damaged_reads_total", broker.store.damage.reads)
    yield from _verification(broker.parts.verifier)
    yield Sample("unsynced_bytes", log.end - log.durable)
    try:
        space = broker.disk.space()
    except OSError:
        return
    yield Sample("disk_bytes", space.total)
    yield Sample("disk_used_bytes", space.used)
    yield Sample("disk_refusal_ratio", broker.settings.retention.refuse_above)


def _verification(verifier: LogVerifier) -> Iterator[Sample]:
    yield Sample("damaged_parts", len(verifier.damaged))
    yield Sample("verified_bytes_total", verifier.verified_bytes)
    yield Sample("verification_rounds_total", verifier.rounds)
    if verifier.last_round_ms:
        yield Sample("last_verification_timestamp_seconds", verifier.last_round_ms / 1000)


def _limits(broker: Broker, figures: Mapping[str, int]) -> Iterator[Sample]:
    settings, pending = broker.settings, broker.store.halves.pending
    yield Sample("connections", figures["connections_open"])
    used = {name: figures[name] for name in LIMITS}
    used |= {"connections": figures["connections_open"], "transactions_open": len(pending)}
    maxima = {
        **LIMITS,
        "connections": settings.connections_max,
        "transactions_open": settings.transaction.pending_max,
    }
    for name, value in used.items():
        yield Sample("limit", maxima[name], (name,))
        yield Sample("limit_used", value, (name,))
    for name, value in _refusals(broker, figures):
        yield Sample("refusals_total", value, (name,))


def _refusals(broker: Broker, figures: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    yield "transactions", broker.transactions.tally.refused
    for name, value in figures.items():
        if name.endswith(_REFUSED):
            yield name.removesuffix(_REFUSED), value
        elif name in _OTHER_REFUSALS:
            yield name, value


def _replication(broker: Broker, figures: Mapping[str, int]) -> Iterator[Sample]:
    copies, leadership = broker.parts.show_copies(), broker.parts.leadership
    yield Sample("epoch", copies.epoch)
    if leadership is not None:
        yield Sample("lease_age_seconds", leadership.seconds_since_renewal)
    yield Sample("followers", figures["followers"])
    yield Sample("copies_in_sync", 1 + figures["followers_in_sync"])
    yield Sample("copies_required", copies.min_in_sync)
    yield Sample("bytes_not_copied", figures["bytes_not_copied"])
    yield Sample("answers_waiting_for_followers", figures["answers_waiting_for_followers"])
    for follower in copies.followers[:METRIC_SERIES_MAX]:
        labels = (follower.member,)
        yield Sample("follower_in_sync", follower.is_in_sync, labels)
        if follower.bytes_behind is not None:
            yield Sample("follower_bytes_behind", follower.bytes_behind, labels)
        if follower.seconds_behind is not None:
            yield Sample("follower_seconds_behind", follower.seconds_behind, labels)


def _of_follower(follower: Follower) -> Iterator[Sample]:
    status = follower.status
    yield Sample("epoch", status.epoch)
    yield Sample("following", bool(status.leader) and not status.failure)
    yield Sample("copy_end_position", status.position)
    yield Sample("copy_bytes_behind", max(0, status.leaders_end - status.position))
    yield Sample("copy_bytes_not_shown", status.unindexed)
    yield from _verification(follower.verifier)
    reads = follower.reads()
    if reads is None:
        return
    yield Sample("start_time_seconds", reads.started_ms / 1000)
    yield Sample("connections", reads.connections)
    yield Sample("serves_reads", reads.is_serving)
    yield Sample("pulls_sent_to_leader_total", reads.sent_to_leader)
    yield from _delivered(reads.statistics)
    yield Sample("pull_duration_seconds", reads.statistics.pull_times)
