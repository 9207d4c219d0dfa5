"""The rows of a broker's log match what happened at the broker."""

import asyncio
import inspect
from dataclasses import replace

from tests.reconcile.log_stage import Taken, dump, order, read_log
from txmq import (
    Client,
    ConsumerSettings,
    LocalTransactionState,
    Message,
    Producer,
    PushConsumer,
    StartFrom,
    TransactionListener,
    TransactionProducer,
)
from txmq.reconcile.rules import Constant, DayWindow, Flow
from txmq.settings.units import Duration
from txmq.testing import World
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, CheckBackSettings, StoreSettings
from txmq_broker.testing import settings_for_test

SEEDS = CheckBackSettings(timeout=Duration(20), check_interval=Duration(10), check_max=2)
STATE = LocalTransactionState


class Bank(TransactionListener):
    """The tag says what becomes of a message, and what a check says."""

    async def execute_local_transaction(self, message, arg):
        return {"yes": STATE.COMMIT, "no": STATE.ROLLBACK}.get(message.tags, STATE.UNKNOWN)

    async def check_local_transaction(self, message):
        return STATE.COMMIT if message.tags == "asked" else STATE.UNKNOWN


class Stage:
    def __init__(self, world, broker, client, directory):
        self.world, self.broker, self.client, self.directory = world, broker, client, directory
        self.admin = client.admin
        self.desk = world.machine("desk")

    def ports(self):
        return {name: getattr(self.desk, name) for name in ("network", "clock", "entropy")}

    def now_ms(self):
        return self.desk.clock.wall_ms()

    def transactions(self):
        return TransactionProducer("payers", self.broker.names, Bank(), **self.ports())

    def producer(self):
        return Producer("writers", self.broker.names, **self.ports())

    def taken(self, **how):
        data = dump(self.broker.disk, self.directory / "copy")
        return Taken(data, **how)


def staged(scenario):
    """A real broker in a world where minutes take no time; its files are copied."""

    def test(tmp_path):
        with World(1) as world:
            world.run(on_stage(world, tmp_path), timeout=3600.0)

    async def on_stage(world, tmp_path):
        server, desk = world.machine("server"), world.machine("desk")
        places = {"listen": f"{server.address}:10911", "names_listen": f"{server.address}:9876"}
        settings = BrokerSettings(transaction=SEEDS, **places)
        ports = {"clock": server.clock, "network": server.network, "entropy": server.entropy}
        async with (
            Broker(settings, disk=server.disk, **ports) as broker,
            Client(broker.names, None, desk.network, desk.clock, desk.entropy) as client,
        ):
            await client.admin.create_group("ccb")
            await scenario(Stage(world, broker, client, tmp_path))

    test.__name__, test.__doc__ = scenario.__name__, inspect.getdoc(scenario)
    return test


def transfer(key, tags="", **more):
    return Message(topic="Transfers", body=order(key, **more), tags=tags, keys=(key,))


@staged
async def test_each_transaction_has_its_outcome_and_who_decided_it(stage):
    began = stage.now_ms()
    async with stage.transactions() as producer:
        for key, tags in [("1", "yes"), ("2", "no"), ("3", "asked"), ("4", "never")]:
            await producer.send_in_transaction(transfer(key, tags, amount=int(key)))
        await asyncio.sleep(60)
        forced = await producer.send_in_transaction(transfer("5", "never"))
        why = {"operator": "ann", "reason": "the customer\ncalled"}
        await stage.admin.decide_transaction(forced.xid, "rollback", **why)
        open_ = await producer.send_in_transaction(transfer("6", "never"))
        taken = stage.taken()

    found = {
        key: tuple(taken.message(key)[name] for name in ("state", "decided_by", "reason"))
        for key in "123456"
    }
    assert found == {
        "1": ("committed", "producer", None),
        "2": ("rolled_back", "producer", None),
        "3": ("committed", "check", None),
        "4": ("parked", "broker", None),
        "5": ("rolled_back", "operator", "ann: the customer called"),
        "6": ("prepared", None, None),
    }
    assert len(taken.messages) == 6
    first = taken.message("1")
    assert (first["payer"], first["payee"], first["amount"]) == ("a1", "b1", 1)
    assert (first["currency"], first["topic"], first["problem"]) == ("CNY", "Transfers", None)
    assert began <= first["stored_ms"] <= first["decided_ms"] < began + 1000
    found = await stage.admin.find("Transfers", first["id"])
    assert (found.queue.number, found.offset) == (first["queue"], first["queue_offset"])
    assert taken.message("6")["id"] == open_.xid
    assert all(taken.message(key)["queue_offset"] is None for key in "2456")
    assert taken.message("3")["decided_ms"] - taken.message("3")["stored_ms"] >= 20_000


@staged
async def test_a_message_parked_on_one_day_may_be_committed_on_the_next(stage):
    async with stage.transactions() as producer:
        outcome = await producer.send_in_transaction(transfer("1", "never"))
        await asyncio.sleep(60)
        evening = stage.now_ms()
        await asyncio.sleep(1)
        why = {"operator": "ann", "reason": "it is in the books"}
        await stage.admin.decide_transaction(outcome.xid, "commit", **why)
        await asyncio.sleep(1)

        row = stage.taken().message("1")
        then = stage.taken(window=DayWindow(0, evening)).message("1")
        next_day = stage.taken(window=DayWindow(evening, 1 << 60)).message("1")

    assert (row["state"], row["decided_by"]) == ("committed", "operator")
    assert row["reason"] == "ann: it is in the books"
    assert row["queue_offset"] == 0
    # It was parked that evening and decided the next day, and is still the same message.
    assert (then["state"], then["decided_by"], then["reason"]) == ("parked", "broker", None)
    assert next_day == row
    assert then["stored_ms"] == row["stored_ms"] < evening


@staged
async def test_plain_delayed_and_recalled_messages_have_their_states(stage):
    async with stage.producer() as producer:
        plain = await producer.send(transfer("1"))
        await producer.send(Message(topic="Other", body=order("x")))
        waits = await producer.send(Message(topic="Transfers", body=order("2"), deliver_after=3600))
        recalled = await producer.send(
            Message(topic="Transfers", body=order("3"), deliver_after=3600)
        )
        await asyncio.sleep(1)  # The broker's clock may be ahead.
        before_recall = stage.now_ms()
        await producer.recall("Transfers", recalled.recall_handle)
        soon = await producer.send(Message(topic="Transfers", body=order("4"), deliver_after=5))
        await asyncio.sleep(2)
        between = stage.now_ms()
        await asyncio.sleep(10)
        taken = stage.taken()
        in_pieces = stage.taken(stretch_bytes=400)
        then = stage.taken(window=DayWindow(0, between))
        not_yet = stage.taken(window=DayWindow(0, before_recall))
        next_day = stage.taken(window=DayWindow(between, 1 << 60))

    assert sorted(map(str, in_pieces.messages)) == sorted(map(str, taken.messages))
    # In the evening it was in no queue yet; in the morning it is, and is still the same message.
    assert then.message("4") == taken.message("4") | {"queue_offset": None}
    assert next_day.states() == {"4": "sent"}
    assert next_day.message("4")["id"] == soon.id
    assert next_day.message("4")["queue_offset"] == 0
    assert taken.states() == {"1": "sent", "2": "sent", "3": "rolled_back", "4": "sent"}
    # A reader before the recall would have found the same.
    assert not_yet.states() == {"1": "sent", "2": "sent", "3": "sent"}
    assert not_yet.message("3")["decided_ms"] is None
    row = taken.message("1")
    place = plain.id, plain.queue.number, plain.offset
    assert (row["id"], row["queue"], row["queue_offset"]) == place
    assert (row["decided_ms"], row["decided_by"]) == (None, None)
    assert (taken.message("2")["id"], taken.message("2")["queue_offset"]) == (waits.id, None)
    assert taken.message("3")["decided_by"] == "producer"
    assert (taken.message("4")["id"], taken.message("4")["queue_offset"]) == (soon.id, 0)


@staged
async def test_a_committed_message_that_waits_is_one_message_until_it_is_recalled(stage):
    def later(key, tags, delay_s):
        made = transfer(key, tags)
        return replace(made, deliver_after=delay_s)

    async with stage.transactions() as producer:
        await producer.send_in_transaction(later("1", "yes", 3600))
        soon = await producer.send_in_transaction(later("2", "yes", 30))
        recalled = await producer.send_in_transaction(later("3", "yes", 3600))
        await producer.send_in_transaction(later("4", "no", 5))
        await asyncio.sleep(2)
        evening = stage.now_ms()
        await asyncio.sleep(60)
        await producer.recall("Transfers", recalled.sent[0].recall_handle)
        await asyncio.sleep(1)
        taken = stage.taken()
        in_pieces = stage.taken(stretch_bytes=400)
        then = stage.taken(window=DayWindow(0, evening))

    assert sorted(map(str, in_pieces.messages)) == sorted(map(str, taken.messages))
    states = {"1": "committed", "2": "committed", "4": "rolled_back"}
    assert taken.states() == states | {"3": "rolled_back"}
    assert then.states() == states | {"3": "committed"}
    row = taken.message("2")
    assert (row["id"], row["queue_offset"], row["decided_by"]) == (soon.xid, 0, "producer")
    assert then.message("2") == row | {"queue_offset": None}
    assert all(taken.message(key)["queue_offset"] is None for key in "134")


@staged
async def test_only_messages_of_the_flows_are_taken(stage):
    back = {"amount": "order.sum", "payee": "order.to", "currency": Constant("USD")}
    flows = (
        Flow(topic="Transfers", namespace="icbc", tags=("pay",), key="id"),
        Flow(topic="Transfers", namespace="ccb", tags=("back",), **back),
    )
    async with stage.producer() as producer:
        for key, tags in [("1", "pay"), ("2", "other"), ("3", "")]:
            await producer.send(transfer(key, tags))
        nested = b'{"payer": "a", "order": {"sum": 7, "to": 4711}}'
        await producer.send(
            Message(topic="Transfers", body=nested, tags="back", keys=("9", "more"))
        )
        taken = stage.taken(flows=flows)

    assert [message["key"] for message in taken.messages] == ["icbc/1", "ccb/9"]
    back = taken.messages[1]
    assert (back["payer"], back["payee"], back["amount"]) == ("a", "4711", 7)
    assert (back["currency"], back["problem"]) == ("USD", None)


@staged
async def test_an_unreadable_order_names_its_problem(stage):
    not_minor = "amount is not a whole number of minor units but "
    expected = {
        "float": (order("x", amount=1.5), f"{not_minor}1.5"),
        "text": (order("x", amount="100"), f"{not_minor}'100'"),
        "huge": (order("x", amount=1 << 63), f"{not_minor}92233..."),
        "true": (order("x", amount=True), f"{not_minor}True"),
        "currency": (
            order("x", currency="Yuan"),
            "currency is not a currency such as CNY but 'Yuan'",
        ),
        "nobody": (order("x", payee=None), "it has no payee"),
        "control": (order("x", payer="a\x00b"), r"payer is not a name or number but 'a\x00b'"),
        "list": (b"[1]", "its body is not a JSON object"),
        "no-json": (b"\xff{", "its body is not JSON: ..."),
        "deep": (b"[" * 100_000, "its body is not JSON: ..."),
        "no-key": (b'{"payer": "a", "payee": "b", "amount": 1, "currency": "CNY"}', "it has no id"),
    }
    async with stage.producer() as producer:
        for name, (body, _) in expected.items():
            await producer.send(Message(topic="Transfers", body=body, tags=name, keys=(name,)))
        await producer.send(Message(topic="Transfers", body=b"nothing"))
        await producer.send(Message(topic="Transfers", body=order("c", note="x" * 9000)))
        taken = stage.taken()

    for message, (name, (_, told)) in zip(taken.messages, expected.items(), strict=False):
        whole, *rest = told.split("...")
        problem = message["problem"]
        assert problem.startswith(whole) if rest else problem == whole, name
    assert [message["amount"] for message in taken.messages[:4]] == [None] * 4
    keys = [message["key"] for message in taken.messages]
    assert keys[:7] == ["icbc/x"] * 7
    assert keys[7:] == ["icbc/list", "icbc/no-json", "icbc/deep", "icbc/no-key", None, "icbc/c"]
    assert taken.messages[-1]["problem"] is None  # It was compressed on its way.


@staged
async def test_messages_that_consumers_give_back_are_retried_and_then_dead(stage):
    settings = ConsumerSettings(start=StartFrom.FIRST, attempts_max=1, commit_interval=1.0)
    consumer = PushConsumer("ccb", stage.broker.names, settings, *stage.ports().values())
    handled = []

    @consumer.on("Transfers")
    async def credit(message):
        handled.append(message)
        if message.tags == "bad":
            raise ValueError("no such account")

    async with stage.producer() as producer:
        good, bad = [await producer.send(transfer(key, key)) for key in ("good", "bad")]
        async with consumer:
            while len(handled) < 2:
                await asyncio.sleep(0.1)
            await asyncio.sleep(5)
            early = stage.taken()
            await asyncio.sleep(60)
        taken = stage.taken()

    tries = {(failure["state"], failure["attempts"]) for failure in early.failures}
    assert tries == {("retrying", 1)}
    assert [failure["state"] for failure in taken.failures] == ["retrying", "retrying", "dead"]
    dead = taken.failures[-1]
    assert (dead["key"], dead["id"], dead["group"]) == ("icbc/bad", bad.id, "ccb")
    why = "1 retry failed, 1 is allowed: ValueError: no such account"
    assert (dead["attempts"], dead["reason"]) == (2, why)
    assert taken.states() == {"good": "sent", "bad": "sent"}
    offsets = {
        (offset["topic"], offset["queue"]): offset["next_offset"] for offset in taken.offsets
    }
    assert {offset["group"] for offset in taken.offsets} == {"ccb"}
    assert offsets["Transfers", good.queue.number] >= 1
    assert offsets["Transfers", bad.queue.number] >= 1
    assert offsets["%RETRY%ccb", 0] == 1


def test_a_log_can_be_read_while_its_broker_writes(tmp_path):
    settings = BrokerSettings(store=StoreSettings(flush="async"))
    data = tmp_path / "data"

    async def write(producer, done, count):
        for number in range(1, count):
            await producer.send(transfer(str(number)))
        done.set()

    async def run():
        async with Broker(settings_for_test(str(data), settings)) as broker:
            async with (
                Producer("writers", broker.names) as producer,
                Client(broker.names) as client,
            ):
                await client.admin.create_group("ccb")
                await producer.send(transfer("0"))
                done = asyncio.Event()
                writing = asyncio.create_task(write(producer, done, 1500))
                seen = positions = rounds = 0
                while not done.is_set():
                    taken = await asyncio.to_thread(Taken, data)
                    keys = [int(message["key"].removeprefix("icbc/")) for message in taken.messages]
                    assert keys == list(range(len(keys)))
                    assert len(keys) >= seen
                    assert taken.log.watermark >= positions
                    seen, positions, rounds = len(keys), taken.log.watermark, rounds + 1
                await writing
                assert rounds > 1
            return Taken(data)

    last = asyncio.run(run())
    assert len(last.messages) == 1500
    # The directory of the stopped broker gives the same rows.
    assert Taken(data).messages == last.messages
    assert len(list(read_log(data))) == 1500
