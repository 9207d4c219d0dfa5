"""What a function comes to, and transactions whose message is made from that.

Such a message cannot be stored before the function runs, so it is stored before the commit: the
local transaction is begun under an id that its message will have, the function runs, the half
message is made and sent, and only then is committed. Until the half message is known to lie where
it is safe nothing is, and whatever goes wrong rolls back.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from txmq.errors import ConfigError, OutcomeUnknown, RollBack, TransactionConflict, UsageError
from txmq.limits import LATE_SECONDS_MAX
from txmq.message import Message
from txmq.runtime.threads import Runner
from txmq.transaction.listener import Draft, Half, HalfMessage
from txmq.transaction.manager_branch import Attempts, Branch, Call, LocalTransaction, Work
from txmq.transaction.manager_current import refuse_another
from txmq.transaction.manager_message import Shape
from txmq.transaction.producer import TransactionProducer
from txmq.transaction.settings import ManagerSettings
from txmq.transaction.state import LocalTransactionState, TransactionOutcome, TransactionState

__all__ = ["Late", "LateWork", "explain", "settled"]

S = TypeVar("S")

LOOK_S: Final = 1.0
"""How soon Ctrl-C is noticed that came at a bad moment."""

_ROLLBACK = LocalTransactionState.ROLLBACK


class LateWork(Work[S]):
    """One call of a function, as a local transaction that sends its half message itself.

    Args:
        call: The function, and its arguments after the session.
        born_ms: When the transaction began.
        draft: Its half message.
        attempts: How often it is run, and until when, under this id and others.
        make: Makes the message of a result; where the function runs.
        send: Sends it, in the loop that runs now.
    """

    # The half message has one result, and the next attempt another.
    is_repeatable = False

    def __init__(
        self,
        call: Call,
        born_ms: int,
        draft: Draft,
        attempts: Attempts,
        make: Callable[[object], Message],
        send: Callable[[Draft, Message], Coroutine[Any, Any, None]],
    ) -> None:
        super().__init__(call, born_ms)
        self.draft = draft
        self._attempts = attempts
        self._make = make
        self._send = send
        self._loop = asyncio.get_running_loop()

    @property
    def half(self) -> HalfMessage | None:
        """What has been sent."""
        return self.draft.half

    def start(self, half: Half, attempts: Callable[[str], Attempts]) -> Attempts:
        """See :meth:`Work.start`."""
        del half, attempts
        return self._attempts

    def finish(self, local: LocalTransaction[S], attempts: Attempts, result: object) -> None:
        """Send the half message, while this thread waits.

        Raises:
            Exception: Why there is none; nothing may be committed then.
        """
        local.flush()
        message = self._make(result)
        attempts.see_time()
        sending = self._sending(message)
        try:
            while not sending.done():
                attempts.see_time()
                # Ctrl-C may come just before this thread falls asleep, and would not wake it.
                with suppress(TimeoutError):
                    sending.exception(min(LOOK_S, max(0.0, attempts.left_s)))
            sending.result()
        except concurrent.futures.CancelledError as problem:
            raise UsageError("the manager was closed meanwhile") from problem
        finally:
            sending.cancel()

    def _sending(self, message: Message) -> concurrent.futures.Future[None]:
        work = self._send(self.draft, message)
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as problem:
            work.close()
            raise UsageError("the manager was closed meanwhile") from problem

    async def afinish(self, local: LocalTransaction[S], attempts: Attempts, result: object) -> None:
        """The same in the loop.

        Raises:
            Exception: Why there is none; nothing may be committed then.
        """
        await local.aflush()
        await self._send(self.draft, self._make(result))
        attempts.see_time()


class Late(Generic[S]):
    """Runs functions whose messages are made from what they return.

    Args:
        producer: Sends and decides.
        branch: Where local transactions are.
        settings: How long they may take.
    """

    def __init__(
        self,
        producer: TransactionProducer,
        branch: Branch[S],
        settings: ManagerSettings,
    ) -> None:
        self._producer = producer
        self._branch = branch
        self._limit_s = settings.local_timeout_s

    def see_limit(self) -> None:
        """See that no half message is so much younger than its row that the row is removed first.

        Raises:
            ConfigError: Local transactions may take too long for that.
        """
        if self._limit_s > LATE_SECONDS_MAX:
            raise ConfigError(
                f"a message is made from a result {LATE_SECONDS_MAX} s after its transaction began "
                f"at the latest: local_timeout_s is {self._limit_s}"
            )

    async def run(self, shape: Shape, call: Call, runner: Runner | None) -> TransactionOutcome:
        """Run a function, again if need be, each time in a transaction of its own.

        Args:
            shape: How a message is made of a result.
            call: The function, and its arguments after the session.
            runner: Where it runs if it is a plain one.

        Raises:
            Exception: As for :meth:`txmq.TransactionManager.transactional`.
        """
        refuse_another()
        topic = shape.topic if isinstance(shape.topic, str) else ""
        attempts: Attempts | None = None
        while True:
            session = self._producer.client.session
            draft = Draft(id=session.ids.next(), group=self._producer.group, topic=topic)
            attempts = attempts or self._branch.attempts(draft.id)
            attempts.xid = draft.id
            work: LateWork[S] = LateWork(
                call, session.clock.wall_ms(), draft, attempts,
                shape.message_of, self._producer.prepare_late,
            )  # fmt: skip
            outcome = await self._once(work, runner)
            pause_s = None
            if work.problem is not None and draft.said is not None:
                pause_s = self._branch.pause_s(draft.said, attempts, work.problem)
            if pause_s is None:
                return self._settled(draft, work, outcome)
            await asyncio.sleep(pause_s)

    async def _once(self, work: LateWork[S], runner: Runner | None) -> TransactionOutcome | None:
        try:
            return await self._producer.transact_late(work.draft, work, runner)
        except TransactionConflict as conflict:
            explain(conflict, work.problem)
            raise

    def _settled(
        self, draft: Draft, work: LateWork[S], outcome: TransactionOutcome | None
    ) -> TransactionOutcome:
        if outcome is not None:
            return settled(outcome, work.problem, work.result)
        problem = work.problem or draft.problem
        if draft.said is not _ROLLBACK:
            raise OutcomeUnknown(
                f"local transaction {draft.id} was left or ended inside before it had a message; "
                "none is sent, and what became of it is not known"
            ) from problem
        assert problem is not None, "what has returned has sent a message"
        # No broker asks about it, so there is nothing that one could acknowledge.
        outcome = TransactionOutcome(
            state=TransactionState.ROLLED_BACK, xid=draft.id, sent=None, is_acknowledged=True
        )
        self._producer.tally.ended(outcome)
        return settled(outcome, problem, None)


def explain(conflict: TransactionConflict, problem: BaseException | None) -> None:
    """See that a conflict does not hide what the local transaction raised."""
    if problem is not None:
        conflict.add_note(f"its local transaction raised {problem!r}")


def settled(
    outcome: TransactionOutcome, problem: BaseException | None, result: object
) -> TransactionOutcome:
    """What the caller is given, or what it is raised."""
    if problem is None:
        return outcome if result is None else replace(outcome, result=result)
    if outcome.state is TransactionState.ROLLED_BACK and not isinstance(problem, RollBack):
        problem.add_note(f"transaction {outcome.xid} is rolled back")
        raise problem
    known = problem if isinstance(problem, Exception) else None
    return replace(outcome, problem=known)
