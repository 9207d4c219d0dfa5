"""Programs that send for later and recall, and members whose handlers fail as they are told.

What handlers do with a message stands in its property ``PLAN``, so every group does the same and a
message that comes again is known to.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

from msgspec import structs

from tests.simulation.client_history import Sent
from tests.simulation.client_people import Member, Sender
from tests.simulation.delivery_history import (
    DONE,
    MAYBE,
    REFUSED,
    Recalled,
    Recalling,
    Returned,
    Returning,
    Waits,
    Wish,
    Writing,
)
from tests.simulation.delivery_mix import DeliveryMix
from tests.simulation.workload import TAGS
from txmq.client.client import Client
from txmq.client.consume import Later, PushConsumer
from txmq.client.send.producer import Producer
from txmq.client.settings import ConsumerSettings, ProducerSettings
from txmq.client.values import SendResult, SendStatus
from txmq.errors import Effect, IllegalOperation, TxmqError
from txmq.message import DEAD_LETTER, Message, ReceivedMessage
from txmq.protocol import recall
from txmq.testing.machine import EPOCH_MS

__all__ = ["PatientSender", "TryingMember"]

PLAN = "PLAN"

ONCE = ProducerSettings(retries=0)
"""Every attempt is a message of its own here, so that it is known which of them came."""


class PatientSender(Sender):
    """Sends some messages for later, and recalls some of those."""

    mix: DeliveryMix

    async def _live(self) -> None:
        async with (
            self._client() as client,
            Producer("senders", client, ONCE) as producer,
            asyncio.TaskGroup() as recalls,
        ):
            while self._count < self.mix.sends and not self.is_enough:
                self._count += 1
                key, result = await self._send(producer, f"{self.name}.{self._count}")
                if result.recall_handle and self._draw.chance(self.mix.recall_chance):
                    recalls.create_task(self._recall(producer, key, result))
                await asyncio.sleep(self.mix.think_s * self._draw.fraction())

    async def _send(self, producer: Producer, name: str) -> tuple[str, SendResult]:
        letter, wish = self._write(producer, name)
        for attempt in count():
            key = f"{name}#{attempt}"
            result = await self._try(producer, letter, key, wish)
            if result is not None:
                return key, result
            await self._pause(attempt)
        raise AssertionError("it is tried for ever")

    def _write(self, producer: Producer, name: str) -> tuple[Message, Wish | None]:
        draw, wish = self._draw, self._wish()
        plan = self.mix.plans[draw.below(len(self.mix.plans))]
        message = Message(
            topic=f"Topic{draw.below(self.mix.topics)}",
            body=name.encode(),
            tags=TAGS[draw.below(len(TAGS))],
            properties={
                "UNIQ_KEY": producer.client.session.ids.next(),
                PLAN: f"{plan} {1 + draw.below(3)}",
            },
        )
        if wish is None:
            return message, None
        later = replace(
            message,
            delay_level=wish.level,
            deliver_at_ms=wish.at_ms or None,
            deliver_after=wish.after_s or None,
        )
        return later, wish

    def _wish(self) -> Wish | None:
        draw, mix = self._draw, self.mix
        kind = mix.wishes[draw.below(len(mix.wishes))]
        if kind == "now":
            return None
        if kind == "level":
            return Wish(level=1 + draw.below(len(mix.levels.split()) + 1))
        if kind == "after":
            return Wish(after_s=1 + draw.below(int(mix.wait_s)))
        # Some of these times have passed.
        wait_s = mix.wait_s * (1.1 * draw.fraction() - 0.1)
        return Wish(at_ms=EPOCH_MS + int(1000 * (self.now() + wait_s)))

    async def _try(
        self, producer: Producer, letter: Message, key: str, wish: Wish | None
    ) -> SendResult | None:
        unique = letter.properties["UNIQ_KEY"]
        self.history.add(Writing(self.now(), key, unique, letter.topic, letter.tags, wish))
        try:
            result = await producer.send(replace(letter, keys=(key,)))
        except TxmqError:
            return None
        if result.status is not SendStatus.OK:
            return None
        queue = result.queue
        if result.recall_handle:
            due_ms = recall.decode(result.recall_handle).due_ms
            self.history.add(Waits(self.now(), key, queue.broker, due_ms))
        else:
            self.history.add(Sent(self.now(), key, queue, int(result.offset), letter.tags))
        return result

    async def _recall(self, producer: Producer, key: str, result: SendResult) -> None:
        handle = result.recall_handle or ""
        await asyncio.sleep(self.mix.wait_s * self._draw.fraction())
        for attempt in count():
            self.history.add(Recalling(self.now(), key))
            answer = DONE
            try:
                await producer.recall(result.queue.topic, handle)
            except IllegalOperation:
                answer = REFUSED
            except TxmqError:
                answer = MAYBE
            self.history.add(Recalled(self.now(), key, answer))
            if answer != MAYBE:
                return
            await self._pause(attempt)


class _Returns(PushConsumer):
    """A consumer that tells a member of each message it hands back."""

    def __init__(self, member: TryingMember, client: Client, settings: ConsumerSettings) -> None:
        super().__init__(member.group, client, settings)
        self._member = member

    def _make_runner(self):
        runner = super()._make_runner()
        send_back = runner._send_back

        async def told(message: ReceivedMessage, level: int, reason: str) -> None:
            await self._member.returning(message, level, send_back(message, level, reason))

        runner._send_back = told
        return runner


class TryingMember(Member):
    """A consumer that does with each message what it was sent for."""

    mix: DeliveryMix

    def _settings(self) -> ConsumerSettings:
        return structs.replace(
            super()._settings(),
            attempts_max=self.mix.attempts_max,
            consume_timeout=self.mix.timeout_s,
        )

    def _pushed(self, client: Client, settings: ConsumerSettings) -> PushConsumer:
        return _Returns(self, client, settings)

    async def _work(self, message: ReceivedMessage) -> Later | None:
        await super()._work(message)
        plan, _, number = message.properties[PLAN].partition(" ")
        before, many = message.attempts, int(number)
        if plan == "stall" and not before:
            # In order, everybody else would have to wait.
            most = 0.2 if self.dials.is_orderly else 2.0
            await asyncio.sleep(self.mix.timeout_s * (0.8 + most * self._draw.fraction()))
        if plan == "level" and not before:
            return Later(level=many)
        if plan == "dead":
            return Later(level=DEAD_LETTER if before >= many - 1 else 0)
        if plan == "always" or (plan == "fail" and before < many):
            return self._fail(message)
        return None

    async def returning(self, message: ReceivedMessage, level: int, sending) -> None:
        """A message is handed back."""
        queue, key = message.queue, message.key
        number = len(self.history.events)
        begun = Returning(self.now(), number, self.group, queue, int(message.position), key, level)
        self.history.add(begun)
        answer = MAYBE
        try:
            await sending
            answer = DONE
        except TxmqError as problem:
            answer = REFUSED if problem.effect is Effect.NONE else MAYBE
            raise
        finally:
            args = (queue, int(message.offset), key, message.attempts, level, answer)
            self.history.add(Returned(self.now(), number, self.group, *args))
