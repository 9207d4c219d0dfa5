"""Print docs/reference/metrics.md: every metric of a broker, a name server, a console and a
reconciliation, from the tables that make them.
"""

from collections.abc import Mapping

from txmq.console import metrics as console_metrics
from txmq.limits import METRIC_SERIES_MAX
from txmq.metrics.table import MetricRow
from txmq.reconcile.report import metrics as reconcile_metrics
from txmq_broker.core.statistics import BOUNDS_S
from txmq_broker.monitoring.metric_table import PREFIX, SECTIONS, Origin
from txmq_broker.monitoring.samples import LIMITS
from txmq_broker.names import metrics as name_server_metrics

HEAD = f"""\
# Metrics of brokers, name servers, consoles and reconciliations

<!-- Printed by `python -m tools.metric_reference`; change the table in `monitoring`, not this \
page. -->

`txmq serve --http HOST:PORT` serves these metrics at `/metrics`, as text for Prometheus.
[Monitor a broker](../howto/monitor.md) has alerts and a dashboard for them.

Each name begins with `{PREFIX}`.
Counters begin at 0 when a broker starts, and a member of a broker set starts one each time it \
begins to lead.
A process that leads, or belongs to no set, has the metrics of a *leader*; *both* are of leaders \
and followers, which may serve reads.

A metric has at most {METRIC_SERIES_MAX:,} series.
Topics have theirs in the order in which the broker learned of them, and groups likewise, so a \
series stays as long as its topic does.
`series_left_out` counts those without; the figures without a topic or group always count all.
Topics of the broker itself and of retries have no series.
"""

NOTES = {
    "Latency": f"""\
The buckets of all histograms end at {", ".join(f"{bound:g}" for bound in BOUNDS_S)} seconds.
A send begins with the turn of the event loop that reads it, and ends when its answer is written \
to the connection: with `flush = "sync"` after the sync, and in a broker set after the copies.
The messages of one write count together, with the mean of their times.
""",
    "Limits and refusals": f"""\
Limits: `connections`, `transactions_open`, {", ".join(f"`{name}`" for name in LIMITS)}.

Reasons of refusals:

| reason | counts |
|---|---|
| `sends` | sends while the disk is too full, too few copies are in sync, or the broker stops |
| `halves` | half messages while the disk has room only for decisions |
| `busy` | sends while too much waits for the disk or for followers |
| `access` | requests without the permission that they need |
| `connections`, `handshakes` | connections beyond the limit, and without a TLS handshake where \
one is necessary |
| `broken_frames_cut`, `unfinished_frames_cut`, `unread_answers_cut` | connections closed for \
bytes that are no request, or because of a limit |
| `pulls_not_held` | pulls answered at once for lack of room |
| `transactions`, `topics`, `groups`, `heartbeats`, `offsets`, `locks`, `relays` | requests that \
exceeded [a limit that all clients share](../howto/limits.md#what-all-clients-share) |
""",
    "Several brokers": """\
With [`txmq serve --brokers`](../howto/several-brokers.md) one page has the metrics of all \
brokers, and each sample has the label `broker`.
""",
    "Process": """\
On Linux the page also has `process_resident_memory_bytes`, `process_virtual_memory_bytes`, \
`process_cpu_seconds_total`, `process_open_fds`, `process_max_fds` and \
`process_start_time_seconds`, as every program with Prometheus' client library.
""",
}
OF_NAMES = """\
## A name server alone

`txmq names --http HOST:PORT` serves these at `/metrics`.
The one inside a broker has no page of its own.
"""
OF_CONSOLES = f"""\
## A console

`txmq console --http HOST:PORT` serves these at `/metrics`, on a port apart from that of browsers.
Pages have their paths for names; all addresses that are no page count together as `other`.
The buckets of the histogram end at {", ".join(map("{:g}".format, console_metrics.BUCKETS_S))} \
seconds.
"""
OF_RECONCILIATIONS = """\
## A reconciliation

Each run of `txmq reconcile` writes these into `metrics.prom`, for \
[alerts](../howto/reconcile.md#alerts).
Each also has the label `name`, the name of the rules.
Every class has a value for every currency of the day, also 0, so an alert ends when its cause ends.
`group` is `break`, `open` or `agreed`: sum `at_risk` over `group="break"` for the value in the \
report.
"""
OF_FIGURES = """\
## The broker's figures

`txmq broker status --all` and `mqadmin brokerStatus` (request 28) show the broker's own figures \
with RocketMQ's.
Those of limits and refusals are [metrics](#limits-and-refusals) under other names: \
`filterCharactersWaiting` is the limit `filter_characters_waiting`, `topicsRefused` counts \
refusals with the reason `topics`, and `unreadAnswersCut` those with `unread_answers_cut`.
The others are:

| figure | meaning |
|---|---|
| `transactionsOpen`, `transactionsParkedNow` | transactions without a decision, and how many of \
them are parked |
| `transactionsCommitted`, `transactionsRolledBack` | decisions since the start |
| `transactionsConflicts` | refused contrary decisions since the start; more than 0 needs [a \
person](../howto/resolve.md#transactionconflict) |
| `transactionsChecksSent`, `transactionsChecksUnknown`, `transactionsChecksUnanswered`, \
`transactionsChecksLost` | checks since the start, and those that brought no decision |
| `messagesWaiting` | messages that wait for their time |
| `filtersCompiled` | filters that the broker keeps compiled |
| `epoch`, `isLeader` | the epoch of this leadership (0 without a coordinator), and 1 at a leader \
|
| `followers`, `followersInSync` | connected followers, and those that have everything that was \
acknowledged |
| `bytesNotCopied` | bytes that the last of the connected followers lacks |
| `answersWaitingForFollowers` | writes whose answers wait for followers |
| `secondsSinceLeaseRenewal` | the age of the lease that the coordinator has confirmed; only for \
members of a broker set |
| `putTps`, `getTransferredTps` | messages in and out a second |
| `position`, `bytesNotShown` | at a follower: the end of its copy, and what consumers do not see \
there yet |

A name server answers `mqadmin brokerStatus -b 127.0.0.1:9876` too: with `brokers` and `topics` \
that are registered, `keyValues` and their `keyValueCharacters`, `registrationsRefused` and \
`keyValuesRefused` since the start, and the figures of connections.
"""
WHO = {origin: str(origin) or "leader" for origin in Origin}


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, rows in SECTIONS.items():
        lines = [
            f"| `{name}` | {row.kind} | {', '.join(f'`{label}`' for label in row.labels)} "
            f"| {WHO[row.origin]} | {row.meaning} |\n"
            for name, row in rows.items()
        ]
        table = "| metric | kind | labels | of | meaning |\n|---|---|---|---|---|\n"
        parts.append(f"## {title}\n\n{table}{''.join(lines)}")
        if title in NOTES:
            parts.append(NOTES[title])
    parts += [
        small_table(OF_NAMES, name_server_metrics.PREFIX, name_server_metrics.ROWS),
        small_table(OF_CONSOLES, console_metrics.PREFIX, console_metrics.ROWS),
        small_table(OF_RECONCILIATIONS, reconcile_metrics.PREFIX, reconcile_metrics.METRICS),
        OF_FIGURES,
    ]
    return "\n".join(parts)


def small_table(head: str, prefix: str, rows: Mapping[str, MetricRow]) -> str:
    """A table of metrics that all come from one kind of process."""
    lines = [
        f"| `{name}` | {row.kind} | {', '.join(f'`{label}`' for label in row.labels)} "
        f"| {row.meaning} |\n"
        for name, row in rows.items()
    ]
    table = "| metric | kind | labels | meaning |\n|---|---|---|---|\n"
    return f"{head}\nEach name begins with `{prefix}`.\n\n{table}{''.join(lines)}"


if __name__ == "__main__":
    print(page(), end="")
