"""Machines and the world: what a crash stops, what a restart finds, and what fails a run."""

import asyncio
import logging

import pytest

from tests.running import run_by
from txmq.testing import (
    LeakedTaskError,
    Loss,
    MachineCrashedError,
    PowerCut,
    SeededEntropy,
    SimulatedClock,
    UnhandledError,
    World,
    simulate,
)


class Silent(asyncio.Protocol):
    """Records how its connection ends."""

    def __init__(self):
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, error):
        self.ended.set_result(error)


async def forever():
    await asyncio.Event().wait()


# --- crashes ---


def test_a_crash_stops_a_program_without_running_its_cleanup():
    seen = []

    async def child():
        try:
            await asyncio.sleep(10)
            seen.append("child went on")
        finally:
            seen.append("child cleaned up")

    async def program(machine):
        asyncio.get_running_loop().call_later(10, seen.append, "timer")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                await asyncio.sleep(10)
        except BaseException:
            seen.append("caught")
            raise
        finally:
            seen.append("cleaned up")

    async def scenario(world):
        machine = world.machine("m")
        running = machine.run(program(machine))
        await asyncio.sleep(5)
        machine.crash()
        with pytest.raises(MachineCrashedError, match="m went down under m/program"):
            await running
        await asyncio.sleep(100)
        assert seen == []

    simulate(scenario, 1)


def test_cleanup_code_that_runs_after_a_crash_has_no_effect():
    tried = []

    def attempt(use, *arguments):
        try:
            use(*arguments)
        except BaseException as error:
            tried.append(type(error))
        else:
            tried.append("nothing happened")

    async def program(machine, server):
        file = machine.disk.open("f", create=True)
        disk, network = machine.disk, machine.network
        protocol = await network.connect(Silent, server.address, 9)
        try:
            await forever()
        finally:
            attempt(file.write, 0, b"from beyond")
            attempt(disk.replace, "g", b"from beyond")
            attempt(protocol.transport.write, b"from beyond")
            attempt(asyncio.create_task, forever())
            attempt(asyncio.gather, forever())
            await network.connect(Silent, server.address, 9)

    async def stubborn():
        while True:
            try:
                await forever()
            except asyncio.CancelledError:
                continue
            finally:
                await forever()

    received = []

    class Listen(asyncio.Protocol):
        def data_received(self, data):
            received.append(data)

    async def scenario(world):
        machine, server = world.machine("m"), world.machine("server")
        await server.network.listen(Listen, "0.0.0.0", 9)
        machine.run(program(machine, server))
        machine.run(stubborn())
        await asyncio.sleep(1)
        machine.crash()
        machine.restart()
        await asyncio.sleep(1)
        return machine

    machine = simulate(scenario, 1)

    assert tried == [PowerCut, PowerCut, "nothing happened", RuntimeError, RuntimeError]
    assert machine.disk.names("") == ["f"]
    assert machine.disk.durable("f") == b""
    assert received == []


def test_a_crash_keeps_synced_data_for_the_restart():
    async def program(machine):
        file = machine.disk.open("log", create=True)
        file.write(0, b"synced")
        await machine.disk.sync_soon([file])
        file.write(6, b" unsynced")
        machine.disk.lock()
        await forever()

    async def scenario(world):
        machine = world.machine("m")
        machine.run(program(machine))
        await asyncio.sleep(1)
        machine.crash(Loss.EVERYTHING)
        assert not machine.is_up
        with pytest.raises(MachineCrashedError, match="m is down"):
            machine.run(forever())
        machine.restart()
        assert machine.is_up
        assert machine.disk.open("log").read(0, 100) == b"synced"
        machine.disk.lock()

    simulate(scenario, 1)


def test_a_kill_keeps_unsynced_data_and_closes_connections():
    async def program(machine):
        file = machine.disk.open("log", create=True)
        file.write(0, b"unsynced")
        machine.disk.lock()
        await machine.network.listen(Silent, "0.0.0.0", 9)
        await forever()

    async def scenario(world):
        machine, client = world.machine("m"), world.machine("client")
        running = machine.run(program(machine))
        await asyncio.sleep(1)
        protocol = await client.network.connect(Silent, "m", 9)
        machine.kill()
        with pytest.raises(MachineCrashedError):
            await running
        await asyncio.wait_for(protocol.ended, 5)
        assert machine.disk.open("log").read(0, 100) == b"unsynced"
        machine.disk.lock()
        assert await machine.run(asyncio.sleep(1, "alive")) == "alive"

    simulate(scenario, 1)


def test_a_disk_hook_can_crash_the_machine_at_any_operation():
    """The hook crashes the machine from inside its own program, mid-operation."""

    async def program(machine, seen):
        file = machine.disk.open("log", create=True)
        for number in range(5):
            file.write(number, bytes([number + 1]))
            file.sync()
            seen.append(number)
            await asyncio.sleep(0.1)

    def scenario(at):
        async def inner(world):
            machine = world.machine("m")
            seen = []

            def on_write(event):
                if event.number == at:
                    machine.crash(Loss.EVERYTHING)

            machine.disk.on_write = on_write
            running = machine.run(program(machine, seen))
            if at > 12:
                await running
            else:
                with pytest.raises(MachineCrashedError):
                    await running
                machine.restart()
            if "log" in machine.disk.names(""):
                assert list(machine.disk.durable("log")) == [number + 1 for number in seen]
            else:
                assert at <= 2
            return len(seen)

        return inner

    lengths = [simulate(scenario(at), 1) for at in range(1, 14)]
    assert lengths == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


def test_a_program_can_crash_its_own_machine():
    async def program(machine):
        machine.crash()
        raise AssertionError("must not get here")

    async def scenario(world):
        machine = world.machine("m")
        with pytest.raises(MachineCrashedError):
            await machine.run(program(machine))

    simulate(scenario, 1)


def test_a_callback_can_crash_its_own_machine():
    seen = []

    async def program(machine):
        asyncio.get_running_loop().call_later(1, fails, machine)
        await forever()

    def fails(machine):
        try:
            machine.crash()
        finally:
            seen.append("raised")
            raise KeyError("of no interest to anybody any more")

    async def scenario(world):
        machine = world.machine("m")
        with pytest.raises(MachineCrashedError):
            await machine.run(program(machine))
        assert seen == ["raised"]

    simulate(scenario, 1)


def test_a_crash_stops_one_machine_only():
    async def program(ticks):
        while True:
            ticks.append(None)
            await asyncio.sleep(1)

    async def scenario(world):
        ticks = {name: [] for name in "ab"}
        for name in "ab":
            world.machine(name).run(program(ticks[name]))
        await asyncio.sleep(9.5)
        world.machine("a").crash()
        await asyncio.sleep(10)
        assert (len(ticks["a"]), len(ticks["b"])) == (10, 20)

    simulate(scenario, 1)


def test_tasks_started_by_a_protocol_die_with_its_machine():
    ticks = []

    class Ticking(asyncio.Protocol):
        def data_received(self, data):
            self.task = asyncio.create_task(self.tick())

        async def tick(self):
            while True:
                ticks.append(None)
                await asyncio.sleep(1)

    async def program(machine):
        await machine.network.listen(Ticking, "0.0.0.0", 9)
        await forever()

    async def scenario(world):
        server, client = world.machine("server"), world.machine("client")
        server.run(program(server))
        await asyncio.sleep(1)
        protocol = await client.network.connect(Silent, "server", 9)
        protocol.transport.write(b"start")
        await asyncio.sleep(5.5)
        assert len(ticks) == 6
        server.crash()
        await asyncio.sleep(5)
        assert len(ticks) == 6

    simulate(scenario, 1)


def test_a_program_outlives_the_machine_that_started_it_on_another():
    async def fails_later():
        await asyncio.sleep(10)
        raise KeyError("on purpose")

    async def starts_it(other):
        await other.run(fails_later())

    async def scenario(world):
        first, other = world.machine("first"), world.machine("other")
        first.run(starts_it(other))
        await asyncio.sleep(1)
        first.crash()
        await asyncio.sleep(100)

    with pytest.raises(UnhandledError, match="on purpose"):
        simulate(scenario, 1)


# --- programs ---


def test_a_program_ends_with_its_result_or_its_error():
    async def fails():
        raise KeyError("on purpose")

    async def scenario(world):
        machine = world.machine("m")
        assert await machine.run(asyncio.sleep(1, "result")) == "result"
        with pytest.raises(KeyError, match="on purpose"):
            await machine.run(fails())

    simulate(scenario, 1)


def test_cancelling_waits_for_the_program_to_clean_up():
    seen = []

    async def program():
        try:
            await forever()
        finally:
            await asyncio.sleep(1)
            seen.append("clean")

    async def scenario(world):
        running = world.machine("m").run(program())
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert seen == ["clean"]

    simulate(scenario, 1)


def test_a_paused_machine_stands_still_and_continues_after_resume():
    async def program(world, ticks):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await forever()
        while True:
            ticks.append(world.now())
            await asyncio.sleep(1)

    async def scenario(world):
        machine = world.machine("m")
        ticks = []
        machine.run(program(world, ticks))
        await asyncio.sleep(6.5)
        machine.pause()
        await asyncio.sleep(100)
        assert ticks == [5, 6]
        machine.resume()
        await asyncio.sleep(2)
        assert ticks == [5, 6, 106.5, 107.5, 108.5][: len(ticks)]
        assert len(ticks) >= 4

    simulate(scenario, 1)


def test_a_timer_cancelled_by_an_earlier_timer_after_a_pause_does_not_fire():
    async def program(seen):
        loop = asyncio.get_running_loop()
        second = loop.call_later(2, seen.append, "second")
        loop.call_later(1, second.cancel)
        await asyncio.sleep(10)

    async def scenario(world):
        machine = world.machine("m")
        seen = []
        running = machine.run(program(seen))
        await asyncio.sleep(0.5)
        machine.pause()
        await asyncio.sleep(5)
        machine.resume()
        await running
        assert seen == []

    simulate(scenario, 1)


def test_a_paused_reader_stops_the_writer():
    async def program(machine):
        await machine.network.listen(Silent, "0.0.0.0", 9)
        await forever()

    async def scenario(world):
        machine = world.machine("m")
        machine.run(program(machine))
        await asyncio.sleep(1)
        protocol = await world.machine("client").network.connect(Silent, "m", 9)
        await asyncio.sleep(1)
        machine.pause()
        protocol.transport.write(b"x" * 1_000_000)
        await asyncio.sleep(1000)
        assert protocol.transport.get_write_buffer_size() > 900_000
        assert not protocol.ended.done()
        machine.resume()
        await asyncio.sleep(10)
        assert protocol.transport.get_write_buffer_size() == 0

    simulate(scenario, 1)


# --- what fails a run ---


def test_an_unretrieved_task_error_fails_the_run_at_once():
    async def fails():
        raise KeyError("on purpose")

    async def scenario(world):
        asyncio.create_task(fails())
        await asyncio.sleep(1000)

    with pytest.raises(UnhandledError, match=r"task-2: .*KeyError\('on purpose'\)") as caught:
        simulate(scenario, 1)
    assert isinstance(caught.value.__cause__, KeyError)
    (note,) = caught.value.__notes__
    assert "after 0.000000 virtual seconds" in note


def test_an_error_in_a_callback_fails_the_run():
    async def scenario(world):
        asyncio.get_running_loop().call_later(1, [].pop)
        await asyncio.sleep(1000)

    with pytest.raises(UnhandledError, match="IndexError"):
        simulate(scenario, 1)


def test_an_error_in_a_program_fails_the_run_even_if_its_task_is_kept():
    async def fails():
        raise KeyError("on purpose")

    kept = []

    async def scenario(world):
        kept.append(world.machine("m").run(fails()))
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match=r"\[m/fails\]: .*KeyError"):
        simulate(scenario, 1)


def test_a_failed_run_notes_the_other_errors():
    async def fails():
        raise KeyError("the reason")

    async def scenario(world):
        task = asyncio.create_task(fails())
        await asyncio.wait([task, asyncio.create_task(forever())])

    with pytest.raises(AssertionError, match="nothing is scheduled") as caught:
        simulate(scenario, 1)
    assert any("the reason" in note for note in caught.value.__notes__)


def test_tasks_left_behind_fail_the_run():
    async def scenario(world):
        world.left = asyncio.create_task(forever(), name="left")

    with pytest.raises(LeakedTaskError, match="left: forever > Event.wait"):
        simulate(scenario, 1)


def test_a_garbage_collected_pending_task_fails_the_run():
    async def scenario(world):
        asyncio.create_task(forever())
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="task-2: Task was destroyed but it is pending"):
        simulate(scenario, 1)


def test_tasks_left_behind_by_a_program_fail_the_run():
    async def program():
        left.append(asyncio.create_task(forever(), name="left"))

    left = []

    async def scenario(world):
        await world.machine("m").run(program())

    with pytest.raises(LeakedTaskError, match="left: forever"):
        simulate(scenario, 1)


def test_running_programs_and_tasks_being_cancelled_are_not_leaks():
    async def program():
        await asyncio.gather(forever(), forever())

    kept = []

    async def scenario(world):
        kept.append(world.machine("m").run(program()))
        await asyncio.sleep(1)
        asyncio.create_task(forever()).cancel()

    simulate(scenario, 1)


def test_a_failed_run_says_how_to_repeat_it():
    async def scenario(world):
        await asyncio.sleep(1.5)
        assert world.seed != 4711

    with pytest.raises(AssertionError) as caught:
        simulate(scenario, 4711)
    (note,) = caught.value.__notes__
    assert note.startswith("repeat with: seed=4711 scenario=test_a_failed_run_says")
    assert "\n" not in note


def test_a_failing_scenario_notes_the_errors_of_its_programs():
    async def fails():
        raise KeyError("the reason")

    kept = []

    async def scenario(world):
        kept.append(world.machine("m").run(fails()))
        await asyncio.sleep(1)
        raise ValueError("the consequence")

    with pytest.raises(ValueError) as caught:
        simulate(scenario, 1)
    assert any("the reason" in note for note in caught.value.__notes__)


@run_by(simulate, 1)
async def test_programs_started_on_a_paused_machine_wait(world, /):
    machine = world.machine("m")
    machine.pause()
    running = machine.run(asyncio.sleep(1, "done"))
    await asyncio.sleep(10)
    assert not running.done()
    machine.resume()
    assert await running == "done"
    machine.pause()
    machine.restart()
    assert await machine.run(asyncio.sleep(1, "again")) == "again"


def test_a_run_with_a_crash_logs_nothing(caplog):
    async def scenario(world):
        machine = world.machine("m")
        machine.run(forever())
        machine.crash()

    with caplog.at_level(logging.INFO):
        simulate(scenario, 1)
    assert not caplog.records


def test_a_world_that_never_ran_can_be_closed():
    with World(1) as world:
        world.machine("m")


# --- small parts ---


@run_by(simulate, 1)
async def test_a_machines_clock_can_jump_and_drift(world, /):
    clock, right = world.machine("a").clock, world.machine("b").clock
    began = clock.wall_ms()
    assert began == right.wall_ms()
    await asyncio.sleep(10)
    assert clock.wall_ms() == began + 10_000
    clock.jump(-3600)
    assert clock.wall_ms() == began + 10_000 - 3_600_000
    clock.drift(0.01)
    assert clock.wall_ms() == began + 10_000 - 3_600_000
    await asyncio.sleep(100)
    assert clock.wall_ms() == began + 110_000 - 3_600_000 + 1000
    clock.drift(0)
    await asyncio.sleep(1)
    assert clock.wall_ms() == began + 111_000 - 3_600_000 + 1000
    assert right.wall_ms() == began + 111_000
    assert clock.monotonic() == asyncio.get_running_loop().time() == 111
    late = SimulatedClock(asyncio.get_running_loop())
    assert late.wall_ms() == right.wall_ms()


def test_random_draws_follow_from_the_seed():
    def draws(entropy):
        return entropy.below(1000), entropy.fraction(), entropy.token(8), entropy.chance(0.5)

    assert draws(SeededEntropy(1)) == draws(SeededEntropy(1)) != draws(SeededEntropy(2))
    one, other = SeededEntropy(1), SeededEntropy(1)
    one.below(10)
    assert draws(one.fork("a")) == draws(other.fork("a")) != draws(other.fork("b"))


def test_a_machines_random_draws_depend_only_on_its_name_and_seed():
    def first_token(names):
        with World(1) as world:
            for name in names:
                world.machine(name)
            assert world.machine("x") is world.machine("x")
            return world.machine("x").entropy.token(8)

    assert first_token(["x"]) == first_token(["a", "b", "x"])
