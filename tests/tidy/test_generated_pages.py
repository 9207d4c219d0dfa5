"""Pages that are printed from the code say what the code says."""

import asyncio
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tests.docs.pages import all_pages
from tools import (
    api_reference,
    class_table,
    cli_reference,
    error_reference,
    fault_table,
    metric_reference,
    mqadmin_page,
    reconcile_rules,
    state_diagram,
    wire_reference,
)
from txmq import errors
from txmq.cli.mqadmin import EQUIVALENTS
from txmq.cli.root import app
from txmq_broker.testing import embedded

DOCS = Path(__file__).resolve().parents[2] / "docs"
WORDS_MAX = 1800
CODE_CHARS_MAX = 100
"""Characters of a line of code in the column of the site at 1440 px."""
MQADMIN = """
addBroker addWritePerm allocateMQ brokerConsumeStats brokerStatus checkMsgSendRT
checkRocksdbCqWriteProgress cleanBrokerMetadata cleanExpiredCQ cleanUnusedTopic cloneGroupOffset
clusterAclConfigVersion clusterList clusterRT consumeMessage consumerConnection consumerProgress
consumerStatus copyAcl copyUser createAcl createUser deleteAcl deleteAclConfig
deleteExpiredCommitLog deleteKvConfig deleteSubGroup deleteTopic deleteUser dumpCompactionLog
electMaster exportConfigs exportMetadata exportMetadataInRocksDB exportMetrics exportPopRecord
getAcl getBrokerConfig getBrokerEpoch getColdDataFlowCtrInfo getConsumerConfig
getControllerConfig getControllerMetaData getNamesrvConfig getSyncStateSet getUser haStatus
listAcl listUser printMsg printMsgByQueue producer producerConnection queryCq queryMsgById
queryMsgByKey queryMsgByOffset queryMsgByUniqueKey queryMsgTraceById remappingStaticTopic
removeBroker removeColdDataFlowCtrGroupConfig resetMasterFlushOffset resetOffsetByTime
rocksDBConfigToJson sendMessage sendMsgStatus setCommitLogReadAheadMode setConsumeMode
skipAccumulatedMessage startMonitoring statsAll topicClusterList topicList topicRoute
topicStatus updateAcl updateAclConfig updateBrokerConfig updateColdDataFlowCtrGroupConfig
updateControllerConfig updateGlobalWhiteAddr updateKvConfig updateNamesrvConfig updateOrderConf
updateStaticTopic updateSubGroup updateSubGroupList updateTopic updateTopicList updateTopicPerm
updateUser wipeWritePerm
"""
"""The commands that MQAdminStartup of RocketMQ 4.9.8 or 5.3 registers."""


def test_the_configuration_page_is_up_to_date():
    printed = CliRunner().invoke(app, ["config", "reference"]).output

    assert (DOCS / "reference/configuration.md").read_text() == printed, "run: make docs"


def test_the_wire_page_is_up_to_date():
    async def printed() -> str:
        async with embedded() as broker:
            return wire_reference.page(broker)

    assert (DOCS / "reference/wire.md").read_text() == asyncio.run(printed()), "run: make docs"


def test_the_metrics_page_is_up_to_date():
    page = metric_reference.page()

    assert (DOCS / "reference/metrics.md").read_text() == page, "run: make docs"


def test_the_commands_page_is_up_to_date():
    page = cli_reference.page()

    assert (DOCS / "reference/cli.md").read_text() == page, "run: make docs"
    rows = [row for row in page.splitlines() if row.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |")] == [], "each option has a help"


def test_each_command_has_an_example_that_it_accepts():
    examples = tomllib.loads(cli_reference.EXAMPLES.read_text())
    found = dict(cli_reference.commands(get_command(app), "txmq"))
    usable = {
        path: command
        for path, command in found.items()
        if not cli_reference.is_only_a_group(command)
    }

    assert set(examples) == set(usable), "each command needs a line in tools/cli_examples.toml"
    for path, example in examples.items():
        assert example.startswith(path)
        words = shlex.split(example.removeprefix(path))
        usable[path].make_context(path, words)  # Raises if a word is wrong.


def test_the_mqadmin_page_is_up_to_date_and_lists_every_command():
    page = mqadmin_page.page()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*) \|$", page, re.MULTILINE)

    assert (DOCS / "reference/mqadmin.md").read_text() == page, "run: make docs"
    assert [name for name, _, _ in rows] == MQADMIN.split()
    assert [name for name, ours, text in rows if ours == "none" and not text] == []


@pytest.mark.parametrize("path", sorted(path for ours in EQUIVALENTS.values() for path in ours[0]))
def test_the_help_of_a_command_names_its_mqadmin_equivalents(path):
    shown = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "1000"})
    named = [name for name, ours in EQUIVALENTS.items() if path in ours.commands]

    assert shown.exit_code == 0, shown.output
    assert f"As mqadmin's {', '.join(named)}." in shown.output


def test_the_errors_page_is_up_to_date():
    assert (DOCS / "reference/errors.md").read_text() == error_reference.page(), "run: make docs"


def test_the_errors_page_lists_every_error_with_advice():
    page = error_reference.page()
    shown = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    classes = [name for name in errors.__all__ if isinstance(getattr(errors, name), type)]

    assert sorted(shown) == sorted(set(classes) - {"Effect"})
    assert set(tomllib.loads(error_reference.ADVICE.read_text())) == set(shown)
    assert page.count("- **What to do**: ") == len(shown)


def test_the_python_api_pages_are_up_to_date():
    folder = DOCS / "reference/api"
    written = {path.name: path.read_text() for path in folder.iterdir()}

    assert written == api_reference.pages(), "run: make docs"


def test_the_state_diagram_is_up_to_date():
    text = (DOCS / "explanation/half-messages.md").read_text()

    assert state_diagram.page_with_diagram(text) == text, "run: make docs"


def test_the_table_of_classes_is_up_to_date():
    text = (DOCS / "reference/reconcile-classes.md").read_text()

    assert class_table.table() in text, "run: make docs"
    assert class_table.page_with_table(text) == text


def test_the_rules_page_is_up_to_date():
    page = reconcile_rules.page()

    assert (DOCS / "reference/reconcile-rules.md").read_text() == page, "run: make docs"
    keys = [row for row in page.splitlines() if row.startswith("| `")]
    assert [row for row in keys if row.endswith(" |  |")] == [], "each key is told of"


def test_the_faults_page_is_up_to_date():
    assert (DOCS / "internals/faults.md").read_text() == fault_table.page(), "run: make docs"


def slug(heading):
    """The anchor of a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")


def anchors(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def test_links_to_headings_lead_to_existing_headings():
    pages = [*sorted(DOCS.parent.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
    broken = [
        f"{page.relative_to(DOCS.parent)} links to {target}#{anchor}"
        for page in pages
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", page.read_text())
        if (other := page.parent / target if target else page).suffix == ".md"
        if other.exists() and anchor not in anchors(other)
    ]

    assert broken == []


def test_code_in_a_page_fits_the_column_of_the_site():
    """Only what a terminal shows may be longer: the site wraps it as a terminal does."""
    long = [
        f"{page.name}: {line}"
        for page in all_pages()
        for block in page.blocks()
        if block.language not in {"console", "text"}
        for line in block.text.expandtabs(4).splitlines()
        if len(line) > CODE_CHARS_MAX
    ]
    assert long == []


def test_howto_and_explanation_pages_are_short():
    pages = [*(DOCS / "howto").glob("*.md"), *(DOCS / "explanation").glob("*.md")]
    assert [page for page in pages if len(page.read_text().split()) > WORDS_MAX] == []


def test_links_between_pages_lead_to_existing_files():
    pages = [*sorted(DOCS.parent.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
    broken = [
        f"{page.relative_to(DOCS.parent)} links to {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]

    assert broken == []


@pytest.mark.parametrize("path", ["README.md", "docs/explanation/promises.md"])
def test_every_promise_links_to_a_test_that_shows_it(path):
    page = DOCS.parent / path
    promises = re.findall(r"^(?:- |\| \*\*).*$", page.read_text(), re.MULTILINE)
    shown = {
        promise: [page.parent / link for link in re.findall(r"\]\(([^)]*/test_\w+\.py)\)", promise)]
        for promise in promises
    }

    assert len(shown) >= 5
    assert [promise for promise, tests in shown.items() if not any(map(Path.exists, tests))] == []


def test_every_setting_attributed_to_the_broker_exists():
    settings = (DOCS / "reference/configuration.md").read_text()
    known = set(re.findall(r"^\| `([\w.]+)` \|", settings, re.MULTILINE))
    named = {
        name: path.name
        for path in [*DOCS.rglob("*.md"), *(DOCS.parent / "txmq").rglob("*.py")]
        for name in re.findall(r"\bbroker's `{1,2}([a-z_.]+)`", path.read_text())
    }

    assert named
    assert {name: page for name, page in named.items() if name not in known} == {}


def test_the_index_of_decisions_has_the_titles_of_its_pages():
    index = (DOCS / "adr/README.md").read_text()
    listed = re.findall(r"^\| \[\d{4}\]\((\S+)\) \| (.+) \|$", index, re.MULTILINE)
    titles = {
        page.name: page.read_text().partition("\n")[0].partition(". ")[2]
        for page in (DOCS / "adr").glob("0*.md")
    }

    assert dict(listed) == titles
