"""The sessions of visitors, and their failed log-ins, in memory. Pure.

A session has a random id, which only the visitor's cookie holds, and a token, which every form
carries. It ends after an hour without use, and after 12 hours in any case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from txmq.limits import CONSOLE_SESSIONS_MAX
from txmq.runtime.entropy import Entropy
from txmq.security.signatures import Credentials

__all__ = ["SESSION_S", "UNUSED_S", "LoginAttempts", "SessionTable", "VisitorSession"]

SESSION_S: Final = 12 * 3600.0
UNUSED_S: Final = 3600.0
TOKEN_BYTES: Final = 32
FAILURES_MAX: Final = 10
"""After this many failures within :data:`PERIOD_S`, an address must wait."""
PERIOD_S: Final = 60.0
ADDRESSES_MAX: Final = 1_000
"""How many addresses are remembered; a new one evicts the one that failed least recently."""


@dataclass(slots=True, kw_only=True)
class VisitorSession:
    """What the console remembers of one visitor."""

    id: str = field(repr=False)
    token: str = field(repr=False)
    """Every form of the visitor carries it, so that no other site can send one."""
    credentials: Credentials | None
    """The account that signs the visitor's requests; ``None`` for visitors without one."""
    person: str
    """The name that brokers record."""
    opened_s: float
    used_s: float
    notice: str = ""
    """The result of the last change, which the next page shows once."""


class SessionTable:
    """All sessions of a console.

    Args:
        entropy: Makes ids and tokens.
    """

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._by_id: dict[str, VisitorSession] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def new_token(self) -> str:
        """An unpredictable text for a cookie or a form."""
        return self._entropy.token(TOKEN_BYTES).hex()

    def open(self, credentials: Credentials | None, person: str, now_s: float) -> VisitorSession:
        """A new session. If there are too many, the least recently used one ends."""
        self.expire(now_s)
        while len(self._by_id) >= CONSOLE_SESSIONS_MAX:
            del self._by_id[min(self._by_id.values(), key=lambda session: session.used_s).id]
        session = VisitorSession(
            id=self.new_token(),
            token=self.new_token(),
            credentials=credentials,
            person=person,
            opened_s=now_s,
            used_s=now_s,
        )
        self._by_id[session.id] = session
        return session

    def find(
        self, session_id: str, now_s: float, *, is_poll: bool = False
    ) -> VisitorSession | None:
        """The session with an id, if it has not ended; polling does not prolong it."""
        session = self._by_id.get(session_id)
        if session is None or _has_ended(session, now_s):
            return None
        if not is_poll:
            session.used_s = now_s
        return session

    def close(self, session: VisitorSession) -> None:
        """End a session."""
        self._by_id.pop(session.id, None)

    def expire(self, now_s: float) -> None:
        """Forget the sessions that have ended."""
        for session in [item for item in self._by_id.values() if _has_ended(item, now_s)]:
            del self._by_id[session.id]

    def accounts(self) -> set[Credentials | None]:
        """The accounts of all sessions."""
        return {session.credentials for session in self._by_id.values()}


def _has_ended(session: VisitorSession, now_s: float) -> bool:
    return now_s - session.opened_s >= SESSION_S or now_s - session.used_s >= UNUSED_S


class LoginAttempts:
    """The failed log-ins of the last minute, by address."""

    def __init__(self) -> None:
        self._failed: dict[str, list[float]] = {}

    def is_allowed(self, address: str, now_s: float) -> bool:
        """Whether the address may try now."""
        recent = [at_s for at_s in self._failed.get(address, ()) if now_s - at_s < PERIOD_S]
        return len(recent) < FAILURES_MAX

    def note_failure(self, address: str, now_s: float) -> None:
        """Count a failed log-in."""
        recent = [at_s for at_s in self._failed.pop(address, ()) if now_s - at_s < PERIOD_S]
        self._failed[address] = [*recent, now_s][-FAILURES_MAX:]
        if len(self._failed) > ADDRESSES_MAX:
            # The addresses are in the order of their last failures.
            del self._failed[next(iter(self._failed))]
