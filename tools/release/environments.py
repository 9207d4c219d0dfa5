"""Clean environments with the wheel, for each Python and each choice of extras."""

import os
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, run
from typing import NamedTuple

from tests.docs import readme
from tools.api_reference import MODULES
from tools.release.distributions import ROOT
from tools.release.refusal import ReleaseRefused, checked

HERE = Path(__file__).parent
RULES = ROOT / "examples/bank_transfer/recon.toml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = (
    "",
    "cli",
    "broker",
    "sql",
    "redis",
    "console",
    "telemetry",
    "broker,sql",
    "spark",
    "jdbc",
    "all",
)
"""What strangers install; README.md needs `broker,sql`."""
NEEDS_PYTEST = "txmq.testing.plugin"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
OWN_VARIABLES = ("TXMQ_", "PYTHON", "VIRTUAL_ENV")


class Interpreter(NamedTuple):
    """A Python on this machine."""

    version: str
    program: Path


def candidates(version: str) -> Iterator[Path]:
    """Where a Python of this version may be."""
    yield Path(sys.executable)
    for folder in os.get_exec_path():
        yield Path(folder, f"python{version}")
    yield from sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))


def interpreter(version: str) -> Interpreter | None:
    """A Python of this version that starts: pyenv has links for versions that are not chosen."""
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    for program in candidates(version):
        if program.exists():
            done = run([program, "-c", asked], stdout=PIPE, stderr=DEVNULL, text=True, check=False)
            if done.stdout.strip() == version:
                return Interpreter(version, program)
    return None


def installed_extras(chosen: str) -> set[str]:
    """The extras that come along with the chosen ones."""
    extras = set(filter(None, chosen.split(",")))
    if "all" in extras:
        return set(PROJECT["optional-dependencies"]) - {"dev"}
    extras |= {"cli"} if extras & {"broker", "console"} else set()
    return extras | ({"spark"} if "jdbc" in extras else set())


def variables() -> dict[str, str]:
    """The environment without what would lead to this checkout, or change txmq."""
    return {name: text for name, text in os.environ.items() if not name.startswith(OWN_VARIABLES)}


def try_wheel(wheel: Path, python: Interpreter, chosen: str, folder: Path) -> None:
    """Install the wheel into an environment of its own, and try what it promises.

    Raises:
        ReleaseRefused: A promise is not kept.
    """
    what = f"txmq[{chosen}] on Python {python.version}"
    shutil.rmtree(folder, ignore_errors=True)
    home = folder / "home"
    home.mkdir(parents=True)
    here = {"cwd": home, "env": variables()}
    extras = installed_extras(chosen)

    checked([python.program, "-m", "venv", folder / "venv"], f"venv for {what}", **here)
    program = folder / "venv/bin/python"
    pip = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    checked([*pip, f"{wheel}[{chosen}]" if chosen else wheel], f"installing {what}", **here)
    modules = [module for module in MODULES if module != NEEDS_PYTEST]
    promises = [program, "-P", HERE / "promises.py", RULES, ",".join(sorted(extras)), *modules]
    checked(promises, what, **here)
    if {"broker", "sql"} <= extras:
        follow_readme(program, home, what)

    checked([*pip, "pytest"], f"installing pytest beside {what}", **here)
    shutil.copy(HERE / "test_stranger.py", home)
    (home / "pytest.ini").write_text("[pytest]\n")  # Else pytest would read that of this checkout.
    checked(
        [program, "-m", "pytest", "-q", "-W", "error", "test_stranger.py"],
        f"the pytest fixture of {what}",
        **here,
    )
    shutil.rmtree(folder)


def follow_readme(program: Path, home: Path, what: str) -> None:
    """Follow README.md from the broker to its service."""
    try:
        wrong = readme.wrong_lines(readme.follow(program, home, variables()))
    except RuntimeError as error:
        raise ReleaseRefused(f"README.md with {what}: {error}") from error
    if wrong:
        raise ReleaseRefused("\n".join([f"README.md shows another output than {what}:", *wrong]))
