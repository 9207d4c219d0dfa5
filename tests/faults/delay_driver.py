"""A client that sends delayed messages to a broker that is about to die; see crash_driver.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.crash_points import RECALL
from txmq.protocol import properties
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    RecallMessage,
    SendAnswer,
    SendMessage,
    TopicSettings,
)

if TYPE_CHECKING:
    from tests.faults.crash_driver import Peer

__all__ = ["Delays"]

TOPIC = "L"
_SOON_MS, _LATE_MS = 20, 3000
_CYCLES = 4
_PATIENCE = 20
"""Pulls, each held for some seconds where there is nothing."""
_GONE = 604


@dataclass(slots=True)
class Later:
    """A message that is to come later, and what the broker has acknowledged of it."""

    unique: str
    body: bytes
    handle: str | None = None
    is_unwanted: bool = False
    is_recalled: bool = False


class Delays:
    """Sends delayed messages and recalls them, one after another."""

    def __init__(self) -> None:
        self._fresh: list[Later] = []
        self._all: list[Later] = []
        self._came: list[bytes] = []

    # Until it is gone

    async def work(self, peer: Peer, phase: str) -> None:
        """Use the broker so that a phase comes again and again."""
        for _ in range(_CYCLES):
            if phase == RECALL:
                later = await self._send(peer, _LATE_MS)
                await self._recall(peer, later)
                assert later.is_recalled, f"{later} could not be recalled"
            else:
                later = await self._send(peer, _SOON_MS)
                await self._wait_for(peer, later)

    async def _send(self, peer: Peer, wait_ms: int) -> Later:
        unique = f"L{len(self._all)}"
        later = Later(unique, unique.encode() + b"." * 100)
        self._fresh.append(later)
        self._all.append(later)
        text = properties.render({"UNIQ_KEY": unique, "TIMER_DELAY_MS": str(wait_ms)})
        header = SendMessage("P", TOPIC, "TBW102", 1, 0, 0, 0, 0, text, 0)
        answer = await peer.ask(RequestCode.SEND_MESSAGE, header, later.body)
        assert answer.code == 0, (later, answer.code, answer.remark)
        later.handle = answer.read(SendAnswer).recall_handle
        return later

    async def _recall(self, peer: Peer, later: Later) -> None:
        later.is_unwanted = True
        answer = await peer.ask(RequestCode.RECALL_MESSAGE, RecallMessage(TOPIC, later.handle))
        assert answer.code in (0, _GONE), (later, answer.code, answer.remark)
        assert not (later.is_recalled and answer.code), "a recall was forgotten"
        later.is_recalled = answer.code == 0

    async def _wait_for(self, peer: Peer, later: Later) -> None:
        for _ in range(_PATIENCE):
            if later.body in self._came:
                return
            for record in await peer.pull(TOPIC, len(self._came), hold=True):
                assert record.queue_offset == len(self._came)
                self._came.append(record.body)
        raise AssertionError(f"{later} did not come")

    # When it is back

    async def verify(self, peer: Peer) -> None:
        """Delayed messages come, and a recalled message may be recalled again."""
        settings = TopicSettings(TOPIC, "TBW102", 1, 1, 6)
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, settings)).code == 0
        fresh, self._fresh = self._fresh, []
        for later in fresh:
            if later.is_unwanted:
                await self._recall(peer, later)
            if later.handle is not None and not later.is_recalled:
                await self._wait_for(peer, later)

    async def verify_all(self, peer: Peer) -> None:
        """Verify everything that ever was, reading from the first message on."""
        await self.verify(peer)
        # Every other delayed message is due before this one.
        await self._wait_for(peer, await self._send(peer, _LATE_MS))
        assert [message.body for message in await peer.everything(TOPIC)] == self._came
        count = Counter(self._came)
        for later in self._all:
            if later.is_recalled:
                assert not count[later.body], f"{later} came"
            elif later.handle is not None:
                assert count[later.body] == 1, later
            else:
                assert count[later.body] <= 1, later
