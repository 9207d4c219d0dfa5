"""Builds the sdist and the wheel twice and compares them."""

import os
import shutil
from hashlib import sha256
from pathlib import Path

from tools.release.refusal import ReleaseRefused, checked

ROOT = Path(__file__).resolve().parents[2]
UMASKS = {"first": 0o022, "a/deeper/second": 0o077}
"""A folder for each build, with other paths, other times of files and other permissions."""


def git(*words: str) -> str:
    """The output of a git command in this repository."""
    return checked(["git", "-C", ROOT, *words], f"git {words[0]}")


def refuse_changes() -> None:
    """Let only a commit be released.

    Raises:
        ReleaseRefused: There are files that no commit has.
    """
    if changes := git("status", "--porcelain").rstrip():
        raise ReleaseRefused(f"commit or remove these changes first:\n{changes}")


def copy_sources(tree: Path) -> None:
    """Copy the files that git knows, as they are now, with the present as their time."""
    for name in git("ls-files", "-z").rstrip("\0").split("\0"):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)


def build(tools: Path, folder: Path, umask: int, moment: str) -> dict[str, Path]:
    """Build a sdist, and a wheel from it; returns the files by their names."""
    tree, built = folder / "txmq", folder / "dist"
    before = os.umask(umask)
    try:
        copy_sources(tree)
        command = [tools / "python", "-m", "build", "--no-isolation", "--outdir", built, tree]
        checked(command, "the build", env={**os.environ, "SOURCE_DATE_EPOCH": moment})
    finally:
        os.umask(before)
    shutil.rmtree(tree)
    return {path.name: path for path in built.iterdir()}


def build_twice(tools: Path, scratch: Path, destination: Path) -> list[Path]:
    """Build both distributions reproducibly; returns them in ``destination``.

    Raises:
        ReleaseRefused: Two builds differ, or the metadata is wrong.
    """
    moment = git("log", "-1", "--format=%ct").strip()
    first, second = (build(tools, scratch / name, UMASKS[name], moment) for name in UMASKS)
    for name in sorted(first.keys() | second.keys()):
        both = [files[name].read_bytes() if name in files else b"" for files in (first, second)]
        if both[0] != both[1]:
            raise ReleaseRefused(
                f"two builds of {name} differ: compare {scratch}/*/dist, for example by diffoscope"
            )
    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir()
    made = [Path(shutil.copy(first[name], destination)) for name in sorted(first)]
    checked([tools / "twine", "check", "--strict", *made], "twine check")
    return made


def write_sums(files: list[Path]) -> Path:
    """Write SHA256SUMS beside the files, for ``sha256sum --check``."""
    sums = files[0].with_name("SHA256SUMS")
    lines = [f"{sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(files)]
    sums.write_text("".join(lines))
    return sums
