"""Who is ready, who is not, and what the pages say about it."""

import asyncio
import json
from http import HTTPStatus

import pytest
from msgspec.structs import replace

from tests.running import run_by
from tests.unit.handlers.handler_stage import SETTINGS, in_world
from tests.unit.monitoring.scraping import of_broker
from tests.unit.replication.set_stage import in_set
from txmq_broker.config import BrokerSettings, ReplicationSettings, ServerTlsSettings
from txmq_broker.monitoring import samples as sampling
from txmq_broker.monitoring.pages import MonitoringPages
from txmq_broker.monitoring.subject import LoneProcess

READY = "/health/ready"


async def readiness(broker):
    page = await of_broker(broker).pages()[READY]()
    return page.status, page.text


@run_by(in_world)
async def test_a_broker_that_serves_is_ready_and_alive(stage, /):
    assert await readiness(stage.broker) == (HTTPStatus.OK, "ready\n")
    assert (await of_broker(stage.broker).pages()["/health/live"]()).text == "alive\n"


@run_by(in_world)
async def test_each_reason_to_refuse_sends_is_a_reason_not_to_be_ready(stage, /):
    admission = stage.broker.admission
    for cause in ("disk", "copies"):
        admission.set_cause(cause, f"the cause is {cause}")
        assert await readiness(stage.broker) == (
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"not ready: the cause is {cause}\n",
        )
        admission.clear_cause(cause)
    assert (await readiness(stage.broker))[0] == HTTPStatus.OK


def test_a_stopped_broker_is_not_ready_and_shows_no_figures():
    kept = []

    async def main(stage):
        kept.append(stage.broker)
        pages = of_broker(stage.broker)
        stage.broker.admission.set_cause("stopping", "the broker is stopping")
        assert (await readiness(stage.broker))[1] == "not ready: the broker is stopping\n"
        assert "txmq_broker_log_bytes" in (await pages.metrics()).text

    in_world(main)
    (broker,) = kept
    status, text = asyncio.run(readiness(broker))
    assert (status, text) == (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "not ready: the broker has stopped\n",
    )
    page = asyncio.run(of_broker(broker).metrics()).text
    assert "txmq_broker_ready 0.0" in page
    assert "txmq_broker_log_bytes" not in page


def test_a_scrape_while_the_broker_closes_its_files_omits_their_figures(monkeypatch):
    kept = []

    def closing():
        """Where a page pauses, the broker stops, and its files are closed."""
        yield sampling.Sample("log_bytes", 1)
        kept[0]._listener = None
        raise OSError("the file is closed")

    async def main(stage):
        kept.append(stage.broker)
        pages, listener = of_broker(stage.broker), stage.broker._listener
        monkeypatch.setattr(sampling, "_log_and_disk", lambda _: closing())
        text = (await pages.metrics()).text
        stage.broker._listener = listener
        assert "txmq_broker_ready 0.0" in text
        assert "txmq_broker_log_bytes" not in text

        def broken(_):
            raise OSError("the disk is broken")

        monkeypatch.setattr(sampling, "_log_and_disk", broken)
        with pytest.raises(OSError, match="broken"):
            await of_broker(stage.broker).metrics()

    in_world(main)


@run_by(in_world)
async def test_a_broker_that_no_name_server_knows_is_not_ready(stage, /):
    stage.broker._registrar.is_registered = lambda: False

    status, text = await readiness(stage.broker)
    assert status == HTTPStatus.SERVICE_UNAVAILABLE
    assert "no name server knows this broker" in text


@run_by(in_set)
async def test_a_leader_that_lacks_copies_is_not_ready_until_one_has_joined(stage, /):
    await stage.first.lead()
    broker = stage.first.broker
    copies = broker._copies.answers
    copies._settings = replace(copies._settings, min_in_sync=2)
    copies._adjust()
    status, text = await readiness(broker)
    assert status == HTTPStatus.SERVICE_UNAVAILABLE
    assert "1 of 2 copies are in sync" in text

    client = await stage.first.client()
    copies._settings = replace(copies._settings, min_in_sync=1)
    copies._adjust()
    await client.topic("T")
    await client.send("T")
    copies._settings = replace(copies._settings, min_in_sync=2)
    stage.second.follow()
    await stage.caught_up(stage.second)
    assert (await readiness(broker))[0] == HTTPStatus.OK


@run_by(in_set)
async def test_a_follower_is_not_ready_and_names_the_leader(stage, /):
    await stage.first.lead()
    client = await stage.first.client()
    await client.topic("T")
    await client.send("T")
    stage.second.follow()
    await stage.caught_up(stage.second)
    follower = stage.second.follower
    pages = MonitoringPages(follower_settings(stage), LoneProcess(follower=follower))

    page = await pages.pages()[READY]()
    assert page.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert f"the process follows {stage.first.address}" in page.text
    facts = json.loads((await pages.info()).text)
    assert (facts["role"], facts["leader"]) == ("follower", stage.first.address)


def follower_settings(stage):
    return replace(stage.second.settings("leader"), replication=ReplicationSettings(member="m2"))


def test_a_process_that_neither_leads_nor_follows_is_not_ready():
    pages = MonitoringPages(BrokerSettings(), LoneProcess())

    page = asyncio.run(pages.pages()[READY]())
    assert page.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert page.text == "not ready: the process neither leads nor follows yet\n"
    assert "txmq_broker_ready 0.0\n" in asyncio.run(pages.metrics()).text


def test_the_info_page_shows_the_broker_and_its_current_settings():
    settings = replace(SETTINGS, name="b1", tls=ServerTlsSettings(key="key.pem"))

    async def main(stage):
        page = await of_broker(stage.broker).info()
        facts = json.loads(page.text)

        assert page.content_type == "application/json"
        assert (facts["name"], facts["role"], facts["epoch"]) == ("b1", "leader", 0)
        assert facts["address"] == stage.broker.address
        assert int(facts["log_id"], 16) == stage.broker.store.log.segments.log_id
        assert facts["settings"]["transaction"]["check_max"] == 15
        assert facts["settings"]["tls"]["key"] == "key.pem", "a path is no secret"

    in_world(main, settings)
