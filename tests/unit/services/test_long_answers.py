"""Answers with whole tables have the same bytes in one piece and in parts."""

import asyncio

import pytest

from txmq.errors import LocalProtocolError
from txmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigs
from txmq.protocol.command import Command, answer
from txmq.remoting.dispatch import Postponed
from txmq.runtime.clock import SystemClock
from txmq_broker.services import slices as long_answers
from txmq_broker.services.slices import AT_ONCE, LongAnswers, table_answer, whole

CODE = 21


class Peer:
    is_open = True
    address = host = "203.0.113.9"

    def __init__(self):
        self.sent = []

    def send(self, frame):
        self.sent.append(frame)


def configs(count, counter=1):
    table = {f"T{number}": TopicConfig(f"T{number}") for number in range(count)}
    return TopicConfigs(DataVersion(7, counter), table)


def in_parts(request, saved):
    empty = TopicConfigs(saved.data_version)
    return table_answer(request, empty, saved.topic_config_table.items())


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, AT_ONCE + 1])
def test_an_answer_in_parts_has_the_bytes_of_one_in_one_piece(count):
    request, saved = Command(code=CODE, opaque=5), configs(count)
    assert whole(in_parts(request, saved)) == answer(request, body=saved.write())


def test_a_table_too_large_for_a_frame_is_refused(monkeypatch):
    monkeypatch.setattr(long_answers, "FRAME_BYTES_MAX", 1_000)
    with pytest.raises(LocalProtocolError, match="ask for single topics or groups"):
        whole(in_parts(Command(code=CODE), configs(20)))


def test_only_large_tables_are_answered_later():
    async def run(count):
        saved, peer, request = configs(count), Peer(), Command(code=CODE, opaque=9)
        handler = LongAnswers(SystemClock()).handler(
            CODE, lambda asked: in_parts(asked, saved), lambda: count
        )
        try:
            return handler(peer, request), peer.sent
        except Postponed as wait:
            wait.postpone(peer, request)
            while not peer.sent:
                await asyncio.sleep(0)
            return None, peer.sent

    at_once, later = asyncio.run(run(3))
    assert (at_once is not None, later) == (True, [])
    at_once, later = asyncio.run(run(3 * AT_ONCE))
    assert at_once is None
    assert later == [answer(Command(code=CODE, opaque=9), body=configs(3 * AT_ONCE).write())]
