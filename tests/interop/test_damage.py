"""One damaged message stops a consumer at its place, and an operator has the group go on.

Stock clients know nothing of damage: the answers to their pulls must keep them where they are, and
then lead them on.
"""

import contextlib

import pytest

from tests.interop.interop_stage import Stage, assert_once, letters, names
from tests.servers.serving import BrokerProcess

MESSAGES, DAMAGED = 20, 10


@pytest.fixture
def stage(tmp_path, request):
    with contextlib.closing(BrokerProcess(tmp_path / "broker", flush="sync")) as broker:
        broker.start()
        with contextlib.closing(Stage(broker, tmp_path, request.node.name)) as stage:
            yield stage


def flip(broker, body):
    """Turn over one bit of a body in the log, while the broker runs."""
    found = [
        (path, at)
        for path in (broker.folder / "data" / "log").glob("*.log")
        if (at := path.read_bytes().find(body)) >= 0
    ]
    ((path, at),) = found
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.fault("S3")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "flags"),
    [("ours", ()), ("ours", ("--orderly",)), ("cpp", ()), ("ons", ())],
    ids=["ours", "ours-orderly", "cpp", "ons"],
)
def test_a_group_consumes_all_but_the_damaged_message(stage, name, flags, ours, request):
    client = request.getfixturevalue(name)
    broker, group, topic = stage.broker, stage.group(), stage.topic(queues=1)
    sender = stage.sender(ours, topic)
    # One after the other, so that a message's number is its offset.
    lines = [line for line in letters("m", MESSAGES) if stage.send(sender, [line])]
    flip(broker, lines[DAMAGED]["body"].encode())
    before, behind = lines[:DAMAGED], lines[DAMAGED + 1 :]

    consumer = stage.consumer(client, topic, group, *flags)
    stage.wait_handled([consumer], before)
    stage.wait(lambda: broker.committed(group, topic, 0) == DAMAGED, "the group to be stuck")
    stage.wait(lambda: "the log is damaged" in broker.tail(), "the broker to report it")
    assert not set(names(behind)) & set(consumer.handled_keys)

    where = ("--queue", "0", "--offset", str(DAMAGED))
    why = ("--reason", "the disk lost it", "--operator", "ann", "--yes")
    skipped = broker.txmq("group", "skip", group, topic, *where, *why)
    assert (skipped["offset"], skipped["operator"]) == (DAMAGED, "ann")
    stage.wait_handled([consumer], behind)
    stage.wait(lambda: broker.committed(group, topic, 0) == MESSAGES, "the group to be at the end")
    assert_once([consumer], before + behind)
    assert lines[DAMAGED]["keys"] not in consumer.handled_keys

    listed = broker.txmq("message", "list", topic)
    assert {row["keys"][0] for row in listed} == set(names(before + behind))
    kept = broker.txmq("audit", "--action", "SKIP_DAMAGED", "--broker", "broker-a")
    assert "the disk lost it" in str(kept)
