"""Writes docs/reference/mqadmin.md: each command of RocketMQ's mqadmin, and ours for it."""

from txmq.cli.mqadmin import EQUIVALENTS

HEAD = """\
# From mqadmin to txmq

<!-- Written by `make docs`; change txmq/cli/mqadmin.py, not this page. -->

What `txmq` has for each command of RocketMQ's `mqadmin`, of the versions 4.9 and 5.3.
The help of a command names mqadmin's too: `txmq topic permit --help`.

Both tools work on clusters of txmq and of RocketMQ; `txmq tx` and `txmq cluster status` need txmq.
Instead of `-n`, write `--names` or set `TXMQ_NAMES`.
Commands find brokers by name, so none takes the address of a broker.
Lists take `--match`, `--sort`, `--limit`, `--page`, `--watch` and `--json`.

| mqadmin | txmq | |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = []
    for name, found in EQUIVALENTS.items():
        links = [
            f"[`txmq {path}`](cli.md#txmq-{path.replace(' ', '-')})" for path in found.commands
        ]
        rows.append(f"| `{name}` | {', '.join(links) or 'none'} | {found.text} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    print(page(), end="")
