"""The connections of one server share its memory and its time."""

import asyncio
from contextlib import suppress

from tests.running import run_by
from tests.waiting import run, until
from txmq.protocol import command as commands
from txmq.remoting import connection as module
from txmq.remoting.dispatch import Dispatcher
from txmq.remoting.listener import Listener
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork

SLOW, QUICK = 1, 2


def listening(scenario, handlers):
    """Run a scenario with a listener and its address."""

    async def main():
        dispatcher = Dispatcher(handlers)
        listener = Listener(SystemNetwork(), SystemClock(), dispatcher, connections_max=100)
        await listener.open("127.0.0.1", 0)
        writers = []

        async def opened():
            reader, writer = await asyncio.open_connection(*listener.address)
            writers.append(writer)
            return reader, writer

        try:
            await scenario(listener, opened)
        finally:
            listener.close()
            for writer in writers:
                writer.transport.abort()
                with suppress(ConnectionError):
                    await writer.wait_closed()

    run(main)


@run_by(listening, {})
async def test_unfinished_frames_of_all_peers_share_one_budget(listener, opened, /):
    begin = (1_000_000).to_bytes(4, "big") + (10).to_bytes(4, "big") + b"x" * 60_000

    listener.unfinished._limit = 150_000
    first, second, third = [await opened() for _ in range(3)]
    for number, (_, writer) in enumerate((first, second), 1):
        writer.write(begin)
        await until(lambda number=number: listener.unfinished.total == number * 60_008)
    third[1].write(begin)
    assert await first[0].read() == b""
    await until(lambda: listener.unfinished.total == 2 * 60_008)
    second[1].close()
    await until(lambda: listener.unfinished.total == 60_008)
    assert listener.unfinished.cut == 1


def test_unread_answers_of_all_peers_share_one_budget():
    served = []

    def serve(_, request):
        served.append(request)
        return commands.answer(request, body=b"x" * 250_000)

    async def scenario(listener, opened):
        first, second = [await opened() for _ in range(2)]
        ask = commands.encode(QUICK, 1)

        async def leave_unread(writer, is_enough):
            # One by one: the sockets buffer the first answers, and the rest must not come at once.
            writer.transport.pause_reading()
            while not is_enough():
                expected = len(served) + 1
                writer.write(ask)
                await until(lambda expected=expected: len(served) == expected)

        await leave_unread(first[1], lambda: listener.owed.total > 2_000_000)
        listener.owed._limit = listener.owed.total + 1_000_000
        await leave_unread(second[1], lambda: listener.owed.cut)
        assert listener.connections == 1

    listening(scenario, {QUICK: serve})


def test_slow_requests_of_one_client_do_not_starve_the_others(monkeypatch):
    monkeypatch.setattr(module, "TURN_S", 0.0)
    served = []

    def serve(_, request):
        served.append(request.opaque)
        return commands.answer(request)

    async def scenario(listener, opened):
        (_, greedy), (answers, other) = [await opened() for _ in range(2)]
        greedy.write(b"".join(commands.encode(SLOW, number) for number in range(2_000)))
        await until(lambda: served)
        other.write(commands.encode(QUICK, 5_000))
        await answers.readexactly(8)
        # All of one connection are served, in their order, and the other did not wait for them.
        assert served.index(5_000) < 1_900
        await until(lambda: len(served) == 2_001)
        assert [number for number in served if number < 5_000] == list(range(2_000))

    listening(scenario, {SLOW: serve, QUICK: serve})


def test_a_request_that_takes_two_turns_waits_for_one_part_of_a_long_read(monkeypatch):
    """A send is like this: it is served in one turn, and its record is written in the next."""
    monkeypatch.setattr(module, "TURN_S", 0.0)
    served, others = [], []

    def serve(_, request):
        served.append(request.opaque)
        if request.opaque == 100:
            others[0].write(commands.encode(QUICK, 5_000))
        return commands.answer(request)

    def serve_later(connection, request):
        served.append(request.opaque)

        def answer():
            served.append("answered")
            connection.send(commands.answer(request))

        asyncio.get_running_loop().call_soon(answer)

    async def scenario(listener, opened):
        (_, greedy), (answers, other) = [await opened() for _ in range(2)]
        others.append(other)
        greedy.write(b"".join(commands.encode(SLOW, number) for number in range(2_000)))
        await answers.readexactly(8)
        assert served[:103] == [*range(101), 5_000, "answered"]

    listening(scenario, {SLOW: serve, QUICK: serve_later})
