"""Reads the samples of all metrics from the parts of a broker or a follower.

Nothing here is counted for metrics alone, except the durations: the broker keeps these figures for
its own use, and a scrape reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate, islice
from typing import Final, NamedTuple

import txmq
from txmq import limits
from txmq.errors import CorruptRecord
from txmq.limits import METRIC_SERIES_MAX
from txmq.protocol.topics import DLQ
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings
from txmq_broker.core.latency import BOUNDS_S, LatencyHistogram
from txmq_broker.core.progress import ConsumeProgress
from txmq_broker.core.statistics import Statistics
from txmq_broker.core.topics import Topic
from txmq_broker.monitoring.readiness import objection, role_of
from txmq_broker.monitoring.subject import MonitoredProcess
from txmq_broker.replication.follower import Follower
from txmq_broker.services.log_verifier import LogVerifier
from txmq_broker.store.queue_store import ConsumeQueue

__all__ = ["LIMITS", "Durations", "ProcessSamples", "SamplePoint"]

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
"""The limits by the figure that they bound; two more are settings."""

_BETWEEN_PAUSES: Final = 512
"""Topics between two places to pause: some tenths of a millisecond."""

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


class Durations(NamedTuple):
    """The value of a histogram: counts up to each bound and in all, and the sum."""

    buckets: list[tuple[str, float]]
    sum_s: float


class SamplePoint(NamedTuple):
    """One value of a metric."""

    metric: str
    value: float | Durations
    labels: tuple[str, ...] = ()


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
        """The position of the oldest half message that waits, and the time when it was stored."""
        self._unread: dict[tuple[str, int, int], int] = {}
        """When the first unread messages of groups were stored: they are read once."""

    def read(self) -> Iterator[SamplePoint | None]:
        """All samples. The caller may pause after each; ``None`` is only a place to pause."""
        process, settings = self._process, self._settings
        member = settings.replication.member
        yield SamplePoint("info", 1, (txmq.__version__, settings.cluster, settings.name, member))
        role = role_of(process)
        for name in _ROLES:
            yield SamplePoint("role", name == role, (name,))
        yield SamplePoint("ready", not objection(process))
        yield SamplePoint("leaderships_total", process.leaderships)
        if process.broker is not None:
            if process.broker.parts.is_open():
                yield from self._of_broker(process.broker)
        elif process.follower is not None:
            yield from _of_follower(process.follower)

    def _of_broker(self, broker: Broker) -> Iterator[SamplePoint | None]:
        figures = broker.parts.figures()
        yield SamplePoint("start_time_seconds", broker.started_ms / 1000)
        yield from _messages(broker)
        yield from _delivered(broker.statistics)
        yield from self._groups(broker)
        yield from _durations(broker)
        yield from self._transactions(broker)
        yield from _log_and_disk(broker)
        yield from _limits(broker, figures)
        yield from _replication(broker, figures)

    def _transactions(self, broker: Broker) -> Iterator[SamplePoint]:
        pending, tally = broker.store.halves.pending, broker.coordinator.tally
        yield SamplePoint("transactions_open", len(pending))
        yield SamplePoint("transactions_parked", pending.parked)
        yield SamplePoint("oldest_transaction_age_seconds", self._oldest_age(broker))
        yield SamplePoint("transactions_prepared_total", tally.prepared)
        for outcome in ("committed", "rolled_back"):
            yield SamplePoint("transactions_decided_total", getattr(tally, outcome), (outcome,))
        yield SamplePoint("transactions_decided_by_operators_total", tally.forced)
        yield SamplePoint("transaction_parkings_total", tally.parked)
        yield SamplePoint("transactions_repeated_total", tally.repeated)
        yield SamplePoint("transaction_conflicts_total", tally.conflicts)
        yield SamplePoint("transaction_checks_sent_total", tally.checks_sent)
        for reason in ("unknown", "unanswered", "lost"):
            count = getattr(tally, f"checks_{reason}")
            yield SamplePoint("transaction_checks_undecided_total", count, (reason,))

    def _groups(self, broker: Broker) -> Iterator[SamplePoint | None]:
        progress = ConsumeProgress(
            broker.settings.name, broker.topics, broker.offsets, broker.clients, broker.store
        )
        known, self._unread = self._unread, {}
        now_ms = broker.clock.wall_ms()
        pairs = broker.offsets.pairs()
        yield SamplePoint("series_left_out", max(0, len(pairs) - METRIC_SERIES_MAX), ("groups",))
        shown = list(islice(pairs, METRIC_SERIES_MAX))
        for group, name in shown:
            found = broker.topics.by_name.get(name)
            if found is None or broker.clients.lacks_subscription(group, name):
                continue
            lag = progress.lag(group, found)
            yield SamplePoint("group_lag_messages", lag, (group, name))
            oldest = now_ms
            for queue, offset in progress.first_unread(group, found) if lag > 0 else ():
                place = name, queue.number, offset
                stored_ms = known.get(place) or _stored_ms(broker, queue, offset)
                if stored_ms is not None:
                    self._unread[place] = stored_ms
                    oldest = min(oldest, stored_ms)
            age_s = (now_ms - oldest) / 1000
            yield SamplePoint("group_oldest_unread_age_seconds", age_s, (group, name))
        retries = broker.store.delays.waiting_retries()
        if retries is not None:
            counts = {group: 0 for group, _ in shown} | dict(retries.totals())
            for group, count in islice(counts.items(), METRIC_SERIES_MAX):
                yield SamplePoint("group_retries_waiting", count, (group,))

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


def _messages(broker: Broker) -> Iterator[SamplePoint | None]:
    topics = broker.topics
    # Both at once: a topic that is deleted meanwhile counts exactly once.
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
    yield SamplePoint("messages_received_total", puts)
    yield SamplePoint("received_bytes_total", size)
    yield SamplePoint("messages_delayed", len(broker.store.delays))
    yield SamplePoint("series_left_out", max(0, len(named) - METRIC_SERIES_MAX), ("topics",))
    yield SamplePoint("series_left_out", max(0, len(dead) - METRIC_SERIES_MAX), ("dead_letters",))
    for topic in named[:METRIC_SERIES_MAX]:
        labels = (topic.name,)
        yield SamplePoint("topic_messages_received_total", topic.put_count, labels)
        yield SamplePoint("topic_received_bytes_total", topic.put_bytes, labels)
        yield SamplePoint("topic_messages_stored", _stored(topic), labels)
    for topic in dead[:METRIC_SERIES_MAX]:
        yield SamplePoint("dead_letters", _stored(topic), (topic.name.removeprefix(DLQ),))


def _stored(topic: Topic) -> int:
    return sum([queue.max_offset - queue.min_offset for queue in topic.queues])


def _delivered(statistics: Statistics) -> Iterator[SamplePoint]:
    for metric, counter in _DELIVERED.items():
        for key, meter in list(islice(statistics.named(counter).items(), METRIC_SERIES_MAX)):
            topic, _, group = key.partition("@")
            labels = (group, topic) if group else ()
            yield SamplePoint(metric, meter.total, labels)


def _durations(broker: Broker) -> Iterator[SamplePoint]:
    flusher = broker.parts.flusher
    for metric, histogram in (
        ("send_duration_seconds", flusher.send_times),
        ("sync_duration_seconds", flusher.sync_times),
        ("pull_duration_seconds", broker.statistics.pull_times),
    ):
        yield SamplePoint(metric, _durations_of(histogram))


def _durations_of(histogram: LatencyHistogram) -> Durations:
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    return Durations(list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.sum_s)


def _log_and_disk(broker: Broker) -> Iterator[SamplePoint]:
    log = broker.store.log
    yield SamplePoint("log_bytes", log.end - log.start)
    yield SamplePoint("log_end_position", log.end)
    earliest_ms = None
    with suppress(CorruptRecord):
        earliest_ms = broker.store.earliest_ms()
    if earliest_ms is not None:
        yield SamplePoint("oldest_message_timestamp_seconds", earliest_ms / 1000)
    yield SamplePoint("damaged_reads_total", broker.store.damage.reads)
    yield from _verification(broker.parts.verifier)
    yield SamplePoint("unsynced_bytes", log.end - log.durable)
    try:
        space = broker.disk.space()
    except OSError:
        return
    yield SamplePoint("disk_bytes", space.total)
    yield SamplePoint("disk_used_bytes", space.used)
    yield SamplePoint("disk_refusal_ratio", broker.settings.retention.refuse_above)


def _verification(verifier: LogVerifier) -> Iterator[SamplePoint]:
    yield SamplePoint("damaged_parts", len(verifier.damaged))
    yield SamplePoint("verified_bytes_total", verifier.verified_bytes)
    yield SamplePoint("verification_rounds_total", verifier.rounds)
    if verifier.last_round_ms:
        yield SamplePoint("last_verification_timestamp_seconds", verifier.last_round_ms / 1000)


def _limits(broker: Broker, figures: Mapping[str, int]) -> Iterator[SamplePoint]:
    settings, pending = broker.settings, broker.store.halves.pending
    yield SamplePoint("connections", figures["connections_open"])
    used = {name: figures[name] for name in LIMITS}
    used |= {"connections": figures["connections_open"], "transactions_open": len(pending)}
    maxima = {
        **LIMITS,
        "connections": settings.connections_max,
        "transactions_open": settings.transaction.pending_max,
    }
    for name, value in used.items():
        yield SamplePoint("limit", maxima[name], (name,))
        yield SamplePoint("limit_used", value, (name,))
    for name, value in _refusals(broker, figures):
        yield SamplePoint("refusals_total", value, (name,))


def _refusals(broker: Broker, figures: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    yield "transactions", broker.coordinator.tally.refused
    for name, value in figures.items():
        if name.endswith(_REFUSED):
            yield name.removesuffix(_REFUSED), value
        elif name in _OTHER_REFUSALS:
            yield name, value


def _replication(broker: Broker, figures: Mapping[str, int]) -> Iterator[SamplePoint]:
    copies, leadership = broker.parts.show_copies(), broker.parts.leadership
    yield SamplePoint("epoch", copies.epoch)
    if leadership is not None:
        yield SamplePoint("lease_age_seconds", leadership.seconds_since_renewal)
    yield SamplePoint("followers", figures["followers"])
    yield SamplePoint("copies_in_sync", 1 + figures["followers_in_sync"])
    yield SamplePoint("copies_required", copies.min_in_sync)
    yield SamplePoint("bytes_not_copied", figures["bytes_not_copied"])
    yield SamplePoint("answers_waiting_for_followers", figures["answers_waiting_for_followers"])
    for follower in copies.followers[:METRIC_SERIES_MAX]:
        labels = (follower.member,)
        yield SamplePoint("follower_in_sync", follower.is_in_sync, labels)
        if follower.bytes_behind is not None:
            yield SamplePoint("follower_bytes_behind", follower.bytes_behind, labels)
        if follower.seconds_behind is not None:
            yield SamplePoint("follower_seconds_behind", follower.seconds_behind, labels)


def _of_follower(follower: Follower) -> Iterator[SamplePoint]:
    status = follower.status
    yield SamplePoint("epoch", status.epoch)
    yield SamplePoint("following", bool(status.leader) and not status.failure)
    yield SamplePoint("copy_end_position", status.position)
    yield SamplePoint("copy_bytes_behind", max(0, status.leaders_end - status.position))
    yield SamplePoint("copy_bytes_not_shown", status.unindexed)
    yield from _verification(follower.verifier)
    reads = follower.reads()
    if reads is None:
        return
    yield SamplePoint("start_time_seconds", reads.started_ms / 1000)
    yield SamplePoint("connections", reads.connections)
    yield SamplePoint("serves_reads", reads.is_serving)
    yield SamplePoint("pulls_sent_to_leader_total", reads.sent_to_leader)
    yield from _delivered(reads.statistics)
    yield SamplePoint("pull_duration_seconds", _durations_of(reads.statistics.pull_times))
