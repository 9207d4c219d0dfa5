"""Messages are searched in all topics, step by step."""

import asyncio

import pytest

from txmq.errors import ConnectFailed, NoPermission
from txmq.ops import search as topic_search
from txmq.ops.search import HITS_MAX, search_topics


class FakeAdmin:
    """A cluster in which some topics have messages, and some refuse a search."""

    def __init__(self, having=(), refusing=(), away=()):
        self.having, self.refusing, self.away = having, refusing, away
        self.searched = []

    async def search(self, topic, text, brokers):
        self.searched.append(topic)
        if topic in self.refusing:
            raise NoPermission(f"no right to {topic}")
        if topic in self.away:
            raise ConnectFailed("away")
        return [f"{text} in {topic}"] * (topic in self.having)


@pytest.fixture
def _short_steps(monkeypatch):
    monkeypatch.setattr(topic_search, "STEP_S", 0)


def names(count):
    return [f"T{number:03}" for number in range(count)]


def step(admin, topics, after="", most=HITS_MAX):
    return asyncio.run(search_topics(admin, topics, [], "k", most, after))


@pytest.mark.usefixtures("_short_steps")
def test_steps_search_each_topic_once_even_if_topics_come_and_go():
    admin, topics = FakeAdmin(having=["T039"]), names(40)
    first = step(admin, reversed(topics))
    assert (first.searched, first.topics, first.next) == (16, 40, "T015")

    topics.remove("T015")
    second = step(admin, [*topics, "T000-new"], first.next)
    third = step(admin, topics, second.next)

    assert admin.searched == names(40)
    assert (third.messages, third.searched, third.next) == (["k in T039"], 39, "")
    assert step(admin, topics, "T999").next == ""
    assert step(admin, []).next == ""


def test_a_step_ends_with_enough_messages_or_topics(monkeypatch):
    monkeypatch.setattr(topic_search, "STEP_TOPICS_MAX", 50)
    admin = FakeAdmin(having=names(19))

    assert step(admin, names(90), most=19).next == "T031"
    assert step(admin, names(90)).next == "T049"


def test_a_refused_topic_is_skipped_and_an_unreachable_broker_ends_the_step():
    admin = FakeAdmin(having=["T002"], refusing=["T000", "T001"])
    found = step(admin, names(3))
    assert found.messages == ["k in T002"]
    assert found.note == "2 topics could not be searched; the last refusal: no right to T001"
    with pytest.raises(ConnectFailed):
        step(FakeAdmin(away=["T001"]), names(3))
