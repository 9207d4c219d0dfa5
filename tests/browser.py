"""Owns the Chromium that tests look at pages with.

It is the one that TXMQ_TEST_CHROMIUM names, else one of the machine, else Playwright's own. Where
none can be had, tests fail with one line that says how to get it; they are never skipped. Run as a
program it installs one: with apt-get only after a yes on the terminal, or where CI is set.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.packages import Unprepared

NAMES = ("chromium", "chromium-browser", "google-chrome")
HINT = (
    "these tests need Chromium: install it (Debian: apt install chromium; elsewhere: "
    "python -m playwright install --with-deps chromium), or set TXMQ_TEST_CHROMIUM to one"
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
ANSWER_SECONDS = 30
INSTALL_SECONDS = 600

CONTRAST_MIN = 4.5
TEXTS = """() => {
  const luminance = ([r, g, b]) => {
    const part = v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; };
    return .2126 * part(r) + .7152 * part(g) + .0722 * part(b);
  };
  const pen = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const colour = text => {
    pen.clearRect(0, 0, 1, 1); pen.fillStyle = text; pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const ground = node => {
    for (let at = node; at; at = at.parentElement) {
      const found = colour(getComputedStyle(at).backgroundColor);
      if (found[3] === 1) return found;
      if (found[3] > 0) throw new Error("half of a colour: " + at.outerHTML.slice(0, 80));
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    const text = walk.currentNode.data.trim();
    if (!text || node.closest("title, desc, .hidden, .skip, style")) continue;
    if (!node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const drawn = node.closest("svg") ? style.fill : style.color;
    const [a, b] = [luminance(colour(drawn)), luminance(ground(node))];
    found.push([(Math.max(a, b) + .05) / (Math.min(a, b) + .05), text.slice(0, 40)]);
  }
  return found;
}"""
"""Each visible text of a page, with its contrast to what is behind it."""


def program():
    """The path of the one that is named, or of the machine's; None where there is none."""
    if given := os.environ.get("TXMQ_TEST_CHROMIUM"):
        return given
    return next(filter(None, map(shutil.which, NAMES)), None)


def playwrights_own():
    """Where Playwright keeps its own, whether or not it is there."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        return playwright.chromium.executable_path


def working():
    """The path of a Chromium that starts.

    Raises:
        Unprepared: There is none.
    """
    path = program() or playwrights_own()
    try:
        asked = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unprepared(f"{HINT} ({error})") from error
    if asked.returncode:
        last = (asked.stderr.strip() or asked.stdout.strip() or "no output").splitlines()[-1]
        raise Unprepared(f"{HINT} ({path} does not start: {last})")
    return path


@contextlib.contextmanager
def opened():
    """A browser with an empty profile of its own, which leaves nothing behind."""
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


def is_ci():
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def is_on_a_terminal():
    """Whether somebody can answer: a program in the background that reads its terminal is stopped
    by the kernel.
    """
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


def installers():
    """The ways to install one, the machine's own first; each is a list of commands."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        commands = [["apt-get", "update", "-qq"], install]
        if is_ci() or (is_on_a_terminal() and has_consent(commands)):
            yield commands
    # Into the user's own cache, not into the system.
    yield [[sys.executable, "-m", "playwright", "install", "chromium"]]


def has_consent(commands):
    print("the tests need Chromium; may this be run?", shown(commands))
    try:
        return input("[y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def shown(commands):
    return " && ".join(" ".join(command) for command in commands)


def prepare():
    """Install one where none works, as far as that is allowed.

    Raises:
        Unprepared: None works even then.
    """
    with contextlib.suppress(Unprepared):
        return working()
    for commands in installers():
        print("no Chromium here yet:", shown(commands), flush=True)
        if all(map(succeeds, commands)):
            with contextlib.suppress(Unprepared):
                return working()
    return working()


def succeeds(command):
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, env=quiet, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=INSTALL_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"  ended after {INSTALL_SECONDS} s", flush=True)
        return False
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        print(f"  failed: {next((line for line in said if 'rror' in line), said[-1])}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    try:
        prepare()
    except Unprepared as error:
        sys.exit(str(error))
