"""The file system of a location: Arrow's for Python, under the URI that Spark uses.

Python reads the settings that Spark's Java reads too, in Hadoop's ``core-site.xml``, so both
reach the same files. The commands that need no Java need no other settings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import pyarrow as pa
from pyarrow.fs import FileSystem

from txmq.errors import ConfigError, ReconcileRefused
from txmq.reconcile.rules import SCHEMES
from txmq.reconcile.storage import Folder, LocalFolder

__all__ = ["Directory", "open_folder"]

Directory: TypeAlias = str | Path | Folder
"""A path, the URI of a folder, or an open folder."""

_SITE: Final = "core-site.xml"
_HINTS: Final = {
    "hdfs": "install Hadoop's client, and set JAVA_HOME, HADOOP_HOME and "
    "CLASSPATH=$(hadoop classpath --glob)",
    "s3a": f"see fs.s3a.* in {_SITE} of HADOOP_CONF_DIR, and AWS_* of the environment",
    "gs": "see GOOGLE_APPLICATION_CREDENTIALS of the environment",
    "abfss": "see AZURE_* of the environment",
}


def open_folder(directory: Directory) -> Folder:
    """Open the ``directory`` of the rules; an open folder is returned as it is.

    Raises:
        ConfigError: Python has no such file system, or a setting is invalid.
        ReconcileRefused: The file system does not answer.
    """
    if isinstance(directory, Folder):
        return directory
    uri = str(directory).rstrip("/")
    place = urlsplit(uri)
    if place.scheme not in SCHEMES:
        return LocalFolder(directory)
    settings = _hadoop_settings()
    if place.scheme == "viewfs":
        target = _link(uri, place.netloc or "default", place.path, settings)
        folder = open_folder(target.removeprefix("file://"))
        folder.uri = uri
        return folder
    try:
        if place.scheme == "s3a":
            system, path = _s3(settings), f"{place.netloc}{place.path}"
        else:
            system, path = FileSystem.from_uri(uri)
        # A wrong name or password is an error of the first question, and not in the middle.
        system.get_file_info(path)
    except (ImportError, ValueError, NotImplementedError, pa.ArrowException, OSError) as error:
        kind = ReconcileRefused if isinstance(error, OSError) else ConfigError
        why, hint = str(error).partition("\n")[0], _HINTS[place.scheme]
        raise kind(f"directory {uri!r} cannot be reached from Python: {why}; {hint}") from error
    return Folder(system, path, uri, has_objects=system.type_name in {"s3", "gcs"})


def _s3(settings: Mapping[str, str]) -> FileSystem:
    """The object store of the scheme ``s3a``; what no setting names is Amazon's environment's."""
    from pyarrow.fs import S3FileSystem

    endpoint = settings.get("fs.s3a.endpoint", "")
    scheme, _, host = endpoint.rpartition("://")
    is_plain = settings.get("fs.s3a.connection.ssl.enabled", "true").lower() == "false"
    return S3FileSystem(
        allow_delayed_open=True,  # A small file is one request, and leaves no part of an upload.
        access_key=settings.get("fs.s3a.access.key"),
        secret_key=settings.get("fs.s3a.secret.key"),
        session_token=settings.get("fs.s3a.session.token"),
        region=settings.get("fs.s3a.endpoint.region"),
        endpoint_override=host or None,
        scheme=(scheme or ("http" if is_plain else "https")) if host else None,
    )


def _link(uri: str, table: str, path: str, settings: Mapping[str, str]) -> str:
    """The target of a path in the mount table of a view."""
    before = f"fs.viewfs.mounttable.{table}.link."
    links = {
        key.removeprefix(before).rstrip("/"): target.rstrip("/")
        for key, target in settings.items()
        if key.startswith(before)
    }
    for link in sorted(links, key=len, reverse=True):
        if f"{path}/".startswith(f"{link}/"):
            return links[link] + path.removeprefix(link)
    raise ConfigError(
        f"directory {uri!r}: no link of the mount table {table!r} covers {path}; add "
        f"{before}/... to {_SITE} of HADOOP_CONF_DIR"
    )


def _hadoop_settings() -> dict[str, str]:
    """The settings in Hadoop's file; without one there are none."""
    home = os.environ.get("HADOOP_CONF_DIR")
    path = Path(home or "", _SITE)
    if not home or not path.exists():
        return {}
    try:
        found = ET.parse(path)  # noqa: S314 - its author may run Spark
    except (OSError, ET.ParseError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return {
        one.findtext("name", "").strip(): one.findtext("value", "").strip()
        for one in found.iter("property")
    }
