"""Requests served together end like requests served one by one.

The same bytes come to two brokers; one of them takes no runs. Their logs, their indexes and their
answers must be equal.
"""

import asyncio
import json
from dataclasses import asdict, dataclass
from dataclasses import replace as replace_op
from itertools import chain

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.handlers.handler_stage import SETTINGS, in_world, sending
from txmq.limits import PROPERTIES_OF_HALF_MAX, SPAN_BYTES_MAX
from txmq.protocol import command as commands
from txmq.protocol.command import BINARY, JSON, ONEWAY
from txmq.protocol.headers import EndTransaction, SendMessageV2
from txmq.protocol.record import position_in
from txmq.remoting.connection import PendingResponse
from txmq.remoting.dispatch import Dispatcher
from txmq_broker.config import CheckBackSettings, StoreSettings

GROUP = "P"
SEND, END, QUERY = 310, 37, 30
TOPICS = ("T", "U", "missing", "%RETRY%g")
_uniques = (st.integers(0, 5_000) | st.integers(0, 5)).map("U{}".format)
_spellings = st.sampled_from(["plain"] * 20 + ["blanks", "binary", "unquoted"])
_twists = st.sampled_from(
    [""] * 12 + ["group", "place", "check", "id", "no id", "no place", "long", "of answers"]
)


@dataclass(frozen=True)
class Op:
    """One request, before its numbers are known."""

    what: str
    topic: str
    queue: int
    unique: str
    number: int
    decision: int
    twist: str
    oneway: bool
    spelling: str


_ops = st.builds(
    Op,
    what=st.just(""),
    topic=st.sampled_from(TOPICS[:1] * 16 + TOPICS[1:2] * 8 + TOPICS[2:] * 2),
    queue=st.sampled_from([0] * 8 + [1] * 8 + [2, -1, 9]),
    unique=_uniques,
    number=st.integers(0, 10_000),
    decision=st.sampled_from([8] * 6 + [12] * 4 + [0, 5]),
    twist=_twists,
    oneway=st.sampled_from([True] + [False] * 7),
    spelling=_spellings,
)  # fmt: skip


_kinds = st.sampled_from(
    ["message"] * 10 + ["half"] * 20 + ["end"] * 30
    + ["batch", "delayed", "empty", "marked", "unmarked", "other group", "immune", "query"]
    + ["broken"]
)  # fmt: skip


def _block(what, ops):
    return [replace_op(op, what=what) for op in ops]


_blocks = st.builds(_block, _kinds, st.lists(_ops, min_size=3, max_size=12))
_rounds = st.lists(_blocks, min_size=3, max_size=8).map(lambda blocks: [*chain(*blocks)])


def _unique_of(op, opaque):
    """A new id, or rarely one that other requests use too."""
    return f"V{opaque}" if op.number % 8 != 7 else op.unique


def _header(op, opaque, places):
    """The code, the header and the body of a request."""
    if op.what == "query":
        return QUERY, {"topic": "T", "queueId": "0"}, b""
    if op.what == "end":
        # Most ENDs name the newest half messages, one after the other.
        newest = places[-40:] or [(0, 0, op.unique)]
        chosen, index = (newest, opaque) if op.number % 4 != 3 else (places or newest, op.number)
        offset, position, unique = chosen[index % len(chosen)]
        group = "Q" if op.twist == "group" else GROUP
        if op.twist in ("id", "no id"):
            unique = op.unique if op.twist == "id" else None
        offset += op.twist == "place"
        position += op.twist == "no place"
        is_check = op.twist == "check"
        place = (offset, position)
        return END, EndTransaction(group, *place, op.decision, is_check, unique, "t", op.topic), b""
    named = {"UNIQ_KEY": _unique_of(op, opaque), "KEYS": "k", "TAGS": "red"}
    if op.what in ("half", "marked", "other group", "immune"):
        named |= {"TRAN_MSG": "true", "PGROUP": "Q" if op.what == "other group" else GROUP}
    if op.what == "immune":
        named["CHECK_IMMUNITY_TIME_IN_SECONDS"] = "60"
    if op.what == "delayed":
        named["DELAY"] = "3"
    if op.twist == "long":
        named["x"] = "x" * (40_000 if op.number % 2 else PROPERTIES_OF_HALF_MAX)
    header = sending(op.topic, queue=op.queue, shape=SendMessageV2, **named)
    header.producer_group = "P\x07" if op.twist == "group" else GROUP
    header.sys_flag = 4 if op.what in ("half", "unmarked", "other group", "immune") else 0
    header.batch = op.what == "batch"
    return SEND, header, b"" if op.what == "empty" else b"body of " + op.unique.encode()


def _frame(op, opaque, places):
    code, header, body = _header(op, opaque, places)
    flag = ONEWAY if op.oneway else 0
    if op.twist == "of answers" and op.oneway:
        flag = 1  # It claims to be an answer that nobody waits for.
    kind = BINARY if op.spelling == "binary" and op.what != "broken" else JSON
    frame = commands.encode(code, opaque, header, body=body, flag=flag, kind=kind)
    if op.spelling in ("plain", "binary") and op.what != "broken":
        return frame
    ((_, text, body),) = commands.FrameReader().feed(frame)
    if op.what == "broken":
        # A field of the wrong type: an answer says so, and the connection stays.
        text = text.replace(b'"h":"7"', b'"h":"seven"')
    elif op.spelling == "blanks":
        text = json.dumps(json.loads(text)).encode()
    else:
        value = json.loads(text)
        fields = value["extFields"]
        value["extFields"] = {
            name: int(field) if field.isdecimal() else field for name, field in fields.items()
        }
        text = json.dumps(value, separators=(",", ":")).encode()
    return commands.frame(JSON, text, body)


class _Outcome:
    """The answers and files of a broker."""

    def __init__(self):
        self.answers = []
        self.kept = None


def _serve(rounds, pending_max, segment_size):
    outcome = _Outcome()

    async def main(stage):
        client = await stage.client()
        await client.topic("T", 3)
        await client.topic("U", 2)
        await client.beat(producers=[GROUP])
        places = []
        for ops in rounds:
            waiting, frames = [], []
            for op in ops:
                opaque = client.connection.number()
                frames.append(_frame(op, opaque, places))
                if not op.oneway:
                    future = asyncio.get_running_loop().create_future()
                    client.connection._exchange.add(opaque, PendingResponse(future), 1e9)
                    future.add_done_callback(lambda done: outcome.answers.append(_seen(done)))
                    waiting.append(future)
            client.connection.send(b"".join(frames))
            for op, answer in zip(
                [op for op in ops if not op.oneway], await asyncio.gather(*waiting), strict=True
            ):
                fields = answer.field_map() if answer.code == 0 else {}
                if op.what == "half" and "msgId" in fields:
                    place = int(fields["queueOffset"]), position_in(fields["msgId"])
                    places.append((*place, _unique_of(op, answer.opaque)))
            await stage.passes(1.0)
        outcome.kept = _kept(stage.broker)

    in_world(
        main,
        replace(
            SETTINGS,
            store=StoreSettings(flush="async", segment_size=segment_size),
            transaction=CheckBackSettings(pending_max=pending_max, timeout=1000.0),
        ),
    )
    return outcome


def _seen(done):
    answer = done.result()
    return answer.opaque, answer.code, answer.remark, answer.field_map(), answer.body


def _kept(broker):
    """Copies: a stop changes these in place."""
    store, halves = broker.store, broker.store.halves
    log, pending, keys = store.log, halves.pending, store.queues.keys
    queues = {(queue.topic, queue.number): queue for queue in store.queues.all_queues()}
    puts = {topic.name: (topic.put_count, topic.put_bytes) for topic in broker.topics}
    return {
        "log": [log.read(extent.start, extent.end - extent.start)
                for extent in log.segments.extents()],
        "queues": {name: (queue.read(0, 1000), queue.next_offset)
                   for name, queue in queues.items()},
        "open": [pending.unpack(data).position for data in pending.table.values()],
        "owners": sorted(pending.owner_uses.values()),
        "decided": sorted((halves.recent | halves.older).values()),
        "unfinished": [{*halves.opening}, {*halves.closing}, {*halves.parking}],
        "changes": [[*pending.opened], [*pending.closings], [*pending.closed]],
        "keys": [[*keys._hashes], [*keys._positions]],
        "puts": puts,
        "tally": asdict(broker.transactions.tally),
        "figures": broker._flusher.figures(),
    }  # fmt: skip


_SMALL = 2 * SPAN_BYTES_MAX
"""In files of this size no marker shows a half message; each is copied."""


@pytest.mark.slow
@settings(max_examples=40, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    rounds=st.lists(_rounds, min_size=3, max_size=4),
    pending_max=st.sampled_from([1000, 1000, 30]),
    segment_size=st.sampled_from([_SMALL, 64 * _SMALL]),
)
def test_requests_served_together_and_one_by_one_end_alike(rounds, pending_max, segment_size):
    together = _serve(rounds, pending_max, segment_size)
    whole = Dispatcher.run_codes
    Dispatcher.run_codes = ()
    try:
        alone = _serve(rounds, pending_max, segment_size)
    finally:
        Dispatcher.run_codes = whole

    assert together.answers == alone.answers
    for name, kept in alone.kept.items():
        assert together.kept[name] == kept, name
