"""The tutorial: each sitting, followed command by command, prints what its page shows."""

import socket
import subprocess
import sys

import pytest

from tests.docs.tutorial import EXAMPLES, PAGES, ROOT, Reader, Saved, steps
from tests.servers.serving import environment

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


def test_a_difference_between_page_and_output_is_found(tmp_path):
    page = tmp_path / "page.md"
    shown = 'Save:\n```python title="tea.py"\nprint("tea")\n```\n'
    page.write_text(f"{shown}```console\n$ python tea.py\ntea\n$ python tea.py\nmilk\n```\n")

    with Reader(tmp_path) as reader:
        assert reader.follow(page) == ["$ python tea.py", "- milk", "+ tea"]


def test_the_page_does_not_wait_for_a_broker_whose_port_is_taken(tmp_path):
    lines = [step.line for name in SITTINGS for step in steps(page(name)) if hasattr(step, "line")]
    (wait,) = {line for line in lines if line.startswith("until") and "broker.log" in line}
    serve = next(line for line in lines if line.startswith("txmq serve"))

    with Reader(tmp_path) as reader, socket.socket() as other:
        host, port = reader.real("127.0.0.1:10911").split(":")
        other.bind((host, int(port)))
        other.listen()
        reader.run(reader.real(serve))
        waited = reader.shown(reader.run(wait))

    assert "txmq: cannot start: 127.0.0.1:10911 is taken" in waited


def test_an_order_sent_to_another_program_ends_with_an_error(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(20)
        program = (EXAMPLES / "second_sitting/order.py").read_text()
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        (tmp_path / "order.py").write_text(program.replace("127.0.0.1:8001", address))
        ordering = subprocess.Popen(
            [sys.executable, "order.py", "order-1", "500"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        line, _ = stranger.accept()
        with line:
            line.recv(65_536)
            line.sendall(b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        try:
            _, problem = ordering.communicate(timeout=20)
        finally:
            ordering.kill()

    assert (ordering.returncode, problem) == (1, "HTTP Error 404: Not Found: see shop.log\n")


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
