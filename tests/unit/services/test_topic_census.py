"""Topics are counted in parts, and again only after they changed."""

from txmq.protocol.topics import topics_of_brokers
from txmq_broker.core import topics as topic_census
from txmq_broker.core.topics import TopicCensus
from txmq_broker.services.slices import whole


def test_the_census_counts_application_topics_and_dead_letter_queues(monkeypatch):
    monkeypatch.setattr(topic_census, "_AT_ONCE", 2)
    names = ["Orders", "%RETRY%g", "%DLQ%g", "broker-a", "c", "c_REPLY_TOPIC", "TBW102", "Bills"]
    looked: list[int] = []
    version = 1

    def listed():
        looked.append(version)
        return names

    own = topics_of_brokers([("broker-a", "c")])
    census = TopicCensus(lambda: version, listed, lambda: own)
    assert sum(1 for _ in census.count()) == len(names) / 2
    whole(census.count())
    assert (census.topics, census.dead, looked) == (2, ["%DLQ%g"], [1])

    names.append("New")
    version = 2
    whole(census.count())
    assert (census.topics, looked) == (3, [1, 2])
