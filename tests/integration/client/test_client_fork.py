"""A client opened before a fork is refused in the child, and keeps working in the parent."""

import subprocess
import sys
import textwrap

import pytest

from tests.servers.serving import environment
from txmq_broker.testing import BrokerThread

BEFORE = """
    import asyncio, os, sys
    from txmq import Client, Message, Producer, PullConsumer, PushConsumer, blocking
    names = sys.argv[1]

    def in_child(use):
        '''What a child says that does this.'''
        pid = os.fork()
        if not pid:
            try:
                use()
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", flush=True)
            else:
                print("used", flush=True)
            os._exit(0)
        os.waitpid(pid, 0)

    message = Message(topic="Orders", body=b"x")
"""


@pytest.fixture(scope="module")
def names():
    with BrokerThread() as broker:
        yield broker.names


def said(names, program):
    """What a program prints, line by line; it must not hang."""
    text = textwrap.dedent(BEFORE) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", text, names],
        capture_output=True, text=True, timeout=30, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_blocking_producer_used_in_a_forked_worker_fails_at_once(names):
    lines = said(names, """
        with blocking.Producer("p", names) as producer:
            producer.send(message)
            in_child(lambda: producer.send(message))
            in_child(producer.stop)
            producer.send(message)
            print("the parent goes on")
    """)  # fmt: skip
    assert lines[0].startswith("UsageError: this client was opened in process ")
    assert (
        "open one in each process after the fork, with gunicorn in its post_fork hook" in lines[0]
    )
    assert lines[1:] == ["used", "the parent goes on"]


def test_blocking_clients_and_consumers_fail_in_a_forked_child(names):
    lines = said(names, """
        with blocking.Client(names) as client:
            client.admin.create_topic("Orders", queues=1)
            consumer = blocking.PushConsumer("c", client)
            consumer.on("Orders")(lambda message: None)
            with consumer:
                in_child(client.admin.topics)
                in_child(client.wait)
                in_child(consumer.wait)
                in_child(blocking.Producer("p", client).start)
    """)  # fmt: skip
    assert [line.split(":")[0] for line in lines] == ["UsageError"] * 4


def test_asyncio_clients_fail_in_a_forked_child_but_can_be_stopped(names):
    lines = said(names, """
        async def main():
            consumer = PullConsumer("readers", names)
            pushed = PushConsumer("pushed", names)
            pushed.on("Orders")(lambda message: None)
            async with Producer("p", names) as producer, consumer, pushed:
                await producer.send(message)

                def ending(work):
                    # Runs it on in the child's copy of the loop, whose stack this is.
                    try:
                        work.send(None)
                    except StopIteration:
                        return
                    raise AssertionError("it waits")

                in_child(lambda: ending(producer.send(message)))
                in_child(lambda: ending(consumer.poll()))
                in_child(lambda: ending(pushed.wait()))
                in_child(lambda: ending(producer.client.admin.topics()))
                in_child(lambda: ending(producer.stop()))
                in_child(lambda: ending(consumer.stop()))
                in_child(lambda: ending(pushed.stop()))
                await producer.send(message)
        asyncio.run(main())
    """)  # fmt: skip
    assert [line.split(":")[0] for line in lines] == ["UsageError"] * 4 + ["used"] * 3


def test_a_client_opened_after_a_fork_has_its_own_ids_in_each_child(names):
    lines = said(names, """
        client = blocking.Client(names)

        def use():
            with client, blocking.Producer("p", client) as producer:
                print(client.id, producer.send(message).id)

        in_child(use)
        in_child(use)
    """)  # fmt: skip
    (first_client, first_message), (second_client, second_message) = [
        line.split() for line in lines if line != "used"
    ]
    assert first_client != second_client
    # The part before the time and the count identifies the giver of the id.
    assert first_message[:20] != second_message[:20]
