"""Lends each test a copy of what every released version left behind."""

import json
import tarfile
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine

from tests.compatibility.writer import RELEASED
from tests.reconcile.whole_stage import Stage

ARCHIVES = sorted(RELEASED.glob("*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def left(request, tmp_path):
    """A copy of what a version left: its directory, its database, and the facts about both."""
    with tarfile.open(request.param) as archive:
        # Python 3.11 has this filter from 3.11.4 on; Debian 12 comes with 3.11.2.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    engine = create_engine(f"sqlite:///{tmp_path / 'bank.db'}")
    facts = json.loads((tmp_path / "facts.json").read_text())
    night = Stage(tmp_path / "night")
    yield SimpleNamespace(data=str(tmp_path / "data"), engine=engine, night=night, facts=facts)
    engine.dispose()
