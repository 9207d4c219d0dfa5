"""Objects of a row that an ORM session has loaded before the row was bumped."""

from __future__ import annotations

from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from txmq.errors import UsageError
from txmq.idempotent.versions import Place, Versions

__all__ = ["expire"]


def expire(session: object, versions: Versions, place: Place) -> None:
    """Have them read anew: whoever computes with what was loaded would undo what was waited for.

    Raises:
        UsageError: One has changes that are not written.
    """
    if isinstance(session, scoped_session | async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        session = session.sync_session
    if not isinstance(session, Session):
        return
    for each in list(session.identity_map.values()):
        mapper = inspect(each).mapper
        if versions.table not in mapper.tables:
            continue
        loaded = inspect(each).dict
        names = [mapper.get_property_by_column(column).key for column in versions.key]
        if any(loaded.get(name, at) != at for name, at in zip(names, place.key, strict=True)):
            continue
        if session.is_modified(each):
            raise UsageError(f"{each!r} was changed before {place.of} was bumped: bump first")
        session.expire(each)
