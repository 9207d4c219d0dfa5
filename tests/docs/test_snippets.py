"""Everything that the documentation shows is run, parsed or compared, page by page.

``checks.py`` says what is done with a block of each language. A new page needs no registration.
``python -m tests.docs.mutants`` shows which mistakes on the pages these tests notice.
"""

import re

import pytest

from tests.docs.checks import check
from tests.docs.pages import all_pages

ELSEWHERE = ("tutorial/", "howto/clients/", "howto/reconcile-library")
"""Pages that tests of their own follow: test_tutorial*.py, test_client_pages.py and
reconcile/test_as_library.py, where Spark runs already."""
PAGES = [page for page in all_pages() if page.blocks() and not page.name.startswith(ELSEWHERE)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_does_what_it_shows(page, scratch):
    with scratch(page) as environment:
        check(page, environment)


def test_the_broker_fixture_has_the_attributes_shown_on_pages(txmq_broker):
    assert re.fullmatch(r"127\.0\.0\.1:\d+", txmq_broker.names)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", txmq_broker.address)
