"""A newcomer finds the page of each task from the start page in two clicks."""

import re

from tests.docs.pages import FENCE, ROOT

START = ROOT / "docs/index.md"
QUESTIONS = ROOT / "docs/internals/questions.md"
CLICKS = 2
LINK = re.compile(r"\]\(([^)\s#]+\.md)(?:#[^)]*)?\)")


def links(page):
    """The pages that a page links to."""
    text = FENCE.sub("", page.read_text())
    return {(page.parent / target).resolve() for target in LINK.findall(text) if ":" not in target}


def tasks():
    """The page of each task."""
    rows = re.findall(r"^\| ([^|]+) \| \[[^]]+(\]\(.+\)) \|$", QUESTIONS.read_text(), re.MULTILINE)
    return {task: (QUESTIONS.parent / LINK.match(target)[1]).resolve() for task, target in rows}


def test_each_task_of_a_newcomer_is_two_clicks_from_the_start_page():
    found, newest = {START}, {START}
    for _ in range(CLICKS):
        newest = {target for page in newest for target in links(page)} - found
        found |= newest

    assert len(tasks()) == 20
    assert {task: page for task, page in tasks().items() if page not in found} == {}
