"""What docker-compose.yml and the page on the bank transfer tell to run is understood, and the page
shows the code that there is.

No Docker runs here, and nothing here reads YAML; the file keeps to a part of it that is read in a
few lines: mappings by their indentation, and what is JSON behind a colon.
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
from tests.docs.commands import understand
from txmq.transaction.story import Step

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
PAGE = (ROOT / "docs/howto/bank-transfer.md").read_text()
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
        assert found, f"no line that is read here: {line}"
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
SERVED = sorted(set(SERVICES) - {"icbc-accounts", "ccb-accounts", "listener"})


def commands():
    for name, service in SERVICES.items():
        if "command" in service:
            yield pytest.param(service["command"], id=name)
        if "healthcheck" in service:
            how, *words = service["healthcheck"]["test"]
            assert how == "CMD"
            yield pytest.param(words, id=f"{name}'s health")


@pytest.mark.parametrize("words", list(commands()))
def test_every_command_of_the_containers_is_understood(words):
    understand(words)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_what_a_service_names_is_there(name):
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
def test_who_serves_says_whether_it_is_well(name):
    assert SERVICES[name]["healthcheck"]["test"]


def test_nobody_outside_of_this_machine_is_let_in():
    ports = [port for each in SERVICES.values() for port in each.get("ports", ())]

    assert sorted(ports) == ["127.0.0.1:8001:8001", "127.0.0.1:8002:8002"]


def test_what_the_image_is_made_of_is_there():
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sent = (ROOT / ".dockerignore").read_text().splitlines()

    for name in " ".join(copied).split():
        assert (ROOT / name).exists()
        assert f"!{name}" in sent


# The page


@pytest.mark.parametrize("kind", [Reason, State, Drill, Way], ids=lambda kind: kind.__name__)
def test_the_page_explains_every(kind):
    assert [each for each in kind if each.value not in PAGE] == []


def test_the_page_names_the_nine_steps_as_the_log_does():
    for step in Step:
        number, _, text = step.value
        assert f"`step {number}: {text.partition('%s')[0]}" in PAGE


@pytest.mark.parametrize("most", [AMOUNT_MAX, DAY_MAX])
def test_the_page_has_the_limits(most):
    assert f"more than {Money(most, 'CNY')}".removesuffix(" CNY") in PAGE
