"""When delayed messages are delivered, where they wait, and who can recall them."""

import pytest

from tests.unit.store.delay_shelf import DelayShelf
from tests.unit.store.shelf import HOST, START_MS, Sizes
from txmq.errors import CorruptRecord, IllegalOperation, MessageIllegal
from txmq.limits import PROPERTIES_BYTES_MAX
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.bodies import TopicConfig, TopicConfigs
from txmq.protocol.record import host_bytes
from txmq.protocol.topics import SCHEDULE_TOPIC, WHEEL_TOPIC
from txmq_broker.config import BrokerSettings, DelaySettings, TopicDefaults
from txmq_broker.core.schedule import DueTime, Schedule
from txmq_broker.core.topics import Topics, system_topics
from txmq_broker.store.delay_lines import WHEEL_LINES
from txmq_broker.store.delay_store import Unstored

NOW = START_MS + 1_000_000
DAY_MS = 86_400_000
V6 = host_bytes("fd00::1", 10911)
BOTH_V6 = 0x30
LEVELS = DelaySettings().levels
BIG = b"x" * 1500


class Desk:
    """A schedule over a small store, whose clock stands still unless it is set."""

    def __init__(self, levels=LEVELS, longest=3 * 86_400.0, queues=4):
        self.shelf = DelayShelf(sizes=Sizes())
        self.settings = DelaySettings(levels=levels, longest=longest)
        self.now = NOW
        self.queues = queues
        self._take_up()

    def _take_up(self):
        self.store = self.shelf.store
        self.delays = self.store.delays
        self.topics = Topics(self.store, TopicDefaults())
        broker = BrokerSettings(delay=self.settings)
        self.topics.load(TopicConfigs(), system_topics(broker))
        self.schedule = Schedule(self.store, self.topics, self.settings)
        self.topic = self.topics.put(TopicConfig("T", self.queues, self.queues, 6), NOW)

    def restart(self, **settings):
        """Restart, optionally with other settings."""
        self.shelf.restart_cleanly()
        if settings:
            self.settings = DelaySettings(**settings)
        self._take_up()

    def postmark(self, flags=0, host=HOST):
        return (flags, NOW - 5, host, max(self.now, self.store.log.last_ms), host, 7, 0)

    def put(self, name="a", number=0, data=b"", *, flags=0, host=HOST, **wanted):
        """Store a delayed message; return its due time and the record that waits."""
        due_time = self.schedule.due_time_in(wanted, self.now)
        if not data:
            data = properties.render({"UNIQ_KEY": name, "TAGS": "t", "KEYS": "k1 k2"}).encode()
        postmark = self.postmark(flags, host)
        message = Unstored(postmark, 3, name.encode(), data)
        _, position = self.schedule.put(self.topic.name, number, message, due_time, self.now)
        self.shelf.flush()
        return due_time, records.unpack(self.store.log.bytes_at(position))[0]

    def deliver(self, after_ms=0):
        """Deliver everything that is due then."""
        self.now += after_ms
        while (due := self.delays.first(self.now)) is not None:
            self.schedule.send(due, max(self.now, self.store.log.last_ms))
            self.shelf.flush()

    def came(self, number=0, topic="T"):
        """The messages of a queue."""
        queue = self.store.queue(topic, number)
        places = [
            queue.read(offset, 1)[0][0] for offset in range(queue.min_offset, queue.max_offset)
        ]
        return [records.unpack(self.store.log.bytes_at(position))[0] for position in places]

    def bodies(self, number=0):
        return [message.body for message in self.came(number)]

    def recall(self, name, due_ms, topic="T"):
        waiting = self.schedule.find(topic, name)
        is_news = self.schedule.recall(waiting, self.postmark())
        self.shelf.flush()
        return is_news


@pytest.fixture
def desk():
    desk = Desk()
    yield desk
    desk.shelf.close()


# --- when ---


@pytest.mark.parametrize(
    ("props", "due_time"),
    [
        ({}, None),
        ({"PGROUP": "p"}, None),
        ({"DELAY": "0"}, None),
        ({"DELAY": ""}, None),
        ({"DELAY": "-1"}, None),
        ({"DELAY": "1"}, DueTime(1, NOW + 1000)),
        ({"DELAY": "18"}, DueTime(18, NOW + 7_200_000)),
        ({"DELAY": "19"}, DueTime(18, NOW + 7_200_000)),
        ({"DELAY": "9" * 19}, DueTime(18, NOW + 7_200_000)),
        ({"DELAY": "2", "TIMER_DELIVER_MS": str(NOW + 9)}, DueTime(2, NOW + 5000)),
        ({"DELAY": "0", "TIMER_DELIVER_MS": str(NOW + 9)}, DueTime(0, NOW + 9)),
        ({"TIMER_DELIVER_MS": str(NOW)}, None),
        ({"TIMER_DELIVER_MS": "-5"}, None),
        ({"TIMER_DELAY_SEC": "7"}, DueTime(0, NOW + 7000)),
        ({"TIMER_DELAY_SEC": "-7"}, None),
        ({"TIMER_DELAY_MS": "7"}, DueTime(0, NOW + 7)),
        ({"TIMER_DELAY_MS": "0"}, None),
        ({"TIMER_DELAY_SEC": "7", "TIMER_DELAY_MS": "9"}, DueTime(0, NOW + 7000)),
        ({"TIMER_DELIVER_MS": str(NOW + 3 * DAY_MS)}, DueTime(0, NOW + 3 * DAY_MS)),
    ],
    ids=str,
)
def test_the_properties_of_a_message_set_its_due_time(desk, props, due_time):
    assert desk.schedule.due_time_in(props, NOW) == due_time


@pytest.mark.parametrize(
    "props",
    [
        {"DELAY": "x"},
        {"DELAY": "1.5"},
        {"DELAY": "-"},
        {"DELAY": "٣"},  # A digit of another script.
        {"DELAY": "9" * 20},
        {"TIMER_DELIVER_MS": "tomorrow"},
        {"TIMER_DELIVER_MS": "9" * 19},
        {"TIMER_DELIVER_MS": str(NOW + 3 * DAY_MS + 1)},
        {"TIMER_DELAY_SEC": str(3 * 86_400 + 1)},
        {"TIMER_DELAY_MS": str(3 * DAY_MS + 1)},
    ],
    ids=str,
)
def test_an_invalid_or_too_distant_due_time_is_refused(desk, props):
    with pytest.raises(MessageIllegal):
        desk.schedule.due_time_in(props, NOW)


def test_delay_levels_can_exceed_the_longest_timer():
    desk = Desk(levels="10d", longest=1.0)

    assert desk.schedule.due_time_in({"DELAY": "1"}, NOW) == DueTime(1, NOW + 10 * DAY_MS)
    desk.put(DELAY="1")
    desk.now += 10 * DAY_MS
    desk.deliver()
    assert desk.bodies() == [b"a"]
    desk.shelf.close()


def test_changed_settings_apply_to_later_messages_only(desk):
    desk.put("a", DELAY="1")
    desk.schedule.adopt(DelaySettings(levels="1h", longest=10.0))
    desk.put("b", DELAY="1")
    with pytest.raises(MessageIllegal, match="at most 10 s"):
        desk.put("c", TIMER_DELAY_SEC="11")

    desk.deliver(after_ms=1000)
    assert desk.bodies() == [b"a"]
    desk.deliver(after_ms=3_600_000)
    assert desk.bodies() == [b"a", b"b"]


# --- where ---


@pytest.mark.parametrize("level", range(1, 19))
def test_each_delay_level_has_its_own_queue(desk, level):
    due_time, waits = desk.put(DELAY=str(level))

    assert (waits.topic, waits.queue_id, waits.queue_offset) == (SCHEDULE_TOPIC, level - 1, 0)
    assert waits.prepared_position == due_time.due_ms


@pytest.mark.parametrize(
    ("wait_s", "line"),
    [(1, 0), (60, 0), (61, 1), (600, 1), (601, 2), (3600, 2), (3601, 3), (86_400, 4), (86_401, 5)],
)
def test_timed_messages_of_similar_delay_share_a_queue_of_the_wheel(desk, wait_s, line):
    due_time, waits = desk.put(TIMER_DELAY_SEC=str(wait_s))

    assert (waits.topic, waits.queue_id) == (WHEEL_TOPIC, line)
    assert waits.prepared_position == due_time.due_ms


def test_a_waiting_message_names_its_destination_and_keeps_its_fields(desk):
    _, waits = desk.put("a", 2, flags=BOTH_V6, host=V6, DELAY="1")
    desk.deliver(after_ms=1000)

    (came,) = desk.came(2)
    assert came.topic == "T"
    assert came.properties == waits.properties
    named = came.property_map()
    assert (named["REAL_TOPIC"], named["REAL_QID"], named["KEYS"]) == ("T", "2", "k1 k2")
    same = ("flag", "sys_flag", "born_ms", "born_host", "store_host", "attempts", "body")
    assert [getattr(came, field) for field in same] == [getattr(waits, field) for field in same]
    assert (came.sys_flag, came.born_host, came.attempts) == (BOTH_V6, V6, 7)
    assert (came.prepared_position, came.stored_ms) == (waits.position, desk.now)
    for key in ("a", "k1", "k2"):
        assert desk.shelf.found_by_key(key) == [b"a"]
    assert desk.store.find_queue("T", 2).read(0, 1)[0][2] == ord("t")
    assert (desk.topic.put_count, desk.topic.put_bytes) == (1, 1)


def test_stale_destination_properties_of_a_message_are_replaced(desk):
    data = b"REAL_QID\x017\x02UNIQ_KEY\x01a\x02REAL_TOPIC\x01Other\x02X_REAL_TOPIC\x01mine"
    _, waits = desk.put("a", 1, data, DELAY="1")

    assert waits.properties == (
        "UNIQ_KEY\x01a\x02X_REAL_TOPIC\x01mine\x02DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x011\x02"
    )
    desk.deliver(after_ms=1000)
    assert desk.bodies(1) == [b"a"]
    assert desk.came(0) == desk.came(7, "Other") == []


def test_a_message_without_room_for_its_destination_is_refused(desk):
    room = PROPERTIES_BYTES_MAX - len(records.real_place("T", 0))
    text = b"DELAY\x011\x02UNIQ_KEY\x01a\x02X\x01"
    fits = text + b"." * (room - len(text) - 1) + b"\x02"
    desk.put("a", 0, fits, DELAY="1")
    with pytest.raises(MessageIllegal, match="its topic"):
        desk.put("b", 0, fits[:-1] + b".\x02", DELAY="1")

    desk.deliver(after_ms=1000)
    assert desk.bodies() == [b"a"]


def test_a_due_message_of_a_deleted_topic_is_kept_for_its_recreation(desk):
    desk.put("a", 3, DELAY="1")
    desk.topics.remove("T", NOW)
    desk.shelf.forget("T")
    desk.deliver(after_ms=1000)
    desk.restart()

    assert desk.bodies(3) == [b"a"]
    assert desk.shelf.found_by_key("k1") == [b"a"]


def test_a_due_message_of_a_removed_queue_goes_to_the_first_queue(desk):
    desk.put("a", 3, DELAY="1")
    desk.put("b", 1, DELAY="1")
    desk.topics.put(TopicConfig("T", 2, 2, 6), NOW)
    desk.deliver(after_ms=1000)

    assert desk.bodies(0) == [b"a"]
    assert desk.bodies(1) == [b"b"]
    assert desk.came(3) == []


def test_a_waiting_message_without_a_destination_is_reported_as_damage(desk):
    line = desk.delays.line(0)
    desk.delays.join(
        line, NOW, Unstored(desk.postmark(), 0, b"x", b"UNIQ_KEY\x01x\x02REAL_TOPIC\x01T\x02")
    )
    desk.shelf.flush()

    with pytest.raises(CorruptRecord, match="no real topic"):
        desk.schedule.send(desk.delays.first(NOW), NOW)


# --- other levels, other clocks ---


@pytest.mark.parametrize("levels", ["5s 1s", "1h 2h 3h", "1ms 1ms", "10s"])
def test_delay_levels_changed_at_a_restart_deliver_none_early_and_lose_none(levels):
    desk = Desk(levels="10s 20s 30s")
    dues = {}
    for round_ in range(3):
        for level in (1, 2, 3):
            name = f"{round_}-{level}"
            dues[name.encode()] = desk.put(name, DELAY=str(level))[0].due_ms
            desk.now += 700
            desk.deliver()
        desk.restart(levels=(levels, "10s 20s 30s")[round_ % 2])
    for _ in range(12_000):
        desk.now += 1000
        desk.deliver()

    came = desk.came()
    assert sorted(message.body for message in came) == sorted(dues)
    for message in came:
        assert dues[message.body] <= message.stored_ms < dues[message.body] + 1000
    assert desk.schedule.held_back == 0
    desk.shelf.close()


def test_with_the_clock_set_back_messages_wait_in_a_line_that_still_takes_them(desk):
    desk.put("a", DELAY="3")
    desk.deliver(after_ms=10_000)
    desk.now -= 9000

    due_time, waits = desk.put("b", DELAY="1")

    assert waits.topic == SCHEDULE_TOPIC
    assert waits.prepared_position == due_time.due_ms
    due_time, waits = desk.put("c", DELAY="3")
    assert waits.topic == SCHEDULE_TOPIC  # It is due after the one that left.
    desk.now -= 20_000
    due_time, waits = desk.put("d", DELAY="3")
    assert (waits.topic, waits.queue_id) == (WHEEL_TOPIC, 0)
    assert waits.prepared_position == due_time.due_ms
    assert desk.schedule.held_back == 0


def test_with_the_clock_far_back_a_message_is_held_back_until_a_line_takes_it(desk):
    for number in range(WHEEL_LINES):
        line = desk.delays.wheel_line(number)
        desk.shelf.later(b"%d" % number, NOW + 1000 * (WHEEL_LINES - number), line)
    desk.put("level", DELAY="2")
    desk.deliver(after_ms=20_000)
    desk.now = NOW - 60_000

    due_time, waits = desk.put("late", DELAY="2")

    assert desk.schedule.held_back == 1
    assert waits.prepared_position == NOW + 1000 > due_time.due_ms
    assert desk.recall("late", due_time.due_ms)
    again, waits = desk.put("again", DELAY="2")
    desk.restart()
    desk.now = waits.prepared_position - 1
    desk.deliver()
    assert b"again" not in desk.bodies()
    desk.deliver(after_ms=1)
    assert desk.bodies()[-1] == b"again"
    assert b"late" not in desk.bodies()


# --- recalled ---


@pytest.mark.parametrize("wanted", [{"DELAY": "5"}, {"TIMER_DELAY_SEC": "60"}], ids=str)
def test_a_recalled_message_is_never_delivered(desk, wanted):
    due_time, _ = desk.put("a", **wanted)
    desk.put("b", **wanted)

    assert desk.recall("a", due_time.due_ms)
    assert not desk.recall("a", due_time.due_ms)  # A producer that got no answer asks again.
    desk.restart()
    assert not desk.recall("a", due_time.due_ms)

    desk.deliver(after_ms=70_000)
    assert desk.bodies() == [b"b"]
    desk.restart()
    desk.deliver()
    assert desk.bodies() == [b"b"]


def test_a_recall_repeated_long_after_is_not_refused_as_delivered(desk):
    due_time, _ = desk.put("a", DELAY="1")
    desk.put("b", DELAY="2")
    assert desk.recall("a", due_time.due_ms)
    desk.deliver(after_ms=10_000)
    desk.put("c", DELAY="1")
    desk.deliver(after_ms=10_000)
    for again in (desk.shelf.checkpoint, desk.restart, desk.shelf.checkpoint):
        again()

        assert not desk.recall("a", due_time.due_ms)

    desk.deliver()
    assert desk.bodies() == [b"b", b"c"]


def test_a_delivered_message_cannot_be_recalled(desk):
    due_time, _ = desk.put("a", DELAY="1")
    desk.now += 1000
    desk.schedule.send(desk.delays.first(desk.now), desk.now)

    for _ in range(2):
        with pytest.raises(IllegalOperation, match="already"):
            desk.recall("a", due_time.due_ms)
        desk.shelf.flush()
    desk.restart()
    with pytest.raises(IllegalOperation, match="already"):
        desk.recall("a", due_time.due_ms)
    assert desk.bodies() == [b"a"]


def test_a_recall_with_another_id_or_topic_is_refused(desk):
    due_time, _ = desk.put("a", DELAY="3")
    desk.shelf.add(b"a", unique="a")

    for name, topic in (("b", "T"), ("a", "U"), ("k1", "T")):
        with pytest.raises(IllegalOperation, match="waits here"):
            desk.recall(name, due_time.due_ms, topic)


def test_a_clock_set_back_does_not_hide_a_waiting_message_from_its_recall(desk):
    desk.now += 30 * DAY_MS
    desk.shelf.put(b"x", at_ms=desk.now)
    desk.shelf.flush()
    desk.shelf.checkpoint()
    desk.now -= 30 * DAY_MS
    due_time, waits = desk.put("a", DELAY="3")
    assert waits.stored_ms == NOW + 30 * DAY_MS
    desk.shelf.checkpoint()

    assert desk.recall("a", due_time.due_ms)


def test_a_recall_takes_back_all_copies_of_a_message(desk):
    due = str(desk.now + 60_000)
    for _ in range(3):
        desk.put("a", TIMER_DELIVER_MS=due)

    assert desk.recall("a", int(due))
    assert not desk.recall("a", int(due))

    desk.deliver(after_ms=60_000)
    assert desk.came() == []


def test_a_recall_takes_back_copies_with_different_due_times(desk):
    """A producer that got no answer sends again, and then the delay begins anew."""
    first, _ = desk.put("a", DELAY="1")
    desk.put("a", DELAY="2")

    assert desk.recall("a", first.due_ms)

    desk.deliver(after_ms=10_000)
    assert desk.came() == []


@pytest.mark.parametrize("named", [0, 1])
def test_a_recall_after_one_copy_was_delivered_is_refused_and_stops_the_others(desk, named):
    wishes = [desk.put("a", DELAY=level)[0] for level in ("1", "2")]
    desk.deliver(after_ms=1000)

    with pytest.raises(IllegalOperation, match="already"):
        desk.recall("a", wishes[named].due_ms)

    desk.deliver(after_ms=10_000)
    assert len(desk.came()) == 1


def test_a_message_beyond_a_lowered_longest_delay_can_be_recalled(desk):
    due_time, _ = desk.put("a", TIMER_DELAY_SEC="86400")
    desk.shelf.checkpoint()
    desk.now += 60_000
    desk.schedule.adopt(DelaySettings(levels="1s", longest=60.0))

    assert desk.recall("a", due_time.due_ms)


@pytest.mark.parametrize(
    ("limit", "most", "body"),
    [("RECALLED_BYTES_MAX", 5_000, "a" * 2_000), ("RECALLED_TOGETHER_MAX", 2, "a")],
    ids=["bytes", "messages"],
)
def test_a_recall_of_too_much_with_one_id_is_refused(desk, monkeypatch, limit, most, body):
    monkeypatch.setattr(f"txmq_broker.core.schedule.{limit}", most)
    due_time, _ = desk.put(body, data=b"UNIQ_KEY\x01a\x02", DELAY="1")
    desk.put(body, data=b"UNIQ_KEY\x01a\x02", DELAY="1")
    assert desk.recall("a", due_time.due_ms)
    desk.put(body, data=b"UNIQ_KEY\x01a\x02", DELAY="1")

    with pytest.raises(IllegalOperation, match="too many"):
        desk.recall("a", due_time.due_ms)
