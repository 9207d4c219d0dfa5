"""Print docs/reference/metrics.md: every metric of a broker, from the table that makes them."""

from txmq.limits import METRIC_SERIES_MAX
from txmq_broker.core.latency import BOUNDS_S
from txmq_broker.monitoring.metric_table import PREFIX, SECTIONS, Origin
from txmq_broker.monitoring.samples import LIMITS

HEAD = f"""\
# Metrics of a broker

<!-- Printed by `python -m tools.metric_reference`; change the table in `monitoring`, not this \
page. -->

`txmq serve --http HOST:PORT` serves these metrics at `/metrics`, as text for Prometheus.
[Monitor a broker](../howto/monitor.md) has alerts and a dashboard for them.

Each name begins with `{PREFIX}`.
Counters begin at 0 when a broker starts, and a member of a broker set starts one each time it \
begins to lead.
A process that leads, or belongs to no set, has the metrics of a *leader*.

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
WHO = {origin: str(origin) for origin in Origin}


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
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
