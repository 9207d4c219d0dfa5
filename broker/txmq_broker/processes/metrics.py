"""The metrics of several brokers as one text for Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from txmq.metrics.table import Sample, table_text
from txmq_broker.monitoring.metric_table import METRICS, PREFIX

__all__ = ["BrokerProcessState", "metrics_of_brokers"]


class BrokerProcessState(NamedTuple):
    """What the supervisor knows about one broker."""

    name: str
    is_ready: bool
    restarts: int


def metrics_of_brokers(
    texts: Mapping[str, str], states: Sequence[BrokerProcessState], own: str = ""
) -> str:
    """The union of the texts of brokers; each sample has the label ``broker``.

    Args:
        texts: The metrics of each broker, by its name.
        states: What the supervisor knows about all brokers.
        own: The metrics of the supervisor's process, which stay without the label.
    """
    families: dict[str, list[str]] = {}
    for broker, text in {"": own, **texts}.items():
        lines, is_known = families.setdefault("", []), False
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                is_known = name in families
                lines = families.setdefault(name, [line])
            elif line.startswith("#"):
                if not is_known:
                    lines.append(line)
            elif line:
                lines.append(_labelled(line, broker) if broker else line)
    joined = "".join(f"{line}\n" for lines in families.values() for line in lines)
    return table_text(PREFIX, METRICS, _of_supervisor(states)) + joined


def _labelled(sample: str, broker: str) -> str:
    """A line of a sample with one more label. Names of metrics have neither braces nor blanks."""
    blank, brace = sample.find(" "), sample.find("{")
    if 0 <= brace < blank:
        comma = "" if sample[brace + 1] == "}" else ","
        return f'{sample[: brace + 1]}broker="{broker}"{comma}{sample[brace + 1 :]}'
    return f'{sample[:blank]}{{broker="{broker}"}}{sample[blank:]}'


def _of_supervisor(states: Sequence[BrokerProcessState]) -> Iterator[Sample]:
    yield Sample("processes", len(states))
    for state in states:
        yield Sample("process_ready", state.is_ready, (state.name,))
        yield Sample("process_restarts_total", state.restarts, (state.name,))
