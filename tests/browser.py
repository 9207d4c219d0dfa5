"""Owns the Chromium that tests look at pages with.

It is the one that TXMQ_TEST_CHROMIUM names, else one of the machine, else Playwright's own. Where
none can be had, tests fail with one line that says how to get it; they are never skipped. Run as a
program it puts one there, as far as it may: `make test` does so.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
HINT = (
    "these tests need Chromium: install it (Debian: apt install chromium; elsewhere: "
    "python -m playwright install chromium), or set TXMQ_TEST_CHROMIUM to one"
)
QUIET = (
    "--no-sandbox",  # The pages are ours, and root has no sandbox.
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 15_000
INSTALL_SECONDS = 600


def program():
    """Where one is that is given, or the machine's; none where there is none."""
    if given := os.environ.get("TXMQ_TEST_CHROMIUM"):
        return given
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def opened():
    """A browser of nobody's: each one begins with a folder of its own, and leaves nothing."""
    import pytest
    from playwright.sync_api import Error, expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        path = program() or playwright.chromium.executable_path
        if not Path(path).exists():
            pytest.fail(f"{HINT} ({path} is not there)", pytrace=False)
        try:
            browser = playwright.chromium.launch(executable_path=path, args=QUIET)
        except Error as problem:
            reason = str(problem).partition("\n")[0]
            pytest.fail(f"{HINT} ({path} does not start: {reason})", pytrace=False)
        try:
            yield browser
        finally:
            browser.close()


def is_playwrights_own():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        return Path(playwright.chromium.executable_path).exists()


def commands():
    """What may put one here, the machine's own way first."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        yield [["apt-get", "update", "-qq"], install]
    yield [[sys.executable, "-m", "playwright", "install", "chromium"]]


def prepare():
    """Put one here where there is none; what cannot be had is told by the tests that need it."""
    if program() or is_playwrights_own():
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for each in commands():
        print("no Chromium here yet:", " && ".join(map(" ".join, each)), flush=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            if all(
                subprocess.run(
                    command, env=quiet, stdout=subprocess.DEVNULL, timeout=INSTALL_SECONDS,
                    check=False,
                ).returncode == 0
                for command in each
            ):  # fmt: skip
                return
    print(HINT, file=sys.stderr)


if __name__ == "__main__":
    prepare()
