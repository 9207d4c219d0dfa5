"""Selects and resends dead letters, with a result for each. Prints nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, NamedTuple

from txmq.client import Admin
from txmq.client.admin.dead_letters import provenance
from txmq.client.values import SendStatus
from txmq.errors import Effect, TransportError, TxmqError
from txmq.message import ReceivedMessage
from txmq.ops.known_names import check_group

__all__ = [
    "BEFORE",
    "DOUBTFUL",
    "REFUSED",
    "RESENT",
    "LetterFilter",
    "ResendResult",
    "ResendRun",
]

RESENT: Final = "resent"
BEFORE: Final = "resent before"
DOUBTFUL: Final = "in doubt"
REFUSED: Final = "failed"
UNTRIED: Final = "not tried"


class LetterFilter(NamedTuple):
    """Selects dead letters of a group."""

    group: str
    begin_ms: int
    end_ms: int
    topic: str | None

    def letters(
        self, admin: Admin, count: int | None = None
    ) -> AsyncGenerator[ReceivedMessage, None]:
        """Read the selected letters from the cluster."""
        return admin.dead_letters(
            self.group,
            count=count,
            begin_ms=self.begin_ms,
            end_ms=self.end_ms,
            topic=self.topic,
        )


class ResendResult(NamedTuple):
    """The result of resending one dead letter."""

    id: str
    place: str
    outcome: str
    note: str


class ResendRun:
    """Dead letters of a group that one operator resends, and the result for each.

    Args:
        group: The group.
        reason: Why; stored with each copy.
        operator: Who; stored with the reason.
        force: Also resend letters that were resent before.
        on_progress: Called after each dead letter.
    """

    def __init__(
        self,
        group: str,
        reason: str,
        operator: str,
        *,
        force: bool,
        on_progress: Callable[[], object] = lambda: None,
    ) -> None:
        self._group = group
        self._reason = reason
        self._operator = operator
        self._force = force
        self._on_progress = on_progress
        self._found: list[ResendResult] = []
        self._is_cut_off = False
        self._resent = 0

    async def these(self, message_ids: list[str], admin: Admin) -> list[ResendResult]:
        """Resend the named dead letters; stop when the connection to a broker fails."""
        for message_id in dict.fromkeys(message_ids):
            if self._is_cut_off:
                self._note(message_id, "", UNTRIED, "see above")
                continue
            try:
                message = await admin.dead_letter(self._group, message_id)
            except TxmqError as error:
                self._note_failure(message_id, "", error)
            else:
                await self._one(admin, message)
        return self._found

    async def all(
        self, wanted: LetterFilter, admin: Admin, *, most: int | None = None
    ) -> list[ResendResult]:
        """Resend the selected dead letters; stop when the connection to a broker fails.

        Args:
            wanted: The dead letters.
            admin: The connection to the cluster.
            most: Stop after resending this many.

        Raises:
            GroupNotFound: The group has no dead letters, and does not exist.
            TransportError: A server did not answer before the first dead letter.
            BrokerRefused: A broker refused before the first dead letter.
        """
        letters = wanted.letters(admin)
        try:
            async with aclosing(letters) as found:
                async for message in found:
                    await self._one(admin, message)
                    if self._is_cut_off:
                        self._note("the rest", "", UNTRIED, "run it again: no message goes twice")
                        break
                    if most is not None and self._resent >= most:
                        break
        except TxmqError as error:
            if not self._found:
                raise
            # Do not raise: the caller must print the results so far.
            self._note_failure("the rest", "", error)
        if not self._found:
            await check_group(admin, self._group)
        return self._found

    async def _one(self, admin: Admin, message: ReceivedMessage) -> None:
        try:
            before = None if self._force else await admin.resent_copy(self._group, message)
            if before is not None:
                note = f"{provenance(before)}; --force resends it once more"
                self._note(message.id, message.offset_id, BEFORE, note)
                return
            stored = await admin.resend_dead_letter(
                self._group, message, reason=self._reason, operator=self._operator, force=True
            )
        except TxmqError as error:
            self._note_failure(message.id, message.offset_id, error)
            return
        self._resent += 1
        safe = "" if stored.status is SendStatus.OK else f" ({stored.status.name.lower()})"
        self._note(message.id, message.offset_id, RESENT, f"as {stored.offset_id}{safe}")

    def _note_failure(self, message_id: str, place: str, error: TxmqError) -> None:
        is_cut_off = isinstance(error, TransportError)
        in_doubt = is_cut_off and bool(place) and error.effect is not Effect.NONE
        outcome = DOUBTFUL if in_doubt else REFUSED
        self._is_cut_off = self._is_cut_off or is_cut_off
        self._note(message_id, place, outcome, str(error).strip())

    def _note(self, message_id: str, place: str, outcome: str, note: str) -> None:
        self._found.append(ResendResult(message_id, place, outcome, note))
        self._on_progress()
