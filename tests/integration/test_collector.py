"""Python's collector stops the whole server, so it must have little to look at."""

import gc
import sys

import pytest

from tests.faults.floods import NamesProcess
from tests.servers.serving import BrokerProcess
from txmq.protocol.bodies import Heartbeat

REPORT = """
import gc, runpy, sys
freeze = gc.freeze
def reported():
    freeze()
    print("spared", gc.get_freeze_count(), flush=True)
gc.freeze = reported
sys.argv = {arguments!r}
runpy.run_module("txmq", run_name="__main__")
"""


@pytest.mark.parametrize("kind", [BrokerProcess, NamesProcess])
def test_later_collections_skip_the_objects_of_a_started_server(tmp_path, kind):
    class Reporting(kind):
        def command(self):
            arguments = super().command()[2:]
            return [sys.executable, "-c", REPORT.format(arguments=arguments)]

    server = Reporting(tmp_path)
    try:
        server.start()
        words = server.log.read_text().partition("spared ")[2].split()
    finally:
        server.close()

    assert words, "the server was ready before its objects were spared"
    assert int(words[0]) > 20_000


def test_a_decoded_heartbeat_is_not_tracked_by_the_collector():
    beat = Heartbeat.read(
        b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":'
        b'[{"groupName":"g","subscriptionDataSet":[{"topic":"T","subString":"*"}]}]}'
    )
    consumer = beat.consumer_data_set[0]

    bodies = [beat, *beat.producer_data_set, consumer, *consumer.subscription_data_set]
    assert not any(gc.is_tracked(body) for body in bodies)
