"""The environments that tests of pages work in."""

import pytest

from tests.docs.program_server import ProgramServer
from tests.docs.scratch import Scratch


@pytest.fixture(scope="session")
def program_server():
    """The process that runs programs of pages."""
    with ProgramServer() as server:
        yield server


@pytest.fixture
def scratch(request, program_server, tmp_path):
    """Makes the environment of a page."""

    def for_page(page):
        return Scratch(page, program_server, tmp_path, request.getfixturevalue)

    return for_page
