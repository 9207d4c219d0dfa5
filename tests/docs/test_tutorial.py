"""The tutorial: each sitting, followed command by command, prints what its page shows."""

import subprocess
import sys

import pytest

from tests.docs.tutorial import EXAMPLES, PAGES, ROOT, Reader, Saved, steps
from tests.serving import environment

SITTINGS = ["first", "second", "third"]
WORDS_MAX = 1_800
TRANSFER_LINES_MAX = 100
TRANSFER = """\
t-1 COMMITTED: ICBC 7000, CCB 0, in flight 3000
t-2 ROLLED_BACK: ICBC 7000, CCB 0, in flight 3000
t-1 credited: ICBC 7000, CCB 3000, in flight 0
t-3 killed after its commit: ICBC 5000, CCB 3000, in flight 2000
t-3 committed by a check, and credited: ICBC 5000, CCB 5000, in flight 0
"""


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


@pytest.mark.timeout(180)
def test_the_transfer_in_one_file_loses_no_money():
    program = ROOT / "examples/transfer.py"

    done = subprocess.run(
        [sys.executable, "-m", "examples.transfer"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=160,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, TRANSFER, "")
    assert len(program.read_text().splitlines()) <= TRANSFER_LINES_MAX
