"""What a release installs agrees with the pins, and its pages lead somewhere."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import txmq
from tools.release import bill
from tools.release.project_page import with_absolute_links

ROOT = Path(__file__).resolve().parents[2]


def test_the_changelog_has_the_categories_that_readers_expect():
    found = re.findall(r"^### (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    usual = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limits"}

    assert set(found) <= usual


def test_the_image_installs_the_pins_of_the_broker():
    pins = bill.pinned(bill.closure(requires("txmq"), "broker"))

    assert (ROOT / "packaging/docker/constraints.txt").read_text() == pins, (
        "run: python -m tools.release.bill broker > packaging/docker/constraints.txt"
    )


def test_the_demo_installs_the_pins_of_all_extras():
    pins = bill.pinned(
        bill.closure(requires("txmq"), "all", "hatchling", "editables", "async-timeout")
    )

    assert (ROOT / "examples/constraints.txt").read_text() == pins, (
        "run: python -m tools.release.bill all hatchling editables async-timeout "
        "> examples/constraints.txt"
    )


def test_the_bill_has_every_package_of_an_extra_once():
    names = bill.closure(requires("txmq"), "all")
    entries = re.findall(r"^([\w-]+)==", bill.pinned(names), re.MULTILINE)

    assert sorted(entries) == sorted(names)
    assert {"pyspark", "msgspec", "markupsafe", "psycopg-binary"} <= names
    assert not {"pytest", "mypy", "txmq"} & names


def test_the_conda_recipe_has_our_version_and_dependency_ranges():
    recipe = (ROOT / "packaging/conda/recipe.yaml").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["cli"], *extras["broker"], *extras["sql"]]
    ranges = [re.match(r"([\w-]+)(?:\[\w+\])?(>=[\d.]+)(?:,(<[\d.]+))?", line) for line in wanted]

    assert f'version: "{txmq.__version__}"' in recipe
    for name, least, below in (found.groups() for found in ranges if found):
        entry = f"- {name.replace('prometheus-client', 'prometheus_client')} {least}"
        assert entry + (f",{below}" if below else "") + "\n" in recipe


def test_links_of_the_project_page_lead_to_the_sources():
    text = "[a](docs/a.md#b), [c](#c), [d](https://d.example/), ![e](docs/images/e.png)"

    assert with_absolute_links(text, "https://h.example/p") == (
        "[a](https://h.example/p/blob/main/docs/a.md#b), [c](#c), [d](https://d.example/), "
        "![e](https://h.example/p/raw/main/docs/images/e.png)"
    )
