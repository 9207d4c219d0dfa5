"""Type-checks every Python program of README and docs, as the editors of their readers do.

``python -m tests.docs.type_checks`` is a part of `make lint`: one run of pyright, which comes from
npm, and one of mypy. Errors name the page and its line.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.docs.pages import ROOT, all_pages, excerpts
from tools.packages import Unprepared, cache, node_program, npm_folder

PYRIGHT, VERSION = "pyright", "1.1.414"
CHECK_SECONDS = 300
EXCEPT = {"examples/web/django_bank.py": "pyright understands Django only with django-stubs"}
"""Programs that pages show in parts and pyright leaves out, and why."""
LENIENT = ("--check-untyped-defs", "--ignore-missing-imports", "--follow-imports=silent")
"""What mypy is called with: most pages do not annotate every function."""


class Finding(NamedTuple):
    """An error in a program."""

    checker: str
    place: str
    """The page or file."""
    line: int
    text: str

    def __str__(self):
        return f"{self.place}:{self.line}: {self.text} ({self.checker})"


def findings(pages, programs=()):
    """What pyright and mypy find in the programs of these pages, and pyright in others; mypy checks
    those of this checkout already.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        places = {
            str(path): page.path.relative_to(ROOT).as_posix()
            for page in pages
            for path in write_programs(page, folder)
        }
        found = [*pyright_findings(folder, programs), *mypy_findings(folder)]
    return [
        finding._replace(place=places.get(finding.place) or os.path.relpath(finding.place, ROOT))
        for finding in found
    ]


def write_programs(page, folder):
    """Write the programs of a page, each into a file; lines keep their numbers."""
    home = folder / page.name.replace("/", "_").replace("-", "_")
    written = {}
    for block in page.blocks():
        if not block.language.startswith("python"):
            continue
        if not block.is_fragment:
            path = home / (block.file or f"line_{block.line}.py")
            written[path] = ""
        above = written[path]
        written[path] = above + "\n" * (block.line - above.count("\n")) + block.text
    for path, text in written.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return list(written)


def programs_of(pages):
    """The programs of this checkout that pages show in parts."""
    parts = [
        part
        for page in pages
        for block in page.blocks()
        if block.language == "py"
        for part in excerpts(block.text)
    ]
    sources = {path: path.read_text() for path in sorted((ROOT / "examples").rglob("*.py"))}
    return [path for path, text in sources.items() if any(part in text for part in parts)]


def run_pyright(*arguments, folder=ROOT):
    """What pyright reports, as JSON, with the packages of this interpreter.

    Raises:
        Unprepared: npm cannot bring it.
    """
    script = npm_folder(PYRIGHT, PYRIGHT, VERSION) / PYRIGHT / "index.js"
    # `--verifytypes` looks for packages with the `python` on PATH, whatever else it is given.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    sources = os.pathsep.join([str(ROOT), str(ROOT / "broker")])
    done = subprocess.run(
        [node_program(), script, "--outputjson", *arguments],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS,
        check=False,
    )
    if not done.stdout.startswith("{"):
        raise AssertionError(f"pyright failed: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def pyright_findings(folder, programs):
    """What pyright finds in the programs of a folder, and in others."""
    settings = folder / "pyrightconfig.json"
    others = [os.path.relpath(path, folder) for path in programs]
    settings.write_text(json.dumps({"include": [".", *others], "pythonVersion": "3.11"}))
    for diagnostic in run_pyright("-p", settings, folder=folder)["generalDiagnostics"]:
        if diagnostic["severity"] == "error":
            line = diagnostic["range"]["start"]["line"] + 1
            yield Finding("pyright", diagnostic["file"], line, diagnostic["message"])


def mypy_findings(folder):
    """What mypy finds in the programs of a folder."""
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "mypy",
                "--config-file=",
                "--output=json",
                *LENIENT,
                "--no-error-summary",
            ),
            *("--explicit-package-bases", f"--cache-dir={cache('page-types')}", folder),
        ],
        cwd=folder,
        env={**os.environ, "MYPYPATH": os.pathsep.join([str(ROOT), str(ROOT / "broker")])},
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS,
        check=False,
    )
    if done.returncode not in (0, 1) or done.stderr:
        raise AssertionError(f"mypy failed: {done.stdout}{done.stderr}")
    for text in done.stdout.splitlines():
        diagnostic = json.loads(text)
        if diagnostic["severity"] == "error":
            yield Finding(
                "mypy", str(folder / diagnostic["file"]), diagnostic["line"], diagnostic["message"]
            )


def main():
    try:
        pages = all_pages()
        others = {*programs_of(pages), *(ROOT / "tests/typing").glob("*.py")}
        found = findings(pages, sorted(others - {ROOT / name for name in EXCEPT}))
    except Unprepared as error:
        return f"{error}; `make lint` checks the pages with it"
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
