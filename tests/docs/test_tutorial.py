"""The tutorial: each sitting, followed command by command, prints what its page shows."""

import pytest

from tests.docs.tutorial import EXAMPLES, PAGES, Reader, Saved, steps

SITTINGS = ["first", "second", "third"]
WORDS_MAX = 1_800


def page(sitting):
    return PAGES / f"{sitting}-sitting.md"


@pytest.mark.parametrize("sitting", SITTINGS)
def test_a_page_shows_the_files_of_its_example(sitting):
    folder = EXAMPLES / f"{sitting}_sitting"

    shown = {step.name: step.text for step in steps(page(sitting)) if isinstance(step, Saved)}

    assert shown == {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_can_be_read_in_a_sitting(path):
    assert len(path.read_text().split()) <= WORDS_MAX


def test_a_difference_between_a_page_and_what_happens_is_found(tmp_path):
    page = tmp_path / "page.md"
    shown = 'Save:\n```python title="tea.py"\nprint("tea")\n```\n'
    page.write_text(f"{shown}```console\n$ python tea.py\ntea\n$ python tea.py\nmilk\n```\n")

    with Reader(tmp_path) as reader:
        assert reader.follow(page) == ["$ python tea.py", "- milk", "+ tea"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_first_sitting_does_what_it_says(tmp_path):
    with Reader(tmp_path) as reader:
        assert reader.follow(page("first")) == []
