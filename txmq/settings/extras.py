"""The extra that installs a package, for errors about missing packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from txmq.errors import ConfigError

__all__ = ["named_extra"]

_EXTRAS: Final = {
    "sqlalchemy": "sql",
    "psycopg": "sql",
    "redis": "redis",
    "prometheus_client": "broker",
    "pyspark": "spark",
    "py4j": "spark",
    "pyarrow": "spark",
    "adbc_driver_postgresql": "spark",
    "yaml": "broker",
    "starlette": "console",
    "jinja2": "console",
    "uvicorn": "console",
    "opentelemetry": "telemetry",
}


@contextmanager
def named_extra(extra: str = "") -> Iterator[None]:
    """Wrap imports: an error about a missing package names ``extra``, or else the package's extra.

    Raises:
        ConfigError: The package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        install = f"pip install 'txmq[{extra or _EXTRAS[package]}]'"
        raise ConfigError(f"{package} is missing: {install}") from error
