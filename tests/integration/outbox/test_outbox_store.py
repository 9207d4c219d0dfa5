"""A relay's access to its outbox: a relay that leaves while a beat still runs."""

import asyncio
import threading
from contextlib import suppress

from sqlalchemy import NullPool, create_engine, text

from tests.waiting import run, until
from txmq.databases.sources import adapter_of
from txmq.outbox.store import OutboxStore
from txmq.outbox.table import Outbox


class GatedAdapter:
    """A database whose first session opens only when the test opens the gate."""

    def __init__(self, adapter):
        self._adapter = adapter
        self.is_asked = threading.Event()
        self.gate = threading.Event()

    def __getattr__(self, name):
        return getattr(self._adapter, name)

    async def open(self):
        if not self.is_asked.is_set():
            self.is_asked.set()
            assert self.gate.wait(10)
        return await self._adapter.open()


def test_a_relay_that_leaves_releases_slots_taken_by_a_cancelled_beat(tmp_path, monkeypatch):
    outbox = Outbox()
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db", poolclass=NullPool)
    with engine.begin() as connection:
        for statement in outbox.ddl("sqlite"):
            connection.execute(text(statement))
    adapter = GatedAdapter(adapter_of(engine))

    async def scenario():
        store = OutboxStore(outbox, adapter, "a relay", lease_s=30.0, answer_s=10.0)
        beat = asyncio.create_task(store.beat())
        await until(adapter.is_asked.is_set)
        beat.cancel()
        with suppress(asyncio.CancelledError):
            await beat

        sessions = []
        session = store.run
        monkeypatch.setattr(store, "run", lambda *work: sessions.append(work) or session(*work))
        leaving = asyncio.create_task(store.leave())
        await asyncio.sleep(0)
        if sessions:  # It did not wait for the beat: let it end before the beat takes slots.
            await leaving
        adapter.gate.set()
        await leaving
        await store.close()

    run(scenario)

    with engine.connect() as connection:
        held = f"SELECT COUNT(*) FROM {outbox.slots.fullname} WHERE token <> ''"
        assert connection.execute(text(held)).scalar_one() == 0
