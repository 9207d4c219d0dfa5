"""The metrics of several brokers as one text that Prometheus accepts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from txmq_broker.processes.pages import BrokerProcessState, metrics_of_brokers

NASTY = 'a} "b\\ \nc{d'


def text_of(count):
    registry = CollectorRegistry()
    Counter("sent", "Sent.", registry=registry).inc(count)
    Gauge("lag", "Behind.", ["topic"], registry=registry).labels(NASTY).set(count)
    Histogram("took", "Time.", buckets=[1.0], registry=registry).observe(count)
    return generate_latest(registry).decode()


def test_merged_samples_name_their_broker_and_each_metric_has_one_head():
    states = [BrokerProcessState("a", True, 0), BrokerProcessState("b", False, 2)]
    own = "# HELP own Own.\n# TYPE own gauge\nown 5.0\n"

    text = metrics_of_brokers({"a": text_of(1), "b": text_of(2)}, states, own)

    families = {found.name: found for found in text_string_to_metric_families(text)}
    heads = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads)) == len(families)

    def values(family, name):
        samples = [found for found in families[family].samples if found.name == name]
        return [(found.labels, found.value) for found in samples]

    assert values("sent", "sent_total") == [({"broker": "a"}, 1.0), ({"broker": "b"}, 2.0)]
    assert values("lag", "lag") == [
        ({"broker": "a", "topic": NASTY}, 1.0),
        ({"broker": "b", "topic": NASTY}, 2.0),
    ]
    assert ({"broker": "b", "le": "+Inf"}, 1.0) in values("took", "took_bucket")
    assert values("own", "own") == [({}, 5.0)]
    assert values("txmq_broker_process_ready", "txmq_broker_process_ready") == [
        ({"broker": "a"}, 1.0),
        ({"broker": "b"}, 0.0),
    ]
    restarts = "txmq_broker_process_restarts"
    assert values(restarts, f"{restarts}_total")[1] == ({"broker": "b"}, 2.0)
