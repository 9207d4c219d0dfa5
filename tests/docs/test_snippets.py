"""Everything that the documentation shows is run, parsed or compared, page by page.

``checks.py`` says what is done with a block of each language. A new page needs no registration.
"""

import pytest

from tests.docs.checks import check
from tests.docs.pages import all_pages
from tests.docs.program_server import ProgramServer
from tests.docs.scratch import Scratch


@pytest.fixture(scope="module")
def program_server():
    with ProgramServer() as server:
        yield server


@pytest.fixture
def scratch(request, program_server, tmp_path):
    """Makes the environment of a page."""

    def for_page(page):
        return Scratch(page, program_server, tmp_path, request.getfixturevalue)

    return for_page


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "page", [page for page in all_pages() if page.blocks()], ids=lambda page: page.name
)
def test_a_page_does_what_it_shows(page, scratch):
    with scratch(page) as environment:
        check(page, environment)
