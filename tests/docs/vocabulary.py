"""Whether the words of what pages show and no test runs exist.

A word exists if it is in the sources, on another page, or elsewhere on its own page. So a renamed
class, option or column is noticed, and a misprint, wherever it is shown.
"""

import re
from collections import defaultdict
from functools import cache

from tests.docs.pages import ROOT, all_pages

WORD = re.compile(r"\w{3,}")
NUMBER = re.compile(r"(?:0x)?[0-9A-Fa-f_]+Z?")
"""A number, a part of a time, or an id."""
SOURCES = ("txmq", "broker", "examples", "tools", "packaging")
FILES = ("Makefile", "pyproject.toml", "Dockerfile", "docker-compose.yml")
SUFFIXES = {".py", ".toml", ".yml", ".yaml", ".html"}
OTHERS = {
    "ASGITransport": "of httpx",
    "CRON_TZ": "of cron",
    "fetchone": "of sqlite3",
    "run_module": "of runpy",
    "token_bytes": "of secrets",
}
"""Words that only one block has, and whose they are."""


@cache
def words_of_sources():
    paths = [path for folder in SOURCES for path in (ROOT / folder).rglob("*")]
    paths = [path for path in paths if path.suffix in SUFFIXES] + [ROOT / name for name in FILES]
    return {word for path in paths for word in WORD.findall(path.read_text())}


@cache
def pages_by_word():
    """The pages that have a word, by the word."""
    found = defaultdict(set)
    for page in all_pages():
        for word in WORD.findall(page.text):
            found[word].add(page.path)
    return found


def unknown_words(page, text, block):
    """The words of a text of this page that exist nowhere but in its block."""
    elsewhere = set(WORD.findall(page.text.replace(block, "")))
    return [
        word
        for word in WORD.findall(text)
        if not NUMBER.fullmatch(word)
        and word not in OTHERS
        and word not in words_of_sources()
        and word not in elsewhere
        and not pages_by_word().get(word, set()) - {page.path}
    ]


def see_words(page, text, block=None):
    """Fail if a text of this page has a word that exists nowhere but in its block, or in itself."""
    unknown = unknown_words(page, text, block or text)
    assert not unknown, f"no source and no other page has {', '.join(unknown)}"
