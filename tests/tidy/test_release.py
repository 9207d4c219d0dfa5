"""What a release depends on is refused while it is unready, and agrees with the pins."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest

import txmq
from tools.release import bill, changelog, distributions, environments
from tools.release.project_page import with_absolute_links
from tools.release.promises import Broken, see_named
from tools.release.refusal import ReleaseRefused

ROOT = Path(__file__).resolve().parents[2]
DATED = (
    "# Changes\n\n## 0.2.0, 2027-01-31\n\n### Added\n- A thing.\n\n## 0.1.0, 2026-12-01\n- Old.\n"
)


def test_the_section_of_a_version_ends_where_the_next_begins():
    assert changelog.dated_section(DATED, "0.2.0") == "### Added\n- A thing."
    assert changelog.dated_section(DATED, "0.1.0") == "- Old."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DATED, "no section for 0.3.0: add one"),
        ("## 0.3.0, unreleased\n- A thing.\n", "calls 0.3.0 'unreleased': replace this"),
        ("## 0.3.0, 2027-03-01\n\n### Added\n", "no entry for 0.3.0"),
        ("## 0.3.0.1, 2027-03-01\n- A thing.\n", "no section for 0.3.0"),
    ],
)
def test_a_version_without_a_dated_section_is_refused(text, reason):
    with pytest.raises(ReleaseRefused, match=re.escape(reason)):
        changelog.dated_section(text, "0.3.0")


def test_builds_that_differ_are_refused(monkeypatch, tmp_path):
    def build(tools, folder, umask, moment):
        folder.mkdir(parents=True)
        (folder / "txmq.whl").write_text(f"built in {folder}")
        return {"txmq.whl": folder / "txmq.whl"}

    monkeypatch.setattr(distributions, "build", build)
    monkeypatch.setattr(distributions, "git", lambda *words: "1\n")

    with pytest.raises(ReleaseRefused, match=r"two builds of txmq\.whl differ"):
        distributions.build_twice(tmp_path, tmp_path, tmp_path / "dist")


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


def test_the_recipe_for_conda_has_our_version_and_the_ranges_of_the_extras():
    recipe = (ROOT / "packaging/conda/recipe.yaml").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["cli"], *extras["broker"], *extras["sql"]]
    ranges = [re.match(r"([\w-]+)(?:\[\w+\])?(>=[\d.]+)(?:,(<[\d.]+))?", line) for line in wanted]

    assert f'version: "{txmq.__version__}"' in recipe
    for name, least, below in (found.groups() for found in ranges if found):
        entry = f"- {name.replace('prometheus-client', 'prometheus_client')} {least}"
        assert entry + (f",{below}" if below else "") + "\n" in recipe


def test_every_extra_is_tried():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    offered = set(extras["optional-dependencies"]) - {"dev"}

    assert offered <= set(environments.EXTRAS)


@pytest.mark.parametrize(
    ("text", "extras", "is_right"),
    [
        ("txmq: this needs redis: pip install 'txmq[redis]'", {"cli"}, True),
        ("redis is missing: pip install 'txmq[redis]'", {"redis"}, False),
        ("Traceback\nredis is missing: pip install 'txmq[redis]'", set(), False),
        ("No module named 'redis'", set(), False),
    ],
)
def test_a_missing_extra_is_one_line_with_its_name(text, extras, is_right):
    if is_right:
        see_named(text, "RedisGuard", extras)
    else:
        with pytest.raises(Broken, match="RedisGuard must work"):
            see_named(text, "RedisGuard", extras)


def test_links_of_the_project_page_lead_to_the_sources():
    text = "[a](docs/a.md#b), [c](#c), [d](https://d.example/), ![e](docs/images/e.png)"

    assert with_absolute_links(text, "https://h.example/p") == (
        "[a](https://h.example/p/blob/main/docs/a.md#b), [c](#c), [d](https://d.example/), "
        "![e](https://h.example/p/raw/main/docs/images/e.png)"
    )
