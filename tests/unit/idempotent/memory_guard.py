"""The simplest guard: a dictionary of finished and running work."""

from txmq.idempotent import Attempt, Verdict
from txmq.idempotent.guard import KeyState, fingerprint, judge


class MemoryGuard:
    """A guard without a session, or with a list as its session."""

    def __init__(self, *, is_blocking=True, has_session=False):
        self.is_blocking = is_blocking
        self.has_session = has_session
        self.rows = {}
        self.seen = []

    def attempt(self, key, *, scope="", payload=None):
        self.seen.append((scope, key, payload))
        return _Attempt(self, (scope, key), fingerprint(payload))


class _Attempt(Attempt):
    def __init__(self, guard, key, payload):
        super().__init__()
        self.guard, self.key, self.payload = guard, key, payload
        self.work = []

    @property
    def is_blocking(self):
        return self.guard.is_blocking

    @property
    def session(self):
        return self.work

    async def begin(self):
        row = self.guard.rows.setdefault(self.key, self)
        if row is self:
            self.found = KeyState(Verdict.FIRST)
        elif not isinstance(row, _Attempt):
            self.found = judge(self.payload, *row)
        return self

    async def end(self, problem):
        if self.verdict is not Verdict.FIRST or self.is_abandoned:
            return
        if problem is not None:
            del self.guard.rows[self.key]
        else:
            self.guard.rows[self.key] = (self.payload, self.kept)
