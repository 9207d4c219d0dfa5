"""Builds dist/ and tries it.

python -m tools.release TOOLS            what a release needs: every Python, every extra
python -m tools.release TOOLS --rehearse the same without a date in CHANGELOG.md or a commit
python -m tools.release TOOLS --narrow   this Python, and the extras that need no Spark

TOOLS is the environment with the packages of tools/release/constraints.txt.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

import txmq
from tools.release import bill, changelog, distributions, environments
from tools.release.distributions import ROOT, git
from tools.release.refusal import ReleaseRefused

SCRATCH = ROOT / ".cache/release"
ARCHIVES = ROOT / "tests/compatibility/released"
VERSION = txmq.__version__


def refuse_unready() -> None:
    """Check what only a person can put right, before anything is built.

    Raises:
        ReleaseRefused: The version has no date, the commit has another tag, or has no archive,
            or files have changed.
    """
    changelog.dated_section((ROOT / "CHANGELOG.md").read_text(), VERSION)
    if not (ARCHIVES / f"{VERSION}.tar.xz").exists():
        raise ReleaseRefused(
            f"no archive of {VERSION} is kept for later versions: "
            "run python -m tests.compatibility.writer, and commit what it writes"
        )
    distributions.refuse_changes()
    tags = [tag for tag in git("tag", "--points-at", "HEAD").split() if tag.startswith("v")]
    if tags and tags != [f"v{VERSION}"]:
        raise ReleaseRefused(
            f"this commit has the tags {tags} and its version is {VERSION}: "
            "change __version__ in txmq/__init__.py, or tag another commit"
        )


def interpreters(is_narrow: bool) -> list[environments.Interpreter]:
    """The Pythons to try.

    Raises:
        ReleaseRefused: CI lacks one of them.
    """
    if is_narrow:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return [environments.Interpreter(version, Path(sys.executable))]
    found = []
    for version in environments.VERSIONS:
        if python := environments.interpreter(version):
            found.append(python)
        elif os.environ.get("CI"):
            raise ReleaseRefused(f"Python {version} is missing: install it, as release.yml does")
        else:
            print(f"Python {version} is not on this machine: not tried")
    return found


def main(tools: Path, is_narrow: bool, is_rehearsal: bool) -> None:
    """Build, check and try the distributions, and describe them."""
    if not is_narrow and not is_rehearsal:
        refuse_unready()
    pythons = interpreters(is_narrow)
    shutil.rmtree(SCRATCH, ignore_errors=True)

    sdist, wheel = sorted(
        distributions.build_twice(tools, SCRATCH, ROOT / "dist"),
        key=lambda path: path.suffix == ".whl",
    )
    print(f"{wheel.name} and {sdist.name}: two builds are equal, and their metadata is right")

    for python in pythons:
        for extras in environments.EXTRAS:
            if is_narrow and {"spark", "jdbc", "all"} & {extras}:
                continue
            begin = time.monotonic()
            folder = SCRATCH / python.version / (extras or "none")
            environments.try_wheel(wheel, python, extras, folder)
            name = f"txmq[{extras}]" if extras else "txmq"
            print(f"Python {python.version} {name}: {time.monotonic() - begin:.0f} s", flush=True)

    moment = git("log", "-1", "--format=%ct").strip()
    sbom = bill.write_bill(tools, wheel, VERSION, moment)
    distributions.write_sums([sdist, wheel, sbom])
    print(f"dist/ is ready: {', '.join(sorted(path.name for path in wheel.parent.iterdir()))}")


def arguments() -> argparse.Namespace:
    """The words of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tools", type=Path)
    parser.add_argument("--narrow", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = arguments()
    try:
        main(chosen.tools.absolute() / "bin", chosen.narrow, chosen.rehearse)
    except ReleaseRefused as error:
        print(f"release: {error}", file=sys.stderr)
        sys.exit(1)
