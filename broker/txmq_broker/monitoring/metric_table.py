"""All metrics of a broker, with their meanings. The samples and the reference page follow it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from txmq.metrics.table import MetricRow, counter, gauge, histogram

__all__ = ["METRICS", "PREFIX", "SECTIONS", "Origin"]

PREFIX: Final = "txmq_broker_"


class Origin(StrEnum):
    """The processes that have a metric."""

    ALL = "all"
    LEADER = ""
    """A broker that takes sends, in a set or on its own; the default of a row."""
    FOLLOWER = "follower"
    BOTH = "both"
    """A leader or a follower; followers may serve reads."""
    SUPERVISOR = "supervisor"
    """The supervisor of several brokers on one machine."""


SECTIONS: Final[Mapping[str, Mapping[str, MetricRow]]] = {
    "Process": {
        "info": gauge(
            "Always 1; its labels name the version and the member.",
            *("version", "cluster", "name", "member"),
            origin=Origin.ALL,
        ),
        "role": gauge(
            "1 for the role of this process, and 0 for the others.", "role", origin=Origin.ALL
        ),
        "ready": gauge(
            "1 if a send would be acknowledged now; /health/ready gives the reason if not.",
            origin=Origin.ALL,
        ),
        "start_time_seconds": gauge(
            "When this process began to serve, in Unix time.", origin=Origin.BOTH
        ),
    },
    "Messages": {
        "messages_received_total": counter("Messages stored for readers, with committed halves."),
        "received_bytes_total": counter("Bytes of their bodies."),
        "messages_delivered_total": counter("Messages in answers to pulls.", origin=Origin.BOTH),
        "delivered_bytes_total": counter("Bytes of their records.", origin=Origin.BOTH),
        "topic_messages_received_total": counter("Messages stored for readers.", "topic"),
        "topic_received_bytes_total": counter("Bytes of their bodies.", "topic"),
        "topic_messages_stored": gauge("Messages that consumers can read.", "topic"),
        "group_messages_delivered_total": counter(
            "Messages in answers to the pulls of a group.", "group", "topic", origin=Origin.BOTH
        ),
        "group_delivered_bytes_total": counter(
            "Bytes of their records.", "group", "topic", origin=Origin.BOTH
        ),
        "group_lag_messages": gauge(
            "The consumer lag: messages stored that a group has not consumed.", "group", "topic"
        ),
        "group_oldest_unread_age_seconds": gauge(
            "The age of the oldest message that a group has not consumed; 0 if it is not behind.",
            "group",
            "topic",
        ),
        "group_retries_waiting": gauge(
            "Messages that a group failed to handle and that wait for a retry; they are not in the "
            "lag.",
            "group",
        ),
        "dead_letters": gauge("Messages that a group failed at too often.", "group"),
        "messages_delayed": gauge("Messages that wait for their time."),
        "series_left_out": gauge(
            "Topics, groups in topics, and groups with dead letters that have no series because "
            "of the limit of series.",
            "of",
        ),
    },
    "Latency": {
        "send_duration_seconds": histogram(
            "Messages, by the time from their arrival to their acknowledgement."
        ),
        "sync_duration_seconds": histogram("Syncs of the log, by their duration."),
        "pull_duration_seconds": histogram(
            "Pulls that found messages, by the time it took to read these.", origin=Origin.BOTH
        ),
    },
    "Transactions": {
        "transactions_open": gauge("Transactions without a decision, with the parked ones."),
        "transactions_parked": gauge("Transactions that wait for a person."),
        "oldest_transaction_age_seconds": gauge(
            "The age of the oldest transaction that is neither decided nor parked; 0 without one."
        ),
        "transactions_prepared_total": counter("Half messages stored."),
        "transactions_decided_total": counter("Decisions.", "outcome"),
        "transactions_decided_by_operators_total": counter("Decisions by operators."),
        "transaction_parkings_total": counter("Times that the broker parked a transaction."),
        "transactions_repeated_total": counter("Half messages and decisions that came again."),
        "transaction_conflicts_total": counter(
            "Decisions that the broker refused because it has the opposite one."
        ),
        "transaction_checks_sent_total": counter("Checks sent to producers."),
        "transaction_checks_undecided_total": counter("Checks that brought no decision.", "reason"),
    },
    "Log and disk": {
        "log_bytes": gauge("The size of the log."),
        "log_end_position": gauge("The position at which the log ends; it only grows."),
        "oldest_message_timestamp_seconds": gauge(
            "When the oldest record of the log was stored, in Unix time."
        ),
        "damaged_reads_total": counter("Reads of messages that met damage in the log."),
        "damaged_parts": gauge(
            "Parts of the log that are known to be damaged.", origin=Origin.BOTH
        ),
        "verified_bytes_total": counter(
            "Bytes of the log that were compared with their checksums again.", origin=Origin.BOTH
        ),
        "verification_rounds_total": counter(
            "Times that the whole log was verified.", origin=Origin.BOTH
        ),
        "last_verification_timestamp_seconds": gauge(
            "When the last of these rounds ended, in Unix time.", origin=Origin.BOTH
        ),
        "unsynced_bytes": gauge("Bytes of the log that wait for the disk."),
        "disk_bytes": gauge("The size of the file system that has the data directory."),
        "disk_used_bytes": gauge("The used part of it."),
        "disk_refusal_ratio": gauge(
            "The used part above which the broker refuses sends: retention.refuse_above."
        ),
    },
    "Limits and refusals": {
        "connections": gauge("Open connections.", origin=Origin.BOTH),
        "limit": gauge("The highest value of a figure that clients raise.", "limit"),
        "limit_used": gauge("The value of that figure now.", "limit"),
        "refusals_total": counter(
            "Requests refused, connections closed, and pulls not held.", "reason"
        ),
    },
    "Replication": {
        "epoch": gauge("The epoch of the leadership; 0 without a coordinator.", origin=Origin.ALL),
        "leaderships_total": counter(
            "Times that this process began to lead a broker set.", origin=Origin.ALL
        ),
        "lease_age_seconds": gauge(
            "Seconds since the coordinator confirmed the lease; only with a coordinator."
        ),
        "followers": gauge("Connected followers."),
        "copies_in_sync": gauge("Copies in sync, with the leader's."),
        "copies_required": gauge("Copies that a send needs: replication.min_in_sync."),
        "bytes_not_copied": gauge("Bytes that the last of the connected followers lacks."),
        "answers_waiting_for_followers": gauge("Writes whose answers wait for followers."),
        "follower_in_sync": gauge("1 if a follower is in sync.", "member"),
        "follower_bytes_behind": gauge("Bytes that a follower lacks.", "member"),
        "follower_seconds_behind": gauge(
            "How long ago the log ended where the copy of a follower ends.", "member"
        ),
        "following": gauge("1 if the follower copies a leader's log.", origin=Origin.FOLLOWER),
        "copy_end_position": gauge("The end of the copy.", origin=Origin.FOLLOWER),
        "copy_bytes_behind": gauge(
            "Bytes that the copy lacks, by the last answer of the leader.", origin=Origin.FOLLOWER
        ),
        "copy_bytes_not_shown": gauge(
            "Bytes at the end of the copy that readers do not see yet.", origin=Origin.FOLLOWER
        ),
        "serves_reads": gauge(
            "1 if consumers may read from the follower now.", origin=Origin.FOLLOWER
        ),
        "pulls_sent_to_leader_total": counter(
            "Pulls that the follower sent to its leader.", origin=Origin.FOLLOWER
        ),
    },
    "Several brokers": {
        "processes": gauge("Brokers that the supervisor runs.", origin=Origin.SUPERVISOR),
        "process_ready": gauge(
            "1 if this broker takes requests.", "broker", origin=Origin.SUPERVISOR
        ),
        "process_restarts_total": counter(
            "Times that this broker was started again.", "broker", origin=Origin.SUPERVISOR
        ),
    },
}
"""The metrics by name, without :data:`PREFIX`, in the order of the page."""

METRICS: Final[Mapping[str, MetricRow]] = {
    name: row for section in SECTIONS.values() for name, row in section.items()
}
"""All rows of :data:`SECTIONS`."""
