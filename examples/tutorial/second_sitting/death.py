"""Kill this process with kill -9, at the moment that DIE names."""

import os
import signal

from sqlalchemy import event
from sqlalchemy.orm import Session


def die(moment: str) -> None:
    """Die here, if this is the moment."""
    if os.environ.get("DIE") == moment:
        os.kill(os.getpid(), signal.SIGKILL)


@event.listens_for(Session, "after_commit")
def die_after_commit(_: Session) -> None:
    """Die when the database has committed, and nobody else knows it."""
    die("after-commit")
