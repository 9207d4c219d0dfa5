"""Turn the errors of Spark's workers back into txmq's exceptions.

An exception that a data source raises on a worker arrives here as text inside a Spark error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkException

from txmq.errors import ConfigError, ReconcileRefused

__all__ = ["raised_here"]

_ERRORS: Final = {error.__name__: error for error in (ReconcileRefused, ConfigError)}
_RAISED: Final = re.compile(rf"^(?:[\w.]+\.)?({'|'.join(_ERRORS)}): (.+)$", re.MULTILINE)


@contextmanager
def raised_here() -> Iterator[None]:
    """Raise a worker's refusal as if the block itself had raised it.

    Raises:
        ReconcileRefused: A worker raised it.
        ConfigError: A worker raised it.
    """
    try:
        yield
    except PySparkException as error:
        if (found := _RAISED.search(str(error))) is None:
            raise
        raise _ERRORS[found[1]](found[2]) from None
