"""Owns the databases that managers are tested on."""

import contextlib

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def bank(request, tmp_path):
    """A bank in a database of its own."""
    from tests.integration.manager.manager_stage import Bank

    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path}/bank.db"
        else:
            postgres = request.getfixturevalue("postgres")
            url = stack.enter_context(postgres.database())
        found = Bank(url)
        stack.callback(found.close)
        yield found
