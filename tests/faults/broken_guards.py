"""Guards with mistakes that occur in practice, to see whether tests notice them."""

from sqlalchemy import text
from sqlalchemy.orm import Session

from txmq.idempotent.guard import Attempt, KeyState, Verdict

__all__ = ["MARK", "MarkedFirst"]

MARK = text("INSERT INTO txmq_done VALUES ('', :key, '', NULL, 0) ON CONFLICT DO NOTHING")


class MarkedFirst:
    """Says that it is done before it is: SETNX, but in a table. Whoever dies in between has lost
    it.
    """

    is_blocking, has_session = True, True

    def __init__(self, engine):
        self.engine = engine

    def attempt(self, key, *, scope="", payload=None):
        return _Marked(self.engine, key)


class _Marked(Attempt):
    is_blocking = True

    def __init__(self, engine, key):
        super().__init__()
        self._engine, self._key = engine, key
        self._session = Session(engine)

    @property
    def session(self):
        return self._session

    async def begin(self):
        with self._engine.begin() as connection:
            is_new = connection.execute(MARK, {"key": self._key}).rowcount
        self.found = KeyState(Verdict.FIRST if is_new else Verdict.DONE)
        return self

    async def end(self, problem):
        with self._session as session:
            if problem is None and not self.is_abandoned:
                session.commit()
