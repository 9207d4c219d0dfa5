"""A stage for crashes: tellers in processes of their own, and others of their group."""

import asyncio
import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
from dataclasses import asdict

from tests.integration.transaction.crash_bank import QUEUES, Scene
from tests.integration.transaction.crash_teller import Plan
from tests.integration.transaction.crash_wire import BrokerWire, DatabaseWire
from tests.servers.serving import environment
from txmq import Client, SQLResource, TransactionManager

__all__ = ["Tellers", "another", "on_scene", "plan", "soak", "soaked", "wires"]

LINE_SECONDS = 30
SOAK = int(os.environ.get("TXMQ_SOAK") or 0)


def soak(modest, full):
    """How often to repeat: ``modest`` times, ``full`` times in a soak, or as TXMQ_SOAK says."""
    return modest if not SOAK else (full if SOAK == 1 else SOAK)


def soaked(modest, more):
    """Which cases to run: these, and more in a soak."""
    return [*modest, *more] if SOAK else modest


class Tellers:
    """A process that runs tellers, one after the other."""

    def __init__(self, folder, module="tests.integration.transaction.crash_teller"):
        self._log = folder / "tellers.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
                cwd=folder,
                start_new_session=True,
            )
        self._lines = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pid, self._is_busy = None, False
        self.xids = {}
        self.said = {}

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(line.decode())
        self._lines.put("gone")

    async def start(self, plan):
        """A new one begins; what the last one said is forgotten."""
        if self._is_busy:  # A test has failed in its middle.
            await self.kill()
            while (await self._line())[0] != "ended":
                pass
        self._is_busy = True
        self.xids, self.said = {}, {}
        self._process.stdin.write(json.dumps(asdict(plan)).encode() + b"\n")
        self._process.stdin.flush()
        self.pid = int(await self._until("pid"))

    async def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def send(self, number):
        os.kill(self.pid, number)

    async def opened(self):
        while not (await self._said()).get("open"):
            pass

    async def stopped(self):
        await self._until("stopped")

    async def nap(self, seconds):
        """Pause the teller for some seconds; returns whether it was still running."""
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGSTOP)
        if code := await self._until("stopped", "ended"):
            assert code == "0", self.tail()
            self._is_busy = False
            return False
        await asyncio.sleep(seconds)
        self.send(signal.SIGCONT)
        return True

    async def ended(self):
        """How it ended."""
        code = int(await self._until("ended"))
        self._is_busy = False
        return code

    async def _until(self, *words):
        while True:
            found, rest = await self._line()
            if found in words:
                return rest
            assert found == "said", f"{found} {rest}, not {words}\n{self.tail()}"
            self._note(json.loads(rest))

    async def _said(self):
        found, rest = await self._line()
        assert found == "said", f"{found} {rest}\n{self.tail()}"
        self._note(json.loads(rest))
        return json.loads(rest)

    def _note(self, said):
        if "xid" in said:
            self.xids[said["id"]] = said["xid"]
        elif said["id"] is not None:
            self.said[said["id"]] = said

    async def _line(self):
        try:
            line = await asyncio.to_thread(self._lines.get, timeout=LINE_SECONDS)
        except queue.Empty:
            raise AssertionError(f"no teller says a word\n{self.tail()}") from None
        word, _, rest = line.strip().partition(" ")
        return word, rest

    def tail(self):
        return self._log.read_text()[-3000:]

    def close(self):
        # This also kills a running teller: all are in one session of their own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._reader.join()
        self._process.stdout.close()


@contextlib.asynccontextmanager
async def another(scene, **options):
    """Another member of the group, which runs all the time."""
    engine = scene.bank.awaited()
    resource = SQLResource(engine, **options)
    manager = TransactionManager(scene.group, scene.broker.names, resource)
    try:
        async with manager:
            yield manager
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def wires(scene):
    """Lines to the broker and to the database that can be cut."""
    async with contextlib.AsyncExitStack() as stack:
        broker = await stack.enter_async_context(BrokerWire(scene.broker.address))
        if scene.bank.is_file:
            yield broker, None
        else:
            yield broker, await stack.enter_async_context(DatabaseWire(scene.bank.url))


def plan(scene, kind, ways, **more):
    """What a teller of a scene is told."""
    to_broker, to_database = ways
    url = scene.bank.url if to_database is None else scene.bank.url.set(port=to_database.port)
    if kind == "sqlite-async":
        url = url.set(drivername="sqlite+aiosqlite")
    return Plan(
        kind=kind,
        url=url.render_as_string(hide_password=False),
        names=scene.broker.names,
        group=scene.group,
        topic=scene.topic,
        ways={to_broker.real_port: to_broker.port},
        **more,
    )


@contextlib.asynccontextmanager
async def on_scene(broker, bank):
    """A topic and a group for one test."""
    scene = Scene(broker, bank, secrets.token_hex(4))
    async with Client(broker.names) as client:
        await client.admin.create_topic(scene.topic, QUEUES)
    yield scene
