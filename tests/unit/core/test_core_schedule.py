"""When messages come that are to come later, where they wait, and who may take them back."""

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
        """Again, perhaps with other settings."""
        self.shelf.restart_cleanly()
        if settings:
            self.settings = DelaySettings(**settings)
        self._take_up()

    def postmark(self, flags=0, host=HOST):
        return (flags, NOW - 5, host, max(self.now, self.store.log.last_ms), host, 7, 0)

    def put(self, name="a", number=0, data=b"", *, flags=0, host=HOST, **wanted):
        """A message that waits: its due_time, and the message as it waits."""
        due_time = self.schedule.due_time_in(wanted, self.now)
        if not data:
            data = properties.render({"UNIQ_KEY": name, "TAGS": "t", "KEYS": "k1 k2"}).encode()
        postmark = self.postmark(flags, host)
        message = Unstored(postmark, 3, name.encode(), data)
        _, position = self.schedule.put(self.topic, number, message, due_time, self.now)
        self.shelf.flush()
        return due_time, records.unpack(self.store.log.bytes_at(position))[0]

    def deliver(self):
        """Let everything go that is due now."""
        while (due := self.delays.first(self.now)) is not None:
            self.schedule.send(due, max(self.now, self.store.log.last_ms))
            self.shelf.flush()

    def came(self, number=0, topic="T"):
        """The messages of a queue."""
        queue = self.store.queue(topic, number)
        places = [
            queue.read(offset, 1)[0][0] for offset in range(queue.min_offset, queue.max_offset)
        ]
        return [records.unpack(self.store.log.bytes_at(each))[0] for each in places]

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
    ("said", "due_time"),
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
def test_what_a_message_says_is_when_it_comes(desk, said, due_time):
    assert desk.schedule.due_time_in(said, NOW) == due_time


@pytest.mark.parametrize(
    "said",
    [
        {"DELAY": "x"},
        {"DELAY": "1.5"},
        {"DELAY": "-"},
        {"DELAY": "٣"},  # A digit, elsewhere.
        {"DELAY": "9" * 20},
        {"TIMER_DELIVER_MS": "tomorrow"},
        {"TIMER_DELIVER_MS": "9" * 19},
        {"TIMER_DELIVER_MS": str(NOW + 3 * DAY_MS + 1)},
        {"TIMER_DELAY_SEC": str(3 * 86_400 + 1)},
        {"TIMER_DELAY_MS": str(3 * DAY_MS + 1)},
    ],
    ids=str,
)
def test_what_is_no_time_or_too_far_away_is_refused(desk, said):
    with pytest.raises(MessageIllegal):
        desk.schedule.due_time_in(said, NOW)


def test_levels_may_be_longer_than_any_time_that_may_be_named():
    desk = Desk(levels="10d", longest=1.0)

    assert desk.schedule.due_time_in({"DELAY": "1"}, NOW) == DueTime(1, NOW + 10 * DAY_MS)
    desk.put(DELAY="1")
    desk.now += 10 * DAY_MS
    desk.deliver()
    assert [each.body for each in desk.came()] == [b"a"]
    desk.shelf.close()


def test_other_settings_count_for_whoever_comes_after_them(desk):
    desk.put("a", DELAY="1")
    desk.schedule.adopt(DelaySettings(levels="1h", longest=10.0))
    desk.put("b", DELAY="1")
    with pytest.raises(MessageIllegal, match="at most 10 s"):
        desk.put("c", TIMER_DELAY_SEC="11")

    desk.now += 1000
    desk.deliver()
    assert [each.body for each in desk.came()] == [b"a"]
    desk.now += 3_600_000
    desk.deliver()
    assert [each.body for each in desk.came()] == [b"a", b"b"]


# --- where ---


@pytest.mark.parametrize("level", range(1, 19))
def test_a_level_has_a_queue_of_its_own(desk, level):
    due_time, waits = desk.put(DELAY=str(level))

    assert (waits.topic, waits.queue_id, waits.queue_offset) == (SCHEDULE_TOPIC, level - 1, 0)
    assert waits.prepared_position == due_time.due_ms


@pytest.mark.parametrize(
    ("wait_s", "line"),
    [(1, 0), (60, 0), (61, 1), (600, 1), (601, 2), (3600, 2), (3601, 3), (86_400, 4), (86_401, 5)],
)
def test_those_who_wait_about_as_long_share_a_line_of_the_wheel(desk, wait_s, line):
    due_time, waits = desk.put(TIMER_DELAY_SEC=str(wait_s))

    assert (waits.topic, waits.queue_id, waits.prepared_position) == (
        WHEEL_TOPIC,
        line,
        due_time.due_ms,
    )


def test_what_waits_says_where_it_goes_and_keeps_what_it_is(desk):
    _, waits = desk.put("a", 2, flags=BOTH_V6, host=V6, DELAY="1")
    desk.now += 1000
    desk.deliver()

    (came,) = desk.came(2)
    assert came.topic == "T"
    assert came.properties == waits.properties
    named = came.property_map()
    assert (named["REAL_TOPIC"], named["REAL_QID"], named["KEYS"]) == ("T", "2", "k1 k2")
    same = ("flag", "sys_flag", "born_ms", "born_host", "store_host", "attempts", "body")
    assert [getattr(came, each) for each in same] == [getattr(waits, each) for each in same]
    assert (came.sys_flag, came.born_host, came.attempts) == (BOTH_V6, V6, 7)
    assert (came.prepared_position, came.stored_ms) == (waits.position, desk.now)
    for key in ("a", "k1", "k2"):
        assert desk.shelf.found_by_key(key) == [b"a"]
    assert desk.store.find_queue("T", 2).read(0, 1)[0][2] == ord("t")
    assert (desk.topic.put_count, desk.topic.put_bytes) == (1, 1)


def test_what_was_delayed_before_goes_where_it_is_sent_now(desk):
    data = b"REAL_QID\x017\x02UNIQ_KEY\x01a\x02REAL_TOPIC\x01Other\x02X_REAL_TOPIC\x01mine"
    _, waits = desk.put("a", 1, data, DELAY="1")

    assert waits.properties == (
        "UNIQ_KEY\x01a\x02X_REAL_TOPIC\x01mine\x02DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x011\x02"
    )
    desk.now += 1000
    desk.deliver()
    assert [each.body for each in desk.came(1)] == [b"a"]
    assert desk.came(0) == desk.came(7, "Other") == []


def test_there_must_be_room_for_where_it_goes(desk):
    room = PROPERTIES_BYTES_MAX - len(records.real_place("T", 0))
    text = b"DELAY\x011\x02UNIQ_KEY\x01a\x02X\x01"
    fits = text + b"." * (room - len(text) - 1) + b"\x02"
    desk.put("a", 0, fits, DELAY="1")
    with pytest.raises(MessageIllegal, match="its topic"):
        desk.put("b", 0, fits[:-1] + b".\x02", DELAY="1")

    desk.now += 1000
    desk.deliver()
    assert [each.body for each in desk.came()] == [b"a"]


def test_a_topic_that_is_gone_has_it_when_it_is_made_again(desk):
    desk.put("a", 3, DELAY="1")
    desk.topics.remove("T", NOW)
    desk.shelf.forget("T")
    desk.now += 1000
    desk.deliver()
    desk.restart()

    assert [each.body for each in desk.came(3)] == [b"a"]
    assert desk.shelf.found_by_key("k1") == [b"a"]


def test_a_topic_that_has_fewer_queues_now_has_it_in_its_first(desk):
    desk.put("a", 3, DELAY="1")
    desk.put("b", 1, DELAY="1")
    desk.topics.put(TopicConfig("T", 2, 2, 6), NOW)
    desk.now += 1000
    desk.deliver()

    assert [each.body for each in desk.came(0)] == [b"a"]
    assert [each.body for each in desk.came(1)] == [b"b"]
    assert desk.came(3) == []


def test_what_does_not_say_where_it_goes_is_refused(desk):
    line = desk.delays.line(0)
    desk.delays.join(
        line, NOW, Unstored(desk.postmark(), 0, b"x", b"UNIQ_KEY\x01x\x02REAL_TOPIC\x01T\x02")
    )
    desk.shelf.flush()

    with pytest.raises(CorruptRecord, match="no real topic"):
        desk.schedule.send(desk.delays.first(NOW), NOW)


# --- other levels, other clocks ---


@pytest.mark.parametrize("levels", ["5s 1s", "1h 2h 3h", "1ms 1ms", "10s"])
def test_other_levels_after_a_restart_make_nobody_early_and_lose_nobody(levels):
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
    assert sorted(each.body for each in came) == sorted(dues)
    for each in came:
        assert dues[each.body] <= each.stored_ms < dues[each.body] + 1000
    assert desk.schedule.held_back == 0
    desk.shelf.close()


def test_with_the_clock_set_back_a_level_s_messages_take_a_line_nobody_has_left(desk):
    desk.put("a", DELAY="3")
    desk.now += 10_000
    desk.deliver()
    desk.now -= 9000

    due_time, waits = desk.put("b", DELAY="1")

    assert waits.topic == SCHEDULE_TOPIC
    assert waits.prepared_position == due_time.due_ms
    due_time, waits = desk.put("c", DELAY="3")
    assert waits.topic == SCHEDULE_TOPIC  # It is due after the one that left.
    desk.now -= 20_000
    due_time, waits = desk.put("d", DELAY="3")
    assert (waits.topic, waits.queue_id, waits.prepared_position) == (
        WHEEL_TOPIC,
        0,
        due_time.due_ms,
    )
    assert desk.schedule.held_back == 0


def test_where_everybody_has_left_a_message_waits_for_the_first_of_them(desk):
    for number in range(WHEEL_LINES):
        line = desk.delays.wheel_line(number)
        desk.shelf.later(b"%d" % number, NOW + 1000 * (WHEEL_LINES - number), line)
    desk.put("level", DELAY="2")
    desk.now += 20_000
    desk.deliver()
    desk.now = NOW - 60_000

    due_time, waits = desk.put("late", DELAY="2")

    assert desk.schedule.held_back == 1
    assert waits.prepared_position == NOW + 1000 > due_time.due_ms
    assert desk.recall("late", due_time.due_ms)
    again, waits = desk.put("again", DELAY="2")
    desk.restart()
    desk.now = waits.prepared_position - 1
    desk.deliver()
    assert b"again" not in [each.body for each in desk.came()]
    desk.now += 1
    desk.deliver()
    assert [each.body for each in desk.came()][-1] == b"again"
    assert b"late" not in [each.body for each in desk.came()]


# --- recalled ---


@pytest.mark.parametrize("wanted", [{"DELAY": "5"}, {"TIMER_DELAY_SEC": "60"}], ids=str)
def test_who_is_recalled_never_comes(desk, wanted):
    due_time, _ = desk.put("a", **wanted)
    desk.put("b", **wanted)

    assert desk.recall("a", due_time.due_ms)
    assert not desk.recall("a", due_time.due_ms)  # As whoever heard no answer asks again.
    desk.restart()
    assert not desk.recall("a", due_time.due_ms)

    desk.now += 70_000
    desk.deliver()
    assert [each.body for each in desk.came()] == [b"b"]
    desk.restart()
    desk.deliver()
    assert [each.body for each in desk.came()] == [b"b"]


def test_who_was_recalled_long_ago_is_not_said_to_have_come(desk):
    due_time, _ = desk.put("a", DELAY="1")
    desk.put("b", DELAY="2")
    assert desk.recall("a", due_time.due_ms)
    desk.now += 10_000
    desk.deliver()
    desk.put("c", DELAY="1")
    desk.now += 10_000
    desk.deliver()
    for again in (desk.shelf.checkpoint, desk.restart, desk.shelf.checkpoint):
        again()

        assert not desk.recall("a", due_time.due_ms)

    desk.deliver()
    assert [each.body for each in desk.came()] == [b"b", b"c"]


def test_who_has_left_is_not_recalled_any_more(desk):
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
    assert [each.body for each in desk.came()] == [b"a"]


def test_nobody_is_recalled_by_another_s_name(desk):
    due_time, _ = desk.put("a", DELAY="3")
    desk.shelf.add(b"a", unique="a")

    for name, topic in (("b", "T"), ("a", "U"), ("k1", "T")):
        with pytest.raises(IllegalOperation, match="waits here"):
            desk.recall(name, due_time.due_ms, topic)


def test_a_clock_that_was_set_back_does_not_hide_who_waits(desk):
    desk.now += 30 * DAY_MS
    desk.shelf.put(b"x", at_ms=desk.now)
    desk.shelf.flush()
    desk.shelf.checkpoint()
    desk.now -= 30 * DAY_MS
    due_time, waits = desk.put("a", DELAY="3")
    assert waits.stored_ms == NOW + 30 * DAY_MS
    desk.shelf.checkpoint()

    assert desk.recall("a", due_time.due_ms)


def test_a_producer_that_sent_it_twice_takes_back_both(desk):
    due = str(desk.now + 60_000)
    for _ in range(3):
        desk.put("a", TIMER_DELIVER_MS=due)

    assert desk.recall("a", int(due))
    assert not desk.recall("a", int(due))

    desk.now += 60_000
    desk.deliver()
    assert desk.came() == []


def test_all_that_wait_under_one_id_are_taken_back_whatever_their_times(desk):
    """A producer that got no answer sends again, and then the delay begins anew."""
    first, _ = desk.put("a", DELAY="1")
    desk.put("a", DELAY="2")

    assert desk.recall("a", first.due_ms)

    desk.now += 10_000
    desk.deliver()
    assert desk.came() == []


@pytest.mark.parametrize("named", [0, 1])
def test_where_one_of_them_has_left_the_others_do_not_follow(desk, named):
    wishes = [desk.put("a", DELAY=level)[0] for level in ("1", "2")]
    desk.now += 1000
    desk.deliver()

    with pytest.raises(IllegalOperation, match="already"):
        desk.recall("a", wishes[named].due_ms)

    desk.now += 10_000
    desk.deliver()
    assert len(desk.came()) == 1


def test_who_waits_longer_than_anybody_may_now_can_be_recalled(desk):
    due_time, _ = desk.put("a", TIMER_DELAY_SEC="86400")
    desk.shelf.checkpoint()
    desk.now += 60_000
    desk.schedule.adopt(DelaySettings(levels="1s", longest=60.0))

    assert desk.recall("a", due_time.due_ms)


def test_a_recall_does_not_read_more_than_one_producer_sends_again(desk, monkeypatch):
    monkeypatch.setattr("txmq_broker.core.schedule.RECALLED_BYTES_MAX", 5_000)
    body = "a" * 2_000
    due_time, _ = desk.put(body, data=b"UNIQ_KEY\x01a\x02", DELAY="1")
    desk.put(body, data=b"UNIQ_KEY\x01a\x02", DELAY="1")
    assert desk.recall("a", due_time.due_ms)
    desk.put(body, data=b"UNIQ_KEY\x01a\x02", DELAY="1")

    with pytest.raises(IllegalOperation, match="too many"):
        desk.recall("a", due_time.due_ms)


def test_too_many_with_one_id_are_not_looked_at(desk, monkeypatch):
    monkeypatch.setattr("txmq_broker.core.schedule.RECALLED_TOGETHER_MAX", 2)
    due_time, _ = desk.put("a", DELAY="1")
    desk.put("a", DELAY="1")
    assert desk.recall("a", due_time.due_ms)
    desk.put("a", DELAY="1")

    with pytest.raises(IllegalOperation, match="too many"):
        desk.recall("a", due_time.due_ms)
