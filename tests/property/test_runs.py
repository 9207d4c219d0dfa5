"""Requests that are served together end as those that are served one by one.

The same bytes come to two brokers; one of them takes no runs. Their logs, their indexes and their
answers must be equal.
"""

import asyncio
import json
from dataclasses import asdict, dataclass

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.handlers.handler_stage import SETTINGS, in_world, sending
from txmq.limits import SPAN_BYTES_MAX
from txmq.protocol import command as commands
from txmq.protocol.command import BINARY, JSON, ONEWAY
from txmq.protocol.headers import EndTransaction, SendMessageV2
from txmq.protocol.record import position_in
from txmq.remoting.dispatch import Dispatcher
from txmq.remoting.exchange import PendingResponse
from txmq_broker.config import CheckBackSettings, StoreSettings

GROUP = "P"
SEND, END, QUERY = 310, 37, 30
TOPICS = ("T", "U", "missing", "%RETRY%g")
_uniques = st.integers(0, 5).map("U{}".format)
_spellings = st.sampled_from(["plain"] * 6 + ["blanks", "binary", "unquoted"])


@dataclass(frozen=True)
class Op:
    """One request, before its numbers are known."""

    what: str
    topic: str
    queue: int
    unique: str
    number: int
    oneway: bool
    spelling: str


_ops = st.builds(
    Op,
    what=st.sampled_from(
        ["message"] * 6 + ["half"] * 6 + ["end"] * 10
        + ["batch", "delayed", "empty", "long", "marked"]
        + ["other group", "immune", "query", "broken"]
    ),
    topic=st.sampled_from(TOPICS[:1] * 6 + TOPICS[1:2] * 3 + TOPICS[2:]),
    queue=st.sampled_from([0, 0, 1, 1, 2, -1, 9]),
    unique=_uniques,
    number=st.integers(0, 12),
    oneway=st.booleans().map(lambda one: one) | st.just(False),
    spelling=_spellings,
)  # fmt: skip


def _header(op, places):
    """The code, the header and the body of a request."""
    if op.what == "query":
        return QUERY, {"topic": "T", "queueId": "0"}, b""
    if op.what == "end":
        offset, position = places[op.number % len(places)] if places else (0, 0)
        what = (8, 8, 8, 12, 12, 0, 5)[op.number % 7]
        group = "Q" if op.number == 11 else GROUP
        unique = None if op.number == 12 else op.unique
        place = (offset, position + (op.number == 10))
        return END, EndTransaction(group, *place, what, op.number == 9, unique, "t", op.topic), b""
    named = {"UNIQ_KEY": op.unique, "KEYS": "k", "TAGS": "red"}
    if op.what in ("half", "marked", "other group", "immune"):
        named |= {"TRAN_MSG": "true", "PGROUP": "Q" if op.what == "other group" else GROUP}
    if op.what == "immune":
        named["CHECK_IMMUNITY_TIME_IN_SECONDS"] = "60"
    if op.what == "delayed":
        named["DELAY"] = "3"
    if op.what == "long":
        named["x"] = "x" * 40_000
    header = sending(op.topic, queue=op.queue, shape=SendMessageV2, **named)
    header.producer_group = GROUP
    header.sys_flag = 4 if op.what in ("half", "other group", "immune") else 0
    header.batch = op.what == "batch"
    return SEND, header, b"" if op.what == "empty" else b"body of " + op.unique.encode()


def _frame(op, opaque, places):
    code, header, body = _header(op, places)
    flag = ONEWAY if op.oneway else 0
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
    """What a broker has answered and kept."""

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
                    places.append((int(fields["queueOffset"]), position_in(fields["msgId"])))
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
        "unfinished": [halves.opening, halves.closing, halves.parking],
        "changes": [pending.opened, pending.closings, pending.closed],
        "keys": [keys._hashes, keys._positions],
        "puts": puts,
        "tally": asdict(broker.coordinator.tally),
        "figures": broker._flusher.figures(),
    }  # fmt: skip


_SMALL = 2 * SPAN_BYTES_MAX
"""In files of this size no marker shows a half message; each is copied."""


@settings(max_examples=60, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    rounds=st.lists(st.lists(_ops, min_size=1, max_size=90), min_size=1, max_size=4),
    pending_max=st.sampled_from([3, 1000]),
    segment_size=st.sampled_from([_SMALL, 64 * _SMALL]),
)
def test_requests_end_alike_together_and_one_by_one(rounds, pending_max, segment_size):
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
