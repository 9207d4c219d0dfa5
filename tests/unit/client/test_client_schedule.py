"""When periodic messages are sent, and with which key."""

import asyncio
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from tests.unit.client.consumer_stage import acting
from txmq.client.observe.worker_process import CURRENT, WorkerProcess
from txmq.client.schedule import SCHEDULED_AT, Daily, Interval, timetable_of
from txmq.errors import ConfigError, UsageError


def ms(*parts, zone=UTC):
    return int(datetime(*parts, tzinfo=zone).timestamp() * 1000)


def test_intervals_are_multiples_since_1970_for_every_process():
    assert Interval(60_000).next_ms(ms(2026, 11, 28, 15, 0, 1)) == ms(2026, 11, 28, 15, 1)
    assert Interval(60_000).next_ms(ms(2026, 11, 28, 15, 1)) == ms(2026, 11, 28, 15, 2)


@pytest.mark.parametrize(
    ("after", "following"),
    [
        ((2026, 3, 28, 1, 0), (2026, 3, 28, 2, 30)),
        ((2026, 3, 28, 2, 30), (2026, 3, 29, 3, 30)),  # 02:30 does not exist on that day.
        ((2026, 3, 29, 3, 30), (2026, 3, 30, 2, 30)),
        ((2026, 12, 31, 23, 0), (2027, 1, 1, 2, 30)),
    ],
)
def test_a_daily_time_follows_its_time_zone(after, following):
    berlin = ZoneInfo("Europe/Berlin")
    daily = timetable_of(None, "02:30", berlin)

    assert daily.next_ms(ms(*after, zone=berlin)) == ms(*following, zone=berlin)


def test_a_daily_time_that_occurs_twice_on_one_day_is_used_once():
    berlin = ZoneInfo("Europe/Berlin")
    daily = timetable_of(None, "02:30", berlin)
    first = daily.next_ms(ms(2026, 10, 25, 0, 0, zone=berlin))

    assert isinstance(daily, Daily)
    assert daily.next_ms(first) == ms(2026, 10, 26, 2, 30, zone=berlin)


@pytest.mark.parametrize(
    ("interval", "daily"),
    [(None, None), (60, "02:00"), (0, None), (float("nan"), None), (None, "24:00"), (None, "2")],
)
def test_ambiguous_or_invalid_times_are_refused(interval, daily):
    with pytest.raises((UsageError, ConfigError)):
        timetable_of(interval, daily, UTC)


class Counted:
    def __init__(self):
        self.outcomes = []

    def before(self, group, messages):
        raise AssertionError("there is no handler")

    def sent(self, schedule, *, has_failed):
        self.outcomes.append((schedule, has_failed))


async def messages_of(stage, number, counted):
    """The messages that one process of a worker sends in two and a half minutes."""
    CURRENT.set(WorkerProcess(number, 1.0, counted))
    client = stage.client(f"process-{number}")

    @client.every(topic="T", interval=60, name="ping", tags="Tick")
    async def ping(moment):
        return {"at": moment.isoformat()}

    @client.every(topic="T", interval=60)
    async def nothing():
        return None

    async with client:
        await asyncio.sleep(150)
        (queue,) = (await client.admin.route("T")).readable
        return (await client.admin.pull(queue, 0)).messages


@acting()
async def test_only_the_first_process_sends_and_once_per_scheduled_time(stage):
    counted = Counted()
    assert not await messages_of(stage, 2, counted)
    sent = await messages_of(stage, 1, counted)

    assert 2 <= len(sent) <= 3
    for message in sent:
        at_ms = int(message.properties[SCHEDULED_AT])
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        assert at.second == 0
        assert message.keys == (f"ping@{at:%Y-%m-%dT%H:%M:%SZ}",)
        assert message.tags == "Tick"
        assert message.body == f'{{"at":"{at.isoformat()}"}}'.encode()
        assert 0 <= message.born_ms - at_ms < 1_000
    assert len({message.key for message in sent}) == len(sent)
    assert counted.outcomes == [("ping", False)] * len(sent)


def test_a_schedule_needs_a_unique_name_and_a_function_of_at_most_the_time():
    from txmq import Client

    client = Client("127.0.0.1:9876")
    with pytest.raises(UsageError, match="name without blanks"):
        client.every(topic="T", interval=1)(lambda: None)
    with pytest.raises(UsageError, match="scheduled time, or nothing"):
        client.every(topic="T", interval=1, name="two")(lambda one, two: None)
    client.every(topic="T", interval=1, name="one")(lambda: None)
    with pytest.raises(UsageError, match="has a schedule one already"):
        client.every(topic="T", interval=1, name="one")(lambda: None)
