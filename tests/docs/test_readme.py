"""README.md is short, and everything that it tells a stranger to run does what it says."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.readme import README, commands, follow, programs, wrong_lines
from tests.servers.serving import environment

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 125
LINKS_MAX = 15
FIRST_SCREEN = 24
FIRST_CODE_LINES_MAX = 12
SERVICE_LINES_MAX = 30


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= LINES_MAX


def test_the_readme_has_few_links_and_pictures():
    assert len(re.findall(r"\]\(", README.read_text())) <= LINKS_MAX


def test_the_first_screen_shows_an_excerpt_of_the_service():
    screen = "\n".join(README.read_text().splitlines()[:FIRST_SCREEN])
    language, code = re.search(r"^```(\w+)\n(.*?)^```$", screen, re.MULTILINE | re.DOTALL).groups()
    (service,) = programs().values()

    assert language == "py"
    assert code in service
    assert len(code.splitlines()) <= FIRST_CODE_LINES_MAX


def test_the_first_screen_names_make_demo_and_make_test():
    screen = README.read_text().splitlines()[:FIRST_SCREEN]

    assert {"$ make demo", "$ make test"} <= set(screen)


def test_the_readme_service_has_at_most_thirty_lines():
    (service,) = programs().values()

    assert len(service.splitlines()) <= SERVICE_LINES_MAX


@pytest.mark.timeout(120)
def test_following_the_readme_commits_a_transaction(tmp_path):
    results = follow(sys.executable, tmp_path, environment())

    assert wrong_lines(results) == []
    (_, pulled) = results[-1]
    assert re.search(r't-1 +{"id":"t-1","amount":6000}', pulled)
    assert "t-2" not in pulled


def test_every_readme_command_is_tested():
    """A test runs the programs and `txmq`; CI runs the demo, and `make wheels` the installation."""
    for words, _ in commands():
        match words:
            case ["make", target]:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
            case ["pip", "install", wanted]:
                extras = re.fullmatch(r"\.\[([\w,]+)\]", wanted)[1].split(",")
                project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
                assert set(extras) <= set(project["optional-dependencies"])
            case ["python", name]:
                assert name in programs()
            case ["txmq", *_] | [".", "venv/bin/activate"]:
                pass
            case ["python3", *more]:
                assert more == ["-m", "venv", "venv", "&&", ".", "venv/bin/activate"]
            case _:
                pytest.fail(f"no test runs {words}")
