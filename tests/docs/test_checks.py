"""A page that shows something wrong fails, whatever the language of the block."""

import pytest

from tests.docs.checks import check
from tests.docs.outputs import is_in_order, is_output_of
from tests.docs.pages import ROOT, Page

PROGRAM = "```python\nprint('a')\nprint('b')\n```\n\n"


def page_with(text):
    return Page(ROOT / "docs/howto/some.md", text)


@pytest.mark.parametrize(
    "text",
    [
        PROGRAM + "```text\na\nb\n```\n",
        PROGRAM + "It prints, in any order:\n\n```text\nb\na\n```\n",
        PROGRAM + "It prints `a`, and then `b`: so it ends.\n",
        PROGRAM
        + "Add this to the program above:\n\n```python\nprint('c')\n```\n\n```text\nc\n```\n",
        "Save this as `job.py`:\n\n" + PROGRAM + "```console\n$ python job.py\na\n...\n```\n",
        "```console\n$ txmq topic create Orders --queues 4\n...\n$ txmq serve --name a\n```\n",
        '```toml\n[log]\ncluster = "a:9876"\n```\n',
    ],
)
def test_a_right_page_passes(text, scratch):
    page = page_with(text)
    with scratch(page) as environment:
        check(page, environment)


@pytest.mark.parametrize(
    "text",
    [
        "```\nno language\n```\n",
        "```cobol\nSTOP RUN.\n```\n",
        "```text\ntxmq topic list\n```\n",
        "```python\nfrom txmq import Produce\n```\n",
        "```python\nimport warnings, sys\nsys.stderr.write('a warning')\n```\n",
        PROGRAM + "```text\na\nc\n```\n",
        PROGRAM + "```text\na\n```\n",
        PROGRAM + "It prints, in any order:\n\n```text\nb\nb\n```\n",
        PROGRAM + "It prints `b`, and then `a`.\n",
        "Add this to the program above:\n\n" + PROGRAM,
        PROGRAM
        + "Add this to the program above:\n\n```python\nprint('c')\n```\n\n```text\nd\n```\n",
        "Save this as `job.py`:\n\n" + PROGRAM + "```console\n$ python job.py\nc\n```\n",
        "```python\ndef test_it(txmq_broker):\n    assert txmq_broker.names == ''\n```\n",
        "```console\n$ txmq topic make Orders\n```\n",
        "```console\n$ txmq topic create Orders --queue 4\n```\n",
        "```console\n$ txmq topic create Orders --queues 4\nOrders exists\n```\n",
        "```console\n$ txmq serve --set store.flash=async\n```\n",
        "```console\n$ pip install '.[broke]'\n```\n",
        "```console\n$ make tests\n```\n",
        "```console\n$ docker compose exec brokers txmq tx list\n```\n",
        "```console\n$ frobnicate\n```\n",
        "```bash\n# a comment\nfrobnicate\n```\n",
        "```console\ntxmq topic list\n```\n",
        '```toml\n[log]\nclusters = "a:9876"\n```\n',
        '```toml\nname = "a"\ndirectory = "a"\nbank = []\nlog = {}\n```\n',
        "```properties\nbrokerNames=broker-a\n```\n",
        '```yaml\nargs: [txmq, relay, --databases, "sqlite:///a.db"]\n```\n',
        "```py\nno_such_line = 1\n```\n",
        "```pycon\n>>> from txmq.reconcile.log.source import registers\n```\n",
        "```json\n{\n```\n",
        "```xml\n<a>\n```\n",
    ],
)
def test_a_wrong_page_fails(text, scratch):
    page = page_with(text)
    with scratch(page) as environment, pytest.raises((Exception, SystemExit)):
        check(page, environment)


@pytest.mark.parametrize(
    ("shown", "output", "is_it"),
    [
        ("a ... c\n", "a b c\n", True),
        ("a\n...\n", "a\nb\nc\n", True),
        ("a\n", "a\nb\n", False),
        ("id 99EDA8D6406E4EE1AC507AA3113D0000\n", "id 0" + "7" * 31 + "\n", True),
        ("id 99EDA8D6406E4EE1AC507AA3113D0000\n", "id none\n", False),
    ],
)
def test_dots_and_ids_stand_for_what_differs(shown, output, is_it):
    assert bool(is_output_of(shown, output)) is is_it


def test_texts_are_found_in_their_order():
    assert is_in_order(["a", "b"], "xaxb")
    assert not is_in_order(["b", "a"], "xaxb")
