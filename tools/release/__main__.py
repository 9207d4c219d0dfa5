"""Builds dist/, checks it, installs it, and writes its bill of materials.

python -m tools.release TOOLS            every Python of this machine, every extra
python -m tools.release TOOLS --narrow   this Python, and the extras that need no Spark

TOOLS is the environment with the packages of tools/release/constraints.txt.
"""

import argparse
import os
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, CalledProcessError, check_output, run

import txmq
from tools.api_reference import MODULES
from tools.release.bill import ROOT, write_bill

SCRATCH = ROOT / ".cache/release"
DIST = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("", *sorted(set(PROJECT["optional-dependencies"]) - {"dev"}))
"""What strangers install."""
NEEDS_SPARK = {"spark", "all"}
NEEDS_PYTEST = "txmq.testing.plugin"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
OWN_VARIABLES = ("TXMQ_", "PYTHON", "VIRTUAL_ENV")
"""What would lead to this checkout, or change txmq."""


def build(tools: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    moment = check_output(["git", "-C", ROOT, "log", "-1", "--format=%ct"], text=True).strip()
    shutil.rmtree(DIST, ignore_errors=True)
    command = [tools / "python", "-m", "build", "--no-isolation", "--outdir", DIST, ROOT]
    check_output(command, env={**os.environ, "SOURCE_DATE_EPOCH": moment}, text=True)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    check_output([tools / "twine", "check", "--strict", sdist, wheel], text=True)
    return sdist, wheel


def pythons(*, is_narrow: bool) -> Iterator[tuple[str, Path]]:
    """The versions to try, with their programs."""
    if is_narrow:
        yield f"{sys.version_info.major}.{sys.version_info.minor}", Path(sys.executable)
        return
    for version in VERSIONS:
        if program := interpreter(version):
            yield version, program
        elif os.environ.get("CI"):
            sys.exit(f"release: Python {version} is missing: install it, as release.yml does")
        else:
            print(f"Python {version} is not on this machine: not tried")


def interpreter(version: str) -> Path | None:
    """A Python of this version that starts: pyenv has links for versions that are not chosen."""
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    places = [Path(folder, f"python{version}") for folder in os.get_exec_path()]
    places += sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for program in [Path(sys.executable), *places]:
        if program.exists():
            done = run([program, "-c", asked], stdout=PIPE, stderr=DEVNULL, text=True, check=False)
            if done.stdout.strip() == version:
                return program
    return None


def try_wheel(wheel: Path, python: Path, extra: str, folder: Path) -> None:
    """Install the wheel into an environment of its own; see ``stranger.py``."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(OWN_VARIABLES)
    }
    here = {"cwd": folder, "env": environment, "text": True}
    check_output([python, "-m", "venv", folder / "venv"], **here)
    program = folder / "venv/bin/python"
    pip = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    check_output([*pip, f"{wheel}[{extra}]" if extra else wheel], **here)
    modules = [module for module in MODULES if module != NEEDS_PYTEST]
    stranger = Path(__file__).with_name("stranger.py")
    check_output([program, "-P", stranger, *modules], **here)
    shutil.rmtree(folder)


def main(tools: Path, *, is_narrow: bool) -> None:
    """Build, check and try the distributions, and describe them."""
    tag = os.environ.get("GITHUB_REF", "")
    if tag.startswith("refs/tags/") and tag != f"refs/tags/v{txmq.__version__}":
        sys.exit(f"release: {tag} is not the tag of version {txmq.__version__}")
    sdist, wheel = build(tools)
    for version, python in pythons(is_narrow=is_narrow):
        for extra in EXTRAS:
            if is_narrow and extra in NEEDS_SPARK:
                continue
            try_wheel(wheel, python, extra, SCRATCH / version / (extra or "none"))
            print(f"Python {version} txmq{f'[{extra}]' if extra else ''}: works", flush=True)
    bill = write_bill(tools, wheel, txmq.__version__)
    print(f"dist/ is ready: {sdist.name}, {wheel.name}, {bill.name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("tools", type=Path)
    parser.add_argument("--narrow", action="store_true")
    chosen = parser.parse_args()
    try:
        main(chosen.tools.absolute() / "bin", is_narrow=chosen.narrow)
    except CalledProcessError as error:
        sys.exit(f"release: {error}\n{error.output}")
