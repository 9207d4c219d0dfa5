"""Count the functions and files that one operation crosses, by running it against a real broker:

    python -m tools.hops send|pull|end|transactional|guarded|row|all [--list]

A function counts once, however often it is called. Each operation runs several times, and only what
every run crosses is counted, so heartbeats and other background work stay out.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from sqlalchemy import create_engine

from txmq import (
    Message,
    Outbox,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Relay,
    RelaySettings,
    SQLResource,
    TransactionManager,
    create_fence,
    create_outbox,
)
from txmq.idempotent import UniqueKeyTable, create_done, idempotent
from txmq.testing import BrokerSettings, BrokerThread

ROOT = Path(__file__).parents[1]
PACKAGES = {"txmq": ROOT / "txmq", "txmq_broker": ROOT / "broker" / "txmq_broker"}
RUNS = 5
NOT_FUNCTIONS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<module>"}


class Call(NamedTuple):
    """A function of ours that a thread called, or a write to a socket (`code` is None)."""

    thread: str
    code: CodeType | None


class Recorder:
    """Notes calls of all threads that start after it, while it is recording."""

    def __init__(self) -> None:
        self.calls: list[Call] | None = None

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.calls is None:
            return
        if event == "call":
            self.calls.append(Call(threading.current_thread().name, frame.f_code))
        elif event == "c_call" and argument.__name__ in {"send", "sendmsg"}:
            self.calls.append(Call(threading.current_thread().name, None))

    @contextmanager
    def recording(self) -> Iterator[list[Call]]:
        self.calls = calls = []
        try:
            yield calls
        finally:
            self.calls = None


def place_of(code: CodeType) -> str | None:
    """The file of a function of ours, below its package; None for everybody else's."""
    for name, folder in PACKAGES.items():
        if code.co_filename.startswith(f"{folder}/"):
            return f"{name}/{Path(code.co_filename).relative_to(folder)}"
    return None


def functions(calls: Iterable[Call]) -> set[tuple[str, str]]:
    found = set()
    for call in calls:
        if call.code is not None and call.code.co_name not in NOT_FUNCTIONS:
            place = place_of(call.code)
            if place is not None:
                found.add((place, call.code.co_qualname))
    return found


def by_wing(found: set[tuple[str, str]]) -> Iterator[str]:
    """How many of them lie in which folder."""
    wings: dict[str, set[tuple[str, str]]] = {}
    for place, name in found:
        wings.setdefault("/".join(place.split("/")[:2]), set()).add((place, name))
    for wing, inside in sorted(wings.items()):
        files = {place for place, _ in inside}
        yield f"{wing:44} {len(inside):4} functions in {len(files):3} files"


def until_sent(calls: list[Call]) -> list[Call]:
    """What comes before the first write to a socket."""
    places = [index for index, call in enumerate(calls) if call.code is None]
    return calls[: places[0]] if places else calls


def of_client(calls: list[Call]) -> list[Call]:
    return [call for call in calls if not is_brokers(call)]


def of_broker(calls: list[Call]) -> list[Call]:
    return [call for call in calls if is_brokers(call)]


def is_brokers(call: Call) -> bool:
    # The second thread syncs the broker's files.
    return call.thread.startswith(("txmq-broker", "txmq-sync", "txmq-disk"))


class Row(NamedTuple):
    """One line of the answer: which part of which runs counts."""

    label: str
    part: Callable[[list[Call]], list[Call]]


async def measured(
    recorder: Recorder, operation: Callable[[], Awaitable[Any]], rows: list[Row]
) -> dict[str, set[tuple[str, str]]]:
    for _ in range(RUNS):  # The first ones open connections and fetch routes.
        await operation()
    runs = []
    for _ in range(RUNS):
        with recorder.recording() as calls:
            await operation()
        runs.append(calls)
    return {
        row.label: set.intersection(*(functions(row.part(calls)) for calls in runs)) for row in rows
    }


async def send(recorder: Recorder, names: str) -> dict[str, set[tuple[str, str]]]:
    async with Producer("hops", names) as producer:
        message = Message(topic="Hops", body=b"x")
        rows = [
            Row("send: client, before the wire", lambda calls: until_sent(of_client(calls))),
            Row("send: client, with the answer", of_client),
            Row("send: broker", of_broker),
        ]
        return await measured(recorder, lambda: producer.send(message), rows)


async def pull(recorder: Recorder, names: str) -> dict[str, set[tuple[str, str]]]:
    async with Producer("hops", names) as producer:
        sent = await producer.send(Message(topic="Hops", body=b"x"))
    async with PullConsumer("hops-pull", names) as consumer:
        rows = [Row("pull: client", of_client), Row("pull: broker", of_broker)]
        return await measured(recorder, lambda: consumer.pull(sent.queue, sent.offset), rows)


async def end(recorder: Recorder, names: str) -> dict[str, set[tuple[str, str]]]:
    """The broker's share of a transaction but for what a plain send crosses too."""
    found = await transactional(recorder, names)
    sent = await send(recorder, names)
    of_end = found["transactional: broker, half message and END"] - sent["send: broker"]
    return {"end: broker, beyond a plain send": of_end}


async def transactional(recorder: Recorder, names: str) -> dict[str, set[tuple[str, str]]]:
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/bank.db")
        await asyncio.to_thread(create_fence, engine, "txmq_fence", None)
        resource = SQLResource(engine)
        async with TransactionManager("hops-bank", names=names, resource=resource) as manager:

            @manager.transactional(topic="Hops", keys="k")
            def transfer(session: Any, amount: int) -> None:
                """Do nothing but take part."""

            wings = ("txmq/transaction/", "txmq/databases/")
            rows = [
                Row("transactional: all told, with the broker", lambda calls: calls),
                Row("transactional: all of the caller's process", of_client),
                Row("transactional: transaction and databases", lambda calls: [
                    call for call in of_client(calls)
                    if call.code is not None and (place_of(call.code) or "").startswith(wings)
                ]),
                Row("transactional: broker, half message and END", of_broker),
            ]  # fmt: skip
            return await measured(recorder, lambda: transfer(1), rows)


async def guarded(recorder: Recorder, names: str) -> dict[str, set[tuple[str, str]]]:
    """A handler behind a guard, from the fetched message to its committed row."""
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/bank.db")
        await asyncio.to_thread(create_done, engine)
        handled = asyncio.Queue[str]()
        consumer = PushConsumer("hops-guarded", names)

        @consumer.on("HopsGuarded")
        @idempotent(UniqueKeyTable(engine), key=lambda message: message.key)
        def handle(_: Any, message: ReceivedMessage) -> None:
            """Do nothing but take part."""
            loop.call_soon_threadsafe(handled.put_nowait, message.key)

        loop, keys = asyncio.get_running_loop(), map(str, itertools.count())
        async with Producer("hops", names) as producer:
            await producer.send(Message(topic="HopsGuarded", body=b"x", keys=("first",)))
            async with consumer:

                async def consumed() -> None:
                    message = Message(topic="HopsGuarded", body=b"x", keys=(next(keys),))
                    await producer.send(message)
                    while await handled.get() != message.keys[0]:
                        pass
                    await asyncio.sleep(0.1)  # Until its row is committed.

                def of_handler(calls: list[Call]) -> list[Call]:
                    return [call for call in of_client(calls) if call not in sent]

                with recorder.recording() as calls:
                    await producer.send(Message(topic="Hops", body=b"x"))
                sent = set(of_client(calls))
                rows = [Row("guarded: fetched, handled, committed", of_handler)]
                return await measured(recorder, consumed, rows)


async def row(recorder: Recorder, names: str) -> dict[str, set[tuple[str, str]]]:
    """A message from `Outbox.add` to its deleted row."""
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/bank.db")
        await asyncio.to_thread(create_outbox, engine, "txmq_outbox", None)
        outbox = Outbox()
        async with Relay(engine, names, RelaySettings(poll_interval=0.05), outbox=outbox):

            async def carried() -> None:
                with engine.begin() as connection:
                    outbox.add(connection, Message(topic="Hops", body=b"x"), lane="lane")
                while True:
                    with engine.connect() as connection:
                        if not connection.exec_driver_sql(
                            "SELECT count(*) FROM txmq_outbox"
                        ).scalar():
                            return
                    await asyncio.sleep(0.01)

            rows = [Row("row: add, relay, delete", of_client)]
            return await measured(recorder, carried, rows)


OPERATIONS = {
    "send": send,
    "pull": pull,
    "end": end,
    "transactional": transactional,
    "guarded": guarded,
    "row": row,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operation", choices=[*OPERATIONS, "all"])
    parser.add_argument("--list", action="store_true", help="name every function")
    given = parser.parse_args()
    chosen = OPERATIONS if given.operation == "all" else [given.operation]
    recorder = Recorder()
    threading.setprofile(recorder.note)
    sys.setprofile(recorder.note)
    with BrokerThread(BrokerSettings()) as broker:
        for name in chosen:
            for label, found in asyncio.run(OPERATIONS[name](recorder, broker.names)).items():
                files = {place for place, _ in found}
                print(f"{label:48} {len(found):4} functions in {len(files):3} files")
                print("".join(f"    {wing}\n" for wing in by_wing(found)), end="")
                if given.list:
                    print("".join(f"    {place}: {name}\n" for place, name in sorted(found)))


if __name__ == "__main__":
    main()
