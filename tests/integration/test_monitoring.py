"""``txmq serve --http``: real processes, real sockets, and what a scrape costs."""

import asyncio
import json
import re
import socket
import time
import urllib.error
import urllib.request

import pytest
from msgspec.structs import replace

from tests.integration.cli.test_cli_serve import started, stopped
from tests.servers.broker_set import BrokerSet
from tests.servers.serving import ask
from tests.soak import IS_SOAK
from tests.unit.monitoring.scraping import Scrape, of_broker, scraped
from txmq import Message, Producer, errors
from txmq.protocol.bodies import TopicConfig
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.monitoring.metric_table import METRICS, PREFIX, Origin
from txmq_broker.monitoring.server import monitored
from txmq_broker.monitoring.subject import LoneProcess
from txmq_broker.testing import embedded

SERVE = ("serve", "--data", "d", "--listen", "127.0.0.1:0", "--names-listen", "127.0.0.1:0")
QUEUES = 10_000
SLACK = 1 if IS_SOAK else 3
"""Other tests run beside this one, on a machine of any speed; a soak is alone on a quiet one."""
SCRAPE_S = 0.1 * SLACK
HOLD_S = 0.02 * SLACK


def read(address, path):
    """The status and the text of a page."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def port_from(process):
    """The address of the pages, which the log names."""
    for line in process.stderr:
        if match := re.search(r"metrics and health at http://(\S+)", line):
            return match[1]
    raise AssertionError("the log names no address")


def test_a_broker_serves_its_pages_until_it_stops(tmp_path):
    process = started(*SERVE, "--http", "127.0.0.1:0", cwd=tmp_path)
    address = port_from(process)
    broker = process.stdout.readline().split()[2]
    fields = dict(zip("abcdefghij", ["p", "T", "TBW102", 4, 0, 0, 1, 0, "", 0], strict=True))
    assert ask(broker, 310, content=b"hello", **fields)[0] == 0

    assert read(address, "/health/live") == (200, "alive\n")
    assert read(address, "/health/ready") == (200, "ready\n")
    scrape = Scrape(read(address, "/metrics")[1])
    assert scrape("topic_messages_received_total", topic="T") == 1
    assert scrape("topic_received_bytes_total", topic="T") == 5
    facts = json.loads(read(address, "/info")[1])
    assert (facts["address"], facts["settings"]["http_listen"]) == (broker, "127.0.0.1:0")
    status, text = read(address, "/")
    assert (status, text.splitlines()[0]) == (404, "GET /metrics")

    assert stopped(process)[0] == 0
    with pytest.raises(urllib.error.URLError):
        read(address, "/health/live")


def test_a_broker_without_the_http_option_serves_no_pages(tmp_path):
    process = started(*SERVE, cwd=tmp_path)
    process.stdout.readline()
    code, _, err = stopped(process)

    assert code == 0
    assert "metrics and health" not in err


def test_a_taken_http_address_fails_the_start_and_names_the_option(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = started(*SERVE, "--http", address, cwd=tmp_path)
        out, err = process.communicate(timeout=20)

    assert (process.returncode, out) == (1, "")
    assert err.splitlines()[-1] == (
        f"txmq: cannot start: {address} is taken; choose another --http"
    )


@pytest.mark.parametrize("address", ["9877", "127.0.0.1:x", "127.0.0.1:70000"])
def test_a_wrong_http_address_is_a_configuration_error(address):
    with pytest.raises(errors.ConfigError, match="http_listen cannot be"):
        BrokerSettings(http_listen=address)


def test_pages_that_other_machines_can_reach_log_a_warning(caplog):
    async def run():
        async with monitored(BrokerSettings(http_listen="0.0.0.0:0"), LoneProcess()):
            pass

    asyncio.run(run())
    assert "other machines may read metrics, health and settings at 0.0.0.0:" in caplog.text


def test_a_follower_serves_its_pages_but_is_not_ready(tmp_path):
    process = started(
        *("serve", "--data", "f", "--names", "127.0.0.1:1", "--http", "127.0.0.1:0"),
        *("--set", "replication.role=follower", "--set", "replication.member=m2"),
        cwd=tmp_path,
    )
    address = port_from(process)
    process.stdout.readline()

    status, text = read(address, "/health/ready")
    assert (status, text.split(";")[0]) == (503, "not ready: the process follows no leader yet")
    scrape = Scrape(read(address, "/metrics")[1])
    assert scrape.labelled("role", "role")["follower"] == 1
    assert json.loads(read(address, "/info")[1])["member"] == "m2"
    assert stopped(process)[0] == 0


def test_requests_without_permission_count_as_refusals(tmp_path):
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts:\n- accessKey: teller-1\n  secretKey: a-long-secret\n")
    accounts.chmod(0o600)
    settings = BrokerSettings(acl=str(accounts), store=StoreSettings(flush="async"))

    async def run():
        async with embedded(settings) as broker:
            producer = Producer("p", names=broker.names)
            with pytest.raises(errors.TxmqError):
                async with producer:
                    await producer.send(Message(topic="T", body=b"x"))
            return await scraped(broker)

    assert asyncio.run(run())("refusals_total", reason="access") > 0


def test_scraping_ten_thousand_queues_is_quick_and_does_not_block_the_loop():
    """The best of a few times counts, because other programs on the machine disturb single runs."""

    async def run():
        async with embedded(BrokerSettings(store=StoreSettings(flush="async"))) as broker:
            for number in range(QUEUES // 8):
                config = TopicConfig(f"topic-{number:05}", 8, 8)
                broker.topics.put(config, 0)
                for queue in range(8):
                    broker.offsets.put("group", config.topic_name, queue, 0)
            pages = of_broker(broker)
            await pages.metrics()
            return [await timed(pages) for _ in range(10)]

    async def timed(pages):
        building = asyncio.ensure_future(pages.metrics())
        began = last = time.perf_counter()
        longest = 0.0
        while not building.done():
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        page = Scrape(building.result().text)
        assert len(page.labelled("group_lag_messages", "topic")) == 1_000
        assert page("series_left_out", of="groups") == QUEUES // 8 - 1_000
        return last - began, longest

    times, holds = zip(*asyncio.run(run()), strict=True)
    assert min(times) < SCRAPE_S
    assert min(holds) < HOLD_S


def test_a_running_scrape_ends_when_the_broker_stops():
    async def run():
        process = LoneProcess()
        settings = replace(BrokerSettings(), http_listen="127.0.0.1:0")
        async with monitored(settings, process):
            async with embedded() as process.broker:
                waiting = asyncio.create_task(of_broker(process.broker).metrics())
                await asyncio.sleep(0)
            return await asyncio.wait_for(waiting, 10)

    assert "txmq_broker_ready" in asyncio.run(run()).text


def test_set_members_report_their_role_and_count_leaderships(tmp_path, etcd):
    settings = ("replication.lease=2", "http_listen=127.0.0.1:0")
    with BrokerSet(tmp_path, etcd.port, settings, count=2) as members:

        def pages_of(member):
            addresses = re.findall(r"metrics and health at http://([\d.:]+)", member.tail(100_000))
            return addresses[-1]

        def scrape_of(member):
            return Scrape(read(pages_of(member), "/metrics")[1])

        leader = members.wait_in_sync(1)
        (follower,) = (one for one in members.members.values() if one is not leader)
        verified = PREFIX + "last_verification_timestamp_seconds"
        members.until(lambda: verified in scrape_of(follower).families, "its log is not verified")
        first, copy = scrape_of(leader), scrape_of(follower)
        assert (first("ready"), copy("ready")) == (1, 0)
        assert first("leaderships_total") == 1
        assert copy("leaderships_total") == 0
        assert 0 <= first("lease_age_seconds") < 2
        assert first("copies_in_sync") == 2
        of_followers = {
            PREFIX + name.removesuffix("_total")
            for name, row in METRICS.items()
            if row.origin in {Origin.ALL, Origin.FOLLOWER, Origin.BOTH}
            and not name.startswith("group_")
        }
        assert copy.families.keys() >= of_followers
        assert copy("serves_reads") in {0, 1}
        assert first("epoch") == copy("epoch") > 0
        assert read(pages_of(leader), "/health/ready") == (200, "ready\n")
        assert leader.address in read(pages_of(follower), "/health/ready")[1]
        facts = json.loads(read(pages_of(leader), "/info")[1])
        assert (facts["role"], facts["epoch"]) == ("leader", first("epoch"))

        leader.kill()
        assert members.wait_for_leader(other_than=leader) is follower
        members.until(lambda: read(pages_of(follower), "/health/ready")[0] == 200, "never ready")
        second = scrape_of(follower)
        assert (second("leaderships_total"), second("copies_in_sync")) == (1, 1)
        assert second("epoch") > first("epoch")
