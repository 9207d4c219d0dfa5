"""The numbers of topics and dead letters that the console's overview shows."""

from tests.running import in_loop, run_by
from txmq import Message
from txmq.client import Admin, Session
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.testing import embedded


@run_by(in_loop)
async def test_topics_and_dead_letters_are_counted_without_listing_them():
    settings = BrokerSettings(store=StoreSettings(flush="async"))
    async with embedded(settings) as broker, Session(broker.names) as session:
        admin = Admin(session)
        before = await admin.topic_count()
        for name in ("T", "U", "%DLQ%g", "%RETRY%g"):
            await admin.create_topic(name, queues=1)
        await admin.send(Message(topic="%DLQ%g", body=b"x"))
        assert (before, await admin.topic_count()) == (0, 2)
        assert await admin.dead_letter_count("broker-a") == 1
        await admin.delete_topic("U")
        assert await admin.topic_count() == 1
