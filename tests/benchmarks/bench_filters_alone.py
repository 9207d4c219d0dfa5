"""The broker's own parts in a process of their own: a condition, and fetches with and without one.

    python bench_filters_alone.py TURNS

Prints the CPU microseconds that one message takes. Records carry what stock clients add and five
properties of the application's.
"""

import json
import sys
import time

from txmq.protocol.java import string_hash
from txmq.protocol.record import host_bytes, property_text_of, tail_of, topic_field
from txmq.testing import MemoryDisk, SeededEntropy
from txmq_broker.config import StoreSettings
from txmq_broker.core.fetch import FetchOutcome, fetch
from txmq_broker.core.filter.condition import Condition
from txmq_broker.core.filter.tags import tag_filter
from txmq_broker.store.message_store import MessageStore

CONDITIONS = {
    "numbers": "age > 5 AND age < 100000 AND price <= 20.5",
    "texts": "region = 'eu' AND TAGS <> 'TagB' AND kind IN ('book', 'film', 'game')",
    "mixed": "age BETWEEN 0 AND 100000 AND region = 'eu' AND vip IS NULL",
}
NONE = "age < 0 OR region = 'us' OR vip IS NOT NULL"
MESSAGES = 3_200
BODY = b"x" * 1024
HOST = host_bytes("10.0.0.1", 10911)


def stored():
    """A queue of messages that every filter here lets through."""
    store = MessageStore(MemoryDisk(SeededEntropy(1)), StoreSettings())
    store.take(SeededEntropy(1))
    store.open({})
    queue = store.queue("T", 0)
    for number in range(MESSAGES):
        text = (
            f"KEYS\x01order-{number}\x02UNIQ_KEY\x017F00000100002A9F{number:016X}\x02"
            f"WAIT\x01true\x02TAGS\x01TagA\x02CLUSTER\x01DefaultCluster\x02"
            f"age\x01{number + 6}\x02region\x01eu\x02price\x0112.5\x02kind\x01film\x02note\x01-\x02"
        )
        tail = tail_of(topic_field("T"), text.encode())
        store.stage(
            [(queue, (0, 1, HOST, 1, HOST, 0, 0), 0, BODY, tail, string_hash("TagA"), (), None)]
        )
    store.publish(store.write())
    return store, queue


def fetched(store, queue, wanted):
    """CPU microseconds for each message that one consumer drains."""
    begun, at = time.process_time(), 0
    while at < MESSAGES:
        found = fetch(store, queue, at, 32, wanted=wanted)
        assert found.outcome in {FetchOutcome.FOUND, FetchOutcome.NO_MATCH}
        at = found.next_offset
    return (time.process_time() - begun) / MESSAGES * 1e6


def filtered(records, condition):
    """CPU microseconds for each message that a condition lets through, from its record on."""
    admits = condition.admits
    begun = time.process_time()
    wanted = sum([admits(property_text_of(record)) for record in records])
    took = time.process_time() - begun
    assert wanted == len(records)
    return took / len(records) * 1e6


def main():
    store, queue = stored()
    records = []
    while len(records) < MESSAGES:
        records += fetch(store, queue, len(records), 32).records
    conditions = {name: Condition(text) for name, text in CONDITIONS.items()}
    filters = {
        "none": None,
        "tags": tag_filter("TagA || TagB"),
        "condition": conditions["mixed"],
        "condition_that_admits_none": Condition(NONE),
    }
    message_us = {name: [] for name in conditions}
    fetch_us = {name: [] for name in filters}
    for _ in range(int(sys.argv[1])):
        for name, condition in conditions.items():
            message_us[name].append(filtered(records, condition))
        for name, wanted in filters.items():
            fetch_us[name].append(fetched(store, queue, wanted))
    json.dump({"message_us": message_us, "fetch_us": fetch_us}, sys.stdout)


if __name__ == "__main__":
    main()
