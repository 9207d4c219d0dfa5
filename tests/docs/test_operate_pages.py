"""The pages for operators name commands, settings and messages that exist."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from tests.docs.commands import txmq_command, unknown_words
from txmq import limits
from txmq.settings.loading import kinds_of, load
from txmq_broker.config import BrokerSettings

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "operate", "monitor", "topics-and-groups", "consume", "limits", "backup", "troubleshoot",
    "resolve", "log",
)  # fmt: skip
TEXTS = {name: (ROOT / f"docs/howto/{name}.md").read_text() for name in NAMES}
WHOLE = "\n".join(TEXTS.values())
SOURCES = [*(ROOT / "txmq").rglob("*.py"), *(ROOT / "broker").rglob("*.py")]
PLACEHOLDER = re.compile(r"\.\.\.|\b[A-Z]+\b|config/topics\.json(?:\.old)?|high-water|identity|90%")


@pytest.mark.parametrize(
    "line", sorted(set(re.findall(r"^\$ txmq (.+?)(?: +#.*)?$", WHOLE, re.MULTILINE)))
)
def test_every_command_on_the_pages_is_understood_by_txmq(line):
    txmq_command(shlex.split(line))


def test_every_mentioned_command_exists_with_its_options():
    mentions = sorted(set(re.findall(r"`txmq ([a-z][^`]+)`", WHOLE)))
    unknown = {line: wrong for line in mentions if (wrong := unknown_words(shlex.split(line)))}

    assert len(mentions) > 30
    assert unknown == {}


def test_every_named_setting_exists():
    groups = "store|topics|transaction|delay|retention"
    named = set(re.findall(rf"\b(?:{groups})\.[a-z_]+\b(?!\()", WHOLE))
    named -= {"topics.json", "delay.md"}

    assert named - set(kinds_of(BrokerSettings)) == set()


def test_the_shown_settings_file_can_be_read(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", WHOLE, re.DOTALL)
    file = tmp_path / "broker.toml"
    file.write_text(block)

    assert load(BrokerSettings, file=file).advertise == "10.0.0.5:10911"


def test_the_limits_page_has_the_current_values():
    numbers = [
        limits.PROPERTIES_BYTES_MAX, limits.BATCH_MESSAGES_MAX, limits.KEYS_PER_MESSAGE_MAX,
        limits.TOPICS_MAX, limits.GROUPS_PER_CLIENT_MAX, limits.TOPIC_CHARS_MAX,
        limits.GROUP_CHARS_MAX, BrokerSettings().connections_max,
        BrokerSettings().transaction.pending_max,
    ]  # fmt: skip
    sizes = [limits.MESSAGE_BODY_BYTES_MAX, limits.FRAME_BYTES_MAX, limits.UNSYNCED_BYTES_MAX]
    kept = BrokerSettings().retention
    shares = [kept.delete_above, kept.force_above, kept.refuse_halves_above, kept.refuse_above]
    wanted = [
        *(f"{number:,}" for number in numbers),
        *(f"{size // 2**20} MiB" for size in sizes),
        *(f"| {share:.0%} |" for share in shares),
    ]

    assert [value for value in wanted if value not in TEXTS["limits"]] == []


def test_every_message_on_the_troubleshooting_page_is_in_the_sources():
    """Each row of the tables of messages, without what differs from line to line."""
    literals = "\n".join(
        node.value
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    rows = re.findall(r"^\| (.+?) \|", TEXTS["troubleshoot"], re.MULTILINE)
    messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
    missing = [
        part.strip()
        for message in messages
        for part in PLACEHOLDER.split(message)
        if part.strip() not in literals
    ]

    assert len(messages) > 20
    assert missing == []
