"""Breaks what pages show, one place at a time, and reports what no test notices.

Run ``python -m tests.docs.mutants [PAGE ...]``; it takes some minutes, so no test does.
"""

import contextlib
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.docs.checks import NOT_RUN, check
from tests.docs.pages import CODE, FENCE, all_pages
from tests.docs.program_server import ProgramServer
from tests.docs.scratch import Scratch
from tests.servers import database_server, databases, redis_server

PLACES = {
    "python": {
        "call": r"(?<!os)\.(\w+)\(",
        "argument": r"[(,]\s*(\w+)=(?!=)",
        "import": r"^from txmq[\w.]* import .*?(\w+)$",
        "module": r"^(?:from|import) ([\w.]+)",
    },
    "py": {"word": r"\b(\w{4,})\b"},
    "pycon": {"import": r"^>>> from txmq[\w.]* import (\w+)$", "name": r">>> (\w+)\("},
    "console": {
        "group": r"^\$ txmq (\w+)",
        "command": r"^\$ txmq (?:topic|group|message|tx|xa|dlq|log|cluster|schema) (\w+)",
        "option": r"^\$ txmq .*? --([a-z-]+)",
        "output": r"^[^$\n]*?(\w{3,})",
        "program": r"^\$ (?!txmq)(\w+) ",
        "target": r"^\$ (?:make|pip install|createdb|docker compose \w+) .*?(\w+)[\]']*$",
    },
    "toml": {"key": r"^(\w+) =", "table": r"^\[+([\w.]+)\]"},
    "sql": {"table": r"\b(?:FROM|INTO|UPDATE|TABLE|ON) (\w+)", "column": r"\b(\w+) ="},
    "yaml": {"option": r"--([a-z]+)"},
    "properties": {"key": r"^(\w+)="},
    "ini": {"key": r"^(\w+) ="},
    "xml": {"tag": r"<(\w+)>"},
    "json": {"brace": r"([}])"},
    "text": {"word": r"(\w+)"},
}
"""The places of a block that are changed, by its language."""
PER_PLACE = 1
SEED = 29


class Mutant(NamedTuple):
    """A page with one wrong word."""

    page: object
    line: int
    language: str
    place: str
    change: str


def mutants_of(page):
    """Mutants of a page: each kind of place of each block once, and each sentence on an output."""
    chance = random.Random(f"{SEED} {page.name}")
    for block, fence in zip(page.blocks(), FENCE.finditer(page.text), strict=True):
        at = fence.start(3)
        language = "output" if block.is_output else block.language
        for place, pattern in PLACES.get(block.language, {}).items():
            found = list(re.finditer(pattern, fence[3], re.MULTILINE))
            for match in chance.sample(found, min(PER_PLACE, len(found))):
                yield mutant(page, at + match.start(1), at + match.end(1), language, place)
        if block.said and block.language == "python":
            said = page.text.index(block.said, at)
            word = CODE.search(block.said)
            yield mutant(page, said + word.start(1), said + word.end(1), "said", "words")


def mutant(page, start, end, language, place):
    """This page with another word at a place."""
    word = page.text[start:end]
    text = f"{page.text[:start]}{word}x{page.text[end:]}"
    line = page.text.count("\n", 0, start) + 1
    return Mutant(page._replace(text=text), line, language, place, f"{word} -> {word}x")


def is_noticed(page, server, fixture):
    """Whether the checks of a page fail."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Scratch(page, server, Path(folder), fixture) as scratch,
    ):
        try:
            check(page, scratch)
        except (Exception, SystemExit):
            return True
    return False


def main(names):
    """Try the mutants of these pages, or of all; the exit code."""
    survivors, unfit, count = [], [], 0
    with contextlib.ExitStack() as stack:
        servers = {
            "postgres": stack.enter_context(database_server.wanted(databases.postgres)),
            "redis_server": stack.enter_context(database_server.wanted(redis_server.redis_server)),
        }
        server = stack.enter_context(ProgramServer())
        for page in all_pages():
            if page.name.startswith("reference/") or (names and page.name not in names):
                continue  # The reference is generated, and other tests compare it as a whole.
            if is_noticed(page, server, servers.get):
                unfit.append(page.name)
                continue
            for mutant in mutants_of(page):
                count += 1
                if not is_noticed(mutant.page, server, servers.get):
                    survivors.append(mutant)
                    print(
                        f"{page.name}:{mutant.line} {mutant.language} {mutant.place}: "
                        f"{mutant.change}",
                        flush=True,
                    )
    print(f"{count - len(survivors)} of {count} mutants were noticed")
    print(f"not tried: blocks of {', '.join(NOT_RUN)}")
    print(f"not tried, for other tests follow these pages: {', '.join(unfit)}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
