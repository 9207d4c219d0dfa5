"""The blocking client, with a real broker in a thread."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from tests.servers.serving import environment
from txmq import ConsumerSettings, Message, SendStatus, StartFrom, blocking
from txmq.errors import IllegalOperation, LocalProtocolError, TopicNotFound, UsageError
from txmq.runtime import background
from txmq.transaction.listener import CallerThread
from txmq_broker.testing import BrokerThread

LATE = Message(topic="Orders", body=b"1")
FROM_FIRST = ConsumerSettings(start=StartFrom.FIRST)


@pytest.fixture
def names():
    with BrokerThread() as broker:
        yield broker.names


def bodies(messages):
    return sorted(message.body for message in messages)


def test_sent_messages_reach_the_handler(names):
    got, enough = [], threading.Event()
    consumer = blocking.PushConsumer("readers", names, FROM_FIRST)

    @consumer.on("Orders")
    def read(message):
        assert threading.current_thread().name.startswith("txmq-readers")
        got.append(message)
        if len(got) == 4:
            enough.set()

    with blocking.Producer("writers", names) as producer:
        first = producer.send(Message(topic="Orders", body=b"1"))
        later = producer.send_nowait(Message(topic="Orders", body=b"2"))
        batch = producer.send_batch([Message(topic="Orders", body=b) for b in (b"3", b"4")])
        assert first.status is SendStatus.OK
        assert {later.result(5).id, *(result.id for result in batch)}.isdisjoint({first.id})
    with consumer:
        assert enough.wait(10)
        consumer.commit()
        assert sum(consumer.positions().values()) == 4
    assert bodies(got) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("is_shared", [False, True])
def test_producers_and_consumers_work_only_between_start_and_stop(names, is_shared):
    client = blocking.Client(names)
    producer = blocking.Producer("writers", client if is_shared else names)
    pushed = blocking.PushConsumer("pushed", client if is_shared else names)
    pushed.on("Orders")(lambda message: None)
    message = Message(topic="Orders", body=b"1")
    client.stop()
    for _ in range(2):
        if is_shared:
            client.start()
        for made, use in ((producer, lambda: producer.send(message)), (pushed, pushed.commit)):
            made.stop()
            with pytest.raises(UsageError, match=r"not (open|running); use it with"):
                use()
            made.start()
            with pytest.raises(UsageError, match="already"):
                made.start()
            use()
            made.stop()
            made.stop()
        client.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "txmq-loop"]


def test_iterating_over_a_consumer_ends_when_it_is_stopped(names):
    with blocking.Producer("writers", names) as producer:
        producer.send(Message(topic="Orders", body=b"1"))
    consumer = blocking.PullConsumer("readers", names, FROM_FIRST)
    consumer.subscribe("Orders")
    consumer.start()
    got = []
    for messages in consumer:
        got += messages
        consumer.stop()
    assert bodies(got) == [b"1"]


def test_producers_share_a_client_and_its_loop_thread(names):
    with blocking.Client(names) as client:
        client.admin.create_topic("Shared", queues=1)
        with (
            blocking.Producer("one", client) as one,
            blocking.Producer("two", client) as two,
            ThreadPoolExecutor(8) as pool,
        ):
            sending = [one.send, two.send] * 8
            sent = list(pool.map(lambda f: f(Message(topic="Shared", body=b"x")), sending))
            assert sorted(result.offset for result in sent) == list(range(16))
        assert client.admin.topics()
    assert not [thread for thread in threading.enumerate() if thread.name == "txmq-loop"]


def test_a_client_starts_and_stops_the_consumers_of_decorated_functions(names):
    got = threading.Semaphore(0)
    client = blocking.Client(names)

    @client.on("Orders", group="readers", tags="Paid", settings=FROM_FIRST)
    def read(message):
        got.release()

    with blocking.Producer("writers", names) as producer:
        producer.send(Message(topic="Orders", body=b"1", tags="Paid"))
    with client:
        assert got.acquire(timeout=10)
        waiting = threading.Thread(target=client.wait)
        waiting.start()
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_delayed_message_is_recalled(names):
    with blocking.Producer("writers", names) as producer:
        later = producer.send(Message(topic="Orders", body=b"x", deliver_after=60))
        assert producer.recall("Orders", later.recall_handle) == later.id
        by_level = producer.send(Message(topic="Orders", body=b"x", delay_level=3))
        with blocking.Client(names) as client:
            assert client.admin.recall("Orders", by_level.recall_handle) == by_level.id
        with pytest.raises(IllegalOperation):
            producer.recall("Orders", "nonsense")


def test_errors_match_those_of_the_asyncio_client(names):
    with blocking.Client(names) as client, blocking.Producer("group", client) as producer:
        with pytest.raises(LocalProtocolError):
            producer.send(Message(topic="not a topic", body=b"x"))
        with pytest.raises(TopicNotFound):
            client.admin.route("nowhere")
    with pytest.raises(UsageError, match="not open"):
        producer.send(Message(topic="Orders", body=b"x"))


def test_a_blocking_call_in_an_async_handler_is_refused(names):
    told, done = [], threading.Event()
    with blocking.Client(names) as client, blocking.Producer("writers", client) as producer:
        consumer = blocking.PushConsumer("readers", client, FROM_FIRST)

        @consumer.on("Orders")
        async def read(message):
            try:
                producer.send(message)
            except UsageError as problem:
                told.append(str(problem))
            done.set()

        producer.send(Message(topic="Orders", body=b"x"))
        with consumer:
            assert done.wait(10)
    assert "txmq.blocking would stall" in told[0]


def test_leaving_a_consumer_ends_its_wait(names):
    consumer = blocking.PushConsumer("readers", names, FROM_FIRST)
    consumer.on("Orders")(lambda message: None)
    with consumer:
        waiting = threading.Thread(target=consumer.wait)
        waiting.start()
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_consumer_that_fails_to_open_leaves_no_thread():
    producer = blocking.PushConsumer("readers", "127.0.0.1:1")
    with pytest.raises(UsageError, match="no handler"), producer:
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "txmq-loop"]


def fill(client, count, topic="Orders", queues=1):
    client.admin.create_topic(topic, queues=queues)
    for number in range(count):
        client.admin.send(Message(topic=topic, body=b"%d" % number))


@pytest.mark.parametrize(
    ("make", "noun"),
    [
        (lambda: blocking.Client("127.0.0.1:1").admin.topics(), "client"),
        (lambda: blocking.Producer("p", "127.0.0.1:1").send_oneway(LATE), "producer"),
        (lambda: blocking.PullConsumer("g", "127.0.0.1:1").poll(), "consumer"),
    ],
)
def test_use_before_opening_is_refused_and_names_the_object(make, noun):
    with pytest.raises(UsageError, match=f"^this {noun} is not open; use it with 'with'"):
        make()


def test_a_pull_consumer_polls_and_pulls_by_hand(names):
    with blocking.Client(names) as client:
        fill(client, 5)
        consumer = blocking.PullConsumer("readers", client, FROM_FIRST)
        consumer.subscribe("Orders")
        got = []
        with consumer:
            for messages in consumer:
                got += messages
                if len(got) == 5:
                    consumer.end()
        assert [message.body for message in got] == [b"0", b"1", b"2", b"3", b"4"]

        by_hand = blocking.PullConsumer("by-hand", client)
        with by_hand:
            (queue,) = by_hand.queues_of("Orders")
            pulled = by_hand.pull(queue, 3)
            assert [message.body for message in pulled.messages] == [b"3", b"4"]


def test_a_scheduled_pull_calls_its_function_for_each_queue(names):
    got, enough = [], threading.Event()
    with blocking.Client(names) as client:
        fill(client, 6, queues=2)
        schedule = blocking.ScheduledPull("readers", client)

        @schedule.on("Orders")
        def take(queue, context):
            offset = context.consumer.committed(queue) or 0
            pulled = context.consumer.pull(queue, offset)
            got.extend(message.body for message in pulled.messages)
            context.consumer.note_offset(queue, pulled.next_offset)
            context.next_delay = 0.01
            if len(got) == 6:
                enough.set()

        with schedule:
            assert enough.wait(10)
    assert sorted(got) == [b"%d" % number for number in range(6)]


def test_dead_letters_are_iterated(names):
    with blocking.Client(names) as client:
        fill(client, 3, "%DLQ%readers")
        assert [letter.body for letter in client.admin.dead_letters("readers")] == [
            b"0",
            b"1",
            b"2",
        ]


def test_a_blocking_call_in_an_event_loop_is_refused(names):
    async def scenario(client):
        with pytest.raises(UsageError, match="in an event loop use txmq itself"):
            client.admin.topics()

    with blocking.Client(names) as client:
        asyncio.run(scenario(client))


# Ctrl-C


@pytest.mark.parametrize("end", [asyncio.CancelledError, OSError])
def test_ctrl_c_ends_a_wait_and_logs_nothing(caplog, end):
    ended = threading.Event()

    async def interrupted():
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise end from None
        finally:
            ended.set()

    with blocking.Client("127.0.0.1:1") as client:
        with pytest.raises(KeyboardInterrupt):
            client._background.wait(interrupted())
        assert ended.wait(5)
    gc.collect()
    assert caplog.records == []


@pytest.mark.parametrize("here", [None, CallerThread()])
def test_ctrl_c_is_noticed_even_if_it_does_not_wake_the_waiting_thread(monkeypatch, here):
    monkeypatch.setattr(background, "LOOK_S", 0.05)

    async def interrupted():
        # Another thread gets the signal, as the waiting one would just before it falls asleep.
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    with blocking.Client("127.0.0.1:1") as client:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with pytest.raises(KeyboardInterrupt):
                client._background.wait(interrupted(), here)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def test_work_that_ctrl_c_interrupts_before_its_start_never_runs():
    class Interrupted(CallerThread):
        def serve(self):
            raise KeyboardInterrupt

    begun, held = [], threading.Event()

    async def work():
        begun.append(True)

    async def hold():
        asyncio.get_running_loop().call_soon(held.wait, 10)

    with blocking.Client("127.0.0.1:1") as client:
        client._background.wait(hold())
        with pytest.raises(KeyboardInterrupt):
            client._background.wait(work(), Interrupted())
        held.set()
        client._background.wait(asyncio.sleep(0))
    assert begun == []
    gc.collect()  # Python must not warn that the coroutine was never awaited.


def test_an_exception_in_the_loop_reaches_the_caller_with_its_traceback():
    async def fail():
        raise ZeroDivisionError

    async def give_up():
        raise asyncio.CancelledError

    with blocking.Client("127.0.0.1:1") as client:
        with pytest.raises(ZeroDivisionError) as raised:
            client._background.wait(fail())
        assert raised.traceback[-1].name == "fail"
        with pytest.raises(CancelledError):
            client._background.wait(give_up())


PROGRAM = """
import os, signal, sys, threading
from txmq import ConsumerSettings, Message, blocking, StartFrom

waiting = threading.Event()
with blocking.Client(sys.argv[1]) as client, blocking.Producer("writers", client) as producer:
    consumer = blocking.PushConsumer("readers", client, ConsumerSettings(start=StartFrom.FIRST))

    @consumer.on("Orders")
    def read(message):
        waiting.wait()
        os.kill(os.getpid(), signal.SIGINT)

    producer.send(Message(topic="Orders", body=b"x"))
    with consumer:
        try:
            waiting.set()
            consumer.wait()
        finally:
            print("leaving")
"""


def test_a_program_ended_by_ctrl_c_shows_only_the_keyboard_interrupt(names):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, names],
        capture_output=True,
        text=True,
        timeout=30,
        env=environment(),
        check=False,
    )

    assert done.stdout == "leaving\n"
    assert done.returncode == -signal.SIGINT
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith("KeyboardInterrupt\n")
