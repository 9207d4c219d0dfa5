"""The pages of the documentation, and the blocks of code that they show."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int
    language: str
    text: str
    before: str
    """The paragraph above it; empty if it follows another block or a heading."""
    said: str
    """The line "It prints `...`" below it, if there is one."""
    is_output: bool
    """Whether it shows what the block above it prints."""

    @property
    def is_fragment(self):
        """Whether the page tells its reader to add this to the program above it."""
        return "program above" in self.before

    @property
    def file(self):
        """The file that the page gives to this program; empty if it names none."""
        named = re.findall(r"`(\w+\.py)`", self.before)
        return named[-1] if named else ""


class Command(NamedTuple):
    """A command of a console block."""

    line: str
    output: str
    """The output that the page shows below it."""


class Page(NamedTuple):
    """A page and its text, which a mutant replaces."""

    path: Path
    text: str

    @property
    def name(self):
        return self.path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/")

    def blocks(self):
        """The fenced blocks in their order."""
        found, end = list(FENCE.finditer(self.text)), 0
        blocks = []
        for match, following in zip(found, [*found, None][1:], strict=True):
            above = self.text[end : match.start()].strip()
            below = self.text[match.end() : following and following.start()].strip()
            before = above.split("\n\n")[-1]
            before = "" if before.startswith("#") else before
            follows_program = bool(blocks) and blocks[-1].language == "python"
            is_output = match[2] == "text" and follows_program and is_introduction(above)
            has_output = following and following[2] == "text" and is_introduction(below)
            lines = [] if has_output else below.splitlines()
            said = next((line for line in lines if line.startswith("It prints ")), "")
            line = self.text.count("\n", 0, match.start()) + 1
            text = re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)
            blocks.append(Block(line, match[2], text, before, said, is_output))
            end = match.end()
        return blocks


def is_introduction(text):
    """Whether this stands between a program and its output."""
    return not text or ("\n\n" not in text and "prints" in text)


def excerpts(text):
    """The parts of a program that a block of `py` shows, without the marks between them."""
    return re.split(r" +# \.\.\.\n", text)


def commands(text):
    """The commands of a console block."""
    parts = re.split(r"^[$#] ", text, flags=re.MULTILINE)
    assert not parts[0].strip(), f"a console block begins with `$ `, not with {parts[0]!r}"
    return [
        Command(line, output) for line, _, output in (part.partition("\n") for part in parts[1:])
    ]


def read(path):
    """The page of this file."""
    return Page(path, path.read_text())


def all_pages():
    """README.md and every page of docs; a decision keeps the code that it was made with."""
    files = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adr"]
    return [read(path) for path in [ROOT / "README.md", *sorted(files)]]
