"""The programs understand each command of docker-compose.yml and of the pages on the bank transfer,
and the pages show the code as it is.

No Docker runs here, and no YAML library: the file uses only mappings by indentation, and JSON after
a colon, which a few lines can read.
"""

import json
import re
from pathlib import Path

import pytest
from sqlalchemy import make_url

from examples.bank_transfer.books import State
from examples.bank_transfer.databases import DRIVERS
from examples.bank_transfer.money import Money
from examples.bank_transfer.orders import AMOUNT_MAX, DAY_MAX, Drill, Reason
from examples.bank_transfer.ways import Way
from examples.bank_transfer.web.api import STATUS, Asked
from tests.docs.commands import understand
from txmq.transaction.story import Step

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
FOUND = sorted((ROOT / "docs/howto").glob("bank-transfer*.md"))
PAGES = {page.stem: page.read_text() for page in FOUND}
ORDERS = PAGES["bank-transfer"].partition("\n## Order a transfer\n")[2].partition("\n## ")[0]
EXAMPLE = ROOT / "examples/bank_transfer"
LINE = re.compile(r"(?P<indent> *)(?P<key>[\w-]+):(?: (?P<value>.+))?")


def read(text):
    """The file as mappings."""
    whole = {}
    open_at = [(-1, whole)]
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = LINE.fullmatch(line)
        assert found, f"this test cannot read the line: {line}"
        indent = len(found["indent"])
        while open_at[-1][0] >= indent:
            open_at.pop()
        inside = open_at[-1][1]
        assert found["key"] not in inside, line
        if found["value"] is None:
            inside[found["key"]] = below = {}
            open_at.append((indent, below))
        else:
            value = found["value"]
            inside[found["key"]] = json.loads(value) if value[0] in "[{" else value
    return whole


WHOLE = read(COMPOSE.read_text())
SERVICES = WHOLE["services"]
SERVED = sorted(set(SERVICES) - {"topics", "icbc-accounts", "ccb-accounts", "listener"})


def commands():
    for name, service in SERVICES.items():
        if "command" in service:
            yield pytest.param(service["command"], id=name)
        if "healthcheck" in service:
            how, *words = service["healthcheck"]["test"]
            assert how == "CMD"
            yield pytest.param(words, id=f"{name}'s health")


@pytest.mark.parametrize("words", list(commands()))
def test_every_container_command_is_understood_by_its_program(words):
    understand(words)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_compose_service_names_only_existing_services_and_volumes(name):
    service = SERVICES[name]
    for wanted, how in service.get("depends_on", {}).items():
        has_end = wanted not in SERVED
        end = "service_completed_successfully" if has_end else "service_healthy"
        assert how["condition"] == end
    for volume in service.get("volumes", ()):
        assert volume.partition(":")[0] in WHOLE["volumes"]
    for word in service.get("command", ()):
        if "://" in word:
            assert make_url(word).host in SERVICES
            assert make_url(word).get_backend_name() in {*DRIVERS, "redis"}
        if word.endswith(":9876") and not word.startswith("0.0.0.0"):
            assert word.partition(":")[0] in SERVICES


@pytest.mark.parametrize("name", SERVED)
def test_every_serving_container_has_a_health_check(name):
    assert SERVICES[name]["healthcheck"]["test"]


def test_published_ports_are_bound_to_localhost():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]

    assert sorted(ports) == ["127.0.0.1:8001:8001", "127.0.0.1:8002:8002"]


def test_every_file_copied_into_the_image_exists():
    copied = re.findall(r"^COPY ([^-].*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sent = (ROOT / ".dockerignore").read_text().splitlines()

    for name in " ".join(copied).split():
        assert (ROOT / name).exists() or name == "dist/*.whl"  # `make wheels` builds it.
        assert f"!{name}" in sent


# The pages


def test_the_code_page_shows_the_programs_as_they_are():
    programs = "".join(file.read_text() for file in EXAMPLE.rglob("*.py"))
    shown = re.findall(r"```py\n(.*?)```", PAGES["bank-transfer-code"], re.DOTALL)

    assert len(shown) == 2
    for block in shown:
        for part in re.split(r" +# \.\.\.\n", block):
            assert part in programs, part


def test_the_code_page_lists_every_file():
    made = {"__init__.py", "__main__.py", "__pycache__", "reconciliation"}
    parts = {path.name for path in EXAMPLE.iterdir()} - made
    names = {f"{path}/" if "." not in path else path for path in parts}

    assert [name for name in names if f"`{name}`" not in PAGES["bank-transfer-code"]] == []


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        (Reason, "bank-transfer"),
        (Drill, "bank-transfer"),
        (State, "bank-transfer-code"),
        (Way, "bank-transfer-code"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_page_names_every_value_of_an_enum(kind, page):
    assert [value for value in kind if value.value not in PAGES[page]] == []


def test_the_code_page_names_the_steps_as_the_log_does():
    for step in Step:
        number, _, text = step.value
        assert f"`step {number}: {text.partition('%s')[0]}" in PAGES["bank-transfer-code"]


@pytest.mark.parametrize("most", [AMOUNT_MAX, DAY_MAX])
def test_the_order_section_names_the_limits(most):
    limit = f"more than {Money(most, 'CNY')}".removesuffix(" CNY")
    assert limit in ORDERS


def test_the_order_section_names_every_field_and_status():
    shown = set(re.findall(r"`(\w+)`", ORDERS))
    answers = re.findall(r"^\| ([\d, ]+)", ORDERS, re.MULTILINE)

    assert set(Asked.__struct_fields__) <= shown
    assert {status for status in STATUS.values() if str(status) not in "".join(answers)} == set()
