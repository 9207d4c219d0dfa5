"""Half messages of the C++ client against `txmq serve`: decided, asked about, parked, restarted.

A message that must not be seen is never waited for: one that is sent behind it, on the one queue
of its topic, has arrived when the consumer is looked at.
"""

from tests.interop.interop_stage import ASKS_SOON, CHECKS, digest, half, letter
from tests.interop.interop_together import PlayBroker, played

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
PARKED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
COMMITTED, TRANSACTION_BITS = 8, 12  # in a stored record's sysFlag
LARGE = "a body that its sender compresses " * 1000


class Bank:
    """One topic with one queue, a producer group for it, and a consumer that writes down."""

    def __init__(self, stage, client):
        self.stage, self.client, self.broker = stage, client, stage.broker
        self.topic = stage.topic(queues=1)
        self.group = stage.group()

    def producer(self, checks="UNKNOWN"):
        return self.stage.transactor(self.client, self.topic, self.group, checks)

    def consumer(self):
        return self.stage.consumer(self.client, self.topic, self.stage.group())

    def send(self, producer, *lines):
        """Send, and return what the producer was told of the first."""
        self.stage.send(producer, list(lines))
        first = lines[0]
        told = next(event for event in producer.sent if event["keys"] == first["keys"])
        return {**told, "body": first["body"]}

    def come_back(self, producer):
        """The broker starts again and asks soon; it returns when the producer has beaten."""
        self.broker.settings = ASKS_SOON
        self.broker.start()
        self.stage.send(producer, [letter("here-again")])  # refused until it has connected again
        producer.write([{"beat": True}])
        self.stage.wait(lambda: producer.events["beaten"], "the producer to beat")

    def seen(self, consumer, producer, *wanted):
        """What was handled, by keys, once these and a plain message behind them were."""
        last = letter("behind-them-all")
        self.stage.send(producer, [last])
        self.stage.wait_handled([consumer], [*map(letter, wanted), last])
        consumer.leave()
        ours = [key for key in consumer.handled_keys if not key.startswith("opening-")]
        ours.remove(last["keys"])
        return sorted(ours)

    def wait_decided(self, told):
        """Nothing of this group is open any more; returns the decision."""
        self.stage.wait(
            lambda: not self.broker.open_transactions(self.group), "every transaction to be decided"
        )
        return self.decision(told)

    def decision(self, told):
        """The last op that names the half message: what was decided, by whom, and why."""
        ops = self.broker.records(OP_TOPIC, 0, max(0, self.broker.max_offset(OP_TOPIC, 0) - 32))
        place = str(told["queue_offset"])
        op = [op for op in ops if place in op.body.decode().split(",")][-1]
        assert (op.topic, op.tags) == (OP_TOPIC, "d")
        return tuple(
            op.properties.get(f"TXMQ_{name}", "") for name in ("DECISION", "SOURCE", "REASON")
        )

    def half_of(self, told):
        """The record in the half topic at the offset that the producer was told."""
        return self.broker.records(HALF_TOPIC, 0, told["queue_offset"])[0]

    def found(self, told):
        """The records found by key, which must equal those found by the unique key."""
        by_key = self.broker.found_by_key(self.topic, told["keys"])
        unique = {"_UNIQUE_KEY_QUERY": "true"}
        assert self.broker.found_by_key(self.topic, told["msg_id"], **unique) == by_key
        return by_key

    def assert_committed(self, told, consumer):
        """As the consumer saw it, and as it lies in the broker."""
        (event,) = [event for event in consumer.handled if event["keys"] == told["keys"]]
        assert event["msg_id"] == told["msg_id"]
        assert event["properties"] == {
            "TRAN_MSG": "true",
            "PGROUP": self.group,
            "UNIQ_KEY": told["msg_id"],
            "REAL_TOPIC": self.topic,
            "REAL_QID": "0",
            "KEYS": told["keys"],
            "TAGS": "debit",
        }
        stored = self.half_of(told)
        assert (stored.topic, stored.properties["UNIQ_KEY"]) == (HALF_TOPIC, told["msg_id"])
        assert stored.properties["REAL_TOPIC"] == self.topic
        assert stored.flag & TRANSACTION_BITS == 0  # as RocketMQ has it
        assert event["prepared_position"] == stored.position
        (found,) = self.found(told)
        assert (found.offset, found.position) == (event["queue_offset"], event["position"])
        assert found.flag & TRANSACTION_BITS == COMMITTED
        assert found.body == stored.body
        assert event["body_sha256"] == digest(told["body"])

    def assert_never_there(self, told):
        """Rolled back: its half and its op are there, and nothing else."""
        assert self.half_of(told).properties["UNIQ_KEY"] == told["msg_id"]
        assert self.found(told) == []


ASKING = PlayBroker(settings=ASKS_SOON, is_shared=True)
"""It asks about half messages soon, and soon gives up."""


@played(("cpp",), broker=ASKING)
def test_a_committed_message_is_seen_once_and_a_rolled_back_one_never(stage, cpp):
    bank = Bank(stage, cpp)
    consumer, producer = bank.consumer(), bank.producer()

    kept = bank.send(producer, half("kept", "COMMIT", tags="debit"))
    dropped = bank.send(producer, half("dropped", "ROLLBACK", tags="debit"))
    assert bank.wait_decided(kept) == ("COMMITTED", "PRODUCER", "")

    assert bank.seen(consumer, producer, "kept") == ["kept"]
    assert [event["local"] for event in producer.executed] == ["COMMIT", "ROLLBACK"]
    assert (kept["status"], dropped["status"]) == ("OK", "OK")
    assert producer.checked == []
    bank.assert_committed(kept, consumer)
    bank.assert_never_there(dropped)
    assert bank.decision(dropped) == ("ROLLED_BACK", "PRODUCER", "")


@played(("cpp",), more=(("COMMIT", "COMMITTED"), ("ROLLBACK", "ROLLED_BACK")), broker=ASKING)
def test_an_unknown_transaction_is_checked_until_the_producer_decides(stage, cpp, answer, decision):
    bank = Bank(stage, cpp)
    consumer, producer = bank.consumer(), bank.producer(f"UNKNOWN,{answer}")

    told = bank.send(producer, half("asked", "UNKNOWN", body=LARGE, tags="debit"))
    assert bank.found(told) == []
    checks = bank.stage.wait_checked(producer, "asked", times=2)[:2]
    assert bank.wait_decided(told) == (decision, "CHECK", "")

    wanted = ["asked"] if answer == "COMMIT" else []
    assert bank.seen(consumer, producer, *wanted) == wanted
    assert [event["said"] for event in checks] == ["UNKNOWN", answer]
    assert {event["msg_id"] for event in checks} == {told["msg_id"]}
    assert {event["body"] for event in checks} == {LARGE}
    assert {(event["topic"], event["queue_id"]) for event in checks} == {(bank.topic, 0)}
    assert {event["queue_offset"] for event in checks} == {told["queue_offset"]}
    times = [event["properties"]["TRANSACTION_CHECK_TIMES"] for event in checks]
    assert times == ["1", "2"]
    if wanted:
        bank.assert_committed(told, consumer)
    else:
        bank.assert_never_there(told)


@played(("cpp",), broker=ASKING)
def test_a_transaction_unknown_to_the_last_check_is_parked_and_decided_by_hand(stage, cpp):
    bank = Bank(stage, cpp)
    consumer, producer = bank.consumer(), bank.producer()
    kept = bank.send(producer, half("kept", "UNKNOWN", tags="debit"))
    dropped = bank.send(producer, half("dropped", "UNKNOWN", tags="debit"))

    def parked():
        found = bank.broker.open_transactions(bank.group, "parked")
        return found if len(found) == 2 else None

    listed = bank.stage.wait(parked, "both transactions to be parked")

    assert [transaction["transactionId"] for transaction in listed] == [
        kept["msg_id"],
        dropped["msg_id"],
    ]
    assert {(transaction["state"], transaction["checks"]) for transaction in listed} == {
        ("parked", CHECKS)
    }
    copies = [
        record
        for record in bank.broker.records(PARKED_TOPIC, 0)
        if record.properties["PGROUP"] == bank.group
    ]
    bodies = {record.properties["UNIQ_KEY"]: record.body for record in copies}
    assert bodies == {kept["msg_id"]: b"body of kept", dropped["msg_id"]: b"body of dropped"}
    assert len(copies) == len(bodies)

    assert bank.broker.decide(kept["msg_id"], "commit", "ops", "the ledger has it") == 0
    assert bank.broker.decide(dropped["msg_id"], "rollback", "ops", "the ledger has not") == 0

    bank.wait_decided(kept)
    assert bank.seen(consumer, producer, "kept") == ["kept"]
    bank.assert_committed(kept, consumer)
    bank.assert_never_there(dropped)
    assert bank.decision(kept) == ("COMMITTED", "OPERATOR", "ops: the ledger has it")
    assert bank.decision(dropped) == ("ROLLED_BACK", "OPERATOR", "ops: the ledger has not")
    asked = sorted(event["keys"] for event in producer.checked)
    assert asked == ["dropped"] * CHECKS + ["kept"] * CHECKS


@played(("cpp",), more=(("in its local transaction",), ("when it was asked",)), broker=ASKING)
def test_another_producer_of_the_group_answers_the_checks_of_a_killed_one(stage, cpp, when):
    bank = Bank(stage, cpp)
    consumer, doomed = bank.consumer(), bank.producer("SILENT")
    if when == "in its local transaction":
        doomed.write([half("orphan", "SILENT", tags="debit")])
        bank.stage.wait(lambda: doomed.executed, "the local transaction to run")
    else:
        bank.send(doomed, half("orphan", "UNKNOWN", tags="debit"))
        bank.stage.wait_checked(doomed, "orphan")
    (opened,) = bank.broker.open_transactions(bank.group)
    doomed.kill()

    heir = bank.producer("COMMIT")

    check = bank.stage.wait_checked(heir, "orphan")[0]
    assert check["msg_id"] == opened["transactionId"]
    assert check["properties"]["PGROUP"] == bank.group
    told = {**check, "queue_offset": opened["halfOffset"]}
    assert bank.wait_decided(told) == ("COMMITTED", "CHECK", "")
    assert bank.seen(consumer, heir, "orphan") == ["orphan"]
    bank.assert_committed(told, consumer)


@played(("cpp",), broker=PlayBroker())
def test_a_broker_killed_and_restarted_still_checks_its_producer(stage, cpp):
    bank = Bank(stage, cpp)  # its broker would ask after a minute
    producer = bank.producer("COMMIT")
    told = bank.send(producer, half("survivor", "UNKNOWN", tags="debit"))
    stage.broker.kill()
    assert producer.checked == []

    bank.come_back(producer)

    assert stage.wait_checked(producer, "survivor")[0]["msg_id"] == told["msg_id"]
    assert bank.wait_decided(told) == ("COMMITTED", "CHECK", "")
    stage.broker.kill()
    stage.broker.start()
    consumer = bank.consumer()
    assert bank.seen(consumer, producer, "survivor") == ["here-again", "survivor"]
    bank.assert_committed(told, consumer)


@played(("cpp",), broker=PlayBroker())
def test_a_commit_that_reached_no_broker_is_repeated_at_the_check(stage, cpp):
    bank = Bank(stage, cpp)
    producer = bank.producer("COMMIT")
    line = half("unheard", "COMMIT", tags="debit", holds=True)
    producer.write([line])
    stage.wait(lambda: producer.executed, "the local transaction to run")
    stage.broker.kill()
    producer.write([{}])
    stage.wait_sent(producer, [line])
    assert producer.checked == []

    bank.come_back(producer)

    check = stage.wait_checked(producer, "unheard")[0]
    assert bank.wait_decided(check) == ("COMMITTED", "CHECK", "")
    consumer = bank.consumer()
    assert bank.seen(consumer, producer, "unheard") == ["here-again", "unheard"]
    bank.assert_committed(check, consumer)
