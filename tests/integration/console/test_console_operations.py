"""What operators see and change in a console: brokers, settings, access, audit, delayed messages,
producers, topics and groups. The broker has accounts, so its audit names the person.
"""

import json
import re

import pytest

from tests.integration.console.console_stage import (
    HOSTILE,
    ConsoleProcess,
    Visitor,
    run_apart,
    text_of,
)
from tests.integration.console.console_stage import visitor as opened
from tests.unit.client.fake_cluster import FakeCluster
from txmq import Client, Producer
from txmq.client import Admin, Session
from txmq.client.settings import ClientSettings
from txmq.errors import NoPermission
from txmq.message import Message
from txmq.protocol.command import answer
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork
from txmq.security.signatures import Credentials
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.testing import BrokerThread

pytestmark = pytest.mark.timeout(60)

OPERATOR = Credentials(access_key="operator", secret_key="operator-secret")
ACCOUNTS = """
globalWhiteRemoteAddresses: []
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: the-shop, secretKey: the-shop-secret, topicPerms: [Orders=PUB]}
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    acl = tmp_path_factory.mktemp("acl") / "plain_acl.yml"
    acl.write_text(ACCOUNTS)
    acl.chmod(0o600)
    settings = BrokerSettings(acl=str(acl), store=StoreSettings(flush="async"))
    with BrokerThread(settings) as running:
        yield running


@pytest.fixture
def visitor(console):
    with Visitor(console.url) as client:
        client.log_in("operator", "operator-secret")
        yield client


def ask(broker, question, credentials=OPERATOR):
    async def main():
        async with Session(broker.names, credentials=credentials) as session:
            return await question(Admin(session))

    return run_apart(main())


def acts(broker, **wanted):
    """The newest entries of the audit."""
    return ask(broker, lambda admin: admin.audit("broker-a", **wanted)).entries


# Brokers


def test_a_broker_is_drained_and_undrained_after_a_preview(broker, visitor):
    ask(broker, lambda admin: admin.create_topic("Only-here", queues=1))
    shown = text_of(visitor.get("/cluster"))
    assert "broker-a up cluster DefaultCluster" in shown
    assert "has one copy" in shown

    to = "/cluster/change?broker=broker-a&do=drain"
    preview = text_of(visitor.get(to))
    assert "because no other broker has" in preview
    refused = visitor.post(to, repeated="broker-b")
    assert (refused.status_code, "is not the same" in text_of(refused)) == (400, True)
    assert "broker-a drained" in text_of(visitor.post(to, repeated="broker-a"))
    assert ask(broker, lambda admin: admin.route("Only-here")).writable == ()

    back = visitor.post("/cluster/change?broker=broker-a&do=undrain")
    assert "broker-a takes messages again" in text_of(back)
    assert len(ask(broker, lambda admin: admin.route("Only-here")).writable) == 1
    (entry, *_) = acts(broker, action="WIPE_WRITE_PERM")
    assert (entry.account, entry.fields["brokerName"]) == ("operator", "broker-a")


def test_a_member_of_a_set_without_a_coordinator_cannot_be_promoted(visitor):
    page = visitor.get("/cluster/change?broker=broker-a&do=promote&member=m2")
    assert "This set has no coordinator" in text_of(page)
    assert 'action="/cluster/change' not in page.text
    sent = visitor.post("/cluster/change?broker=broker-a&do=promote&member=m2", reason="r",
                        repeated="m2")  # fmt: skip
    assert (sent.status_code, "this broker has no coordinator" in text_of(sent)) == (409, True)
    assert visitor.get("/cluster/member?broker=broker-a&member=m9").status_code == 404
    assert visitor.get("/cluster?broker=none-such").status_code == 404


# Settings


def test_a_setting_is_found_and_changed_after_a_preview(broker, visitor):
    listed = text_of(visitor.get("/settings?search=retention.keep"))
    assert "fileReservedTime retention.keep 72 72 default How long a message is kept" in listed
    assert "flushDiskType" in text_of(visitor.get("/settings?only=changed"))
    assert "brokerRole" not in text_of(visitor.get("/settings?only=changeable"))

    to = "/settings/change?name=fileReservedTime&value=74"
    assert "changes from 72 to 74" in text_of(visitor.get(to))
    done = text_of(visitor.post(to))
    assert "fileReservedTime is 74 at broker-a" in done
    assert "74 72 changed since the start" in done
    wrong = visitor.post(to.replace("74", "never"))
    assert (wrong.status_code, "cannot be 'never'" in text_of(wrong)) == (409, True)
    fixed = visitor.post("/settings/change?name=brokerRole&value=SLAVE", to)
    assert (fixed.status_code, "only a restart changes brokerRole" in text_of(fixed)) == (400, True)
    assert visitor.get("/settings/change?name=noSuch").status_code == 404
    (entry, *_) = acts(broker, action="UPDATE_BROKER_CONFIG", refused=False)
    assert entry.account == "operator"


# Access


def test_an_account_is_created_changed_and_removed_and_its_secret_never_shown(broker, visitor):
    secret = "planted-secret-of-a-page"
    wanted = {"key": "new-shop", "topics": "Bills=PUB\nOrders=SUB", "other_topics": "DENY"}
    refused = visitor.post("/access", **wanted, secret=secret, secret_again="another-one")
    assert "the two secret keys differ" in text_of(refused)
    assert "Bills=PUB" in refused.text  # It need not be typed again, but the secret must.
    assert secret not in refused.text
    wrong = visitor.post("/access", **wanted | {"topics": "Bills=PUBLISH"}, secret=secret,
                         secret_again=secret)  # fmt: skip
    assert wrong.status_code == 409
    assert secret not in wrong.text
    made = visitor.post("/access", **wanted, secret=secret, secret_again=secret)
    assert "account new-shop is in force" in text_of(made)
    assert secret not in made.text
    assert "exists already" in text_of(
        visitor.post("/access", **wanted, secret=secret, secret_again=secret)
    )

    shop = Credentials(access_key="new-shop", secret_key=secret)
    ask(broker, lambda admin: admin.create_topic("Bills", queues=1))
    ask(broker, lambda admin: admin.send(Message(topic="Bills", body=b"x")), shop)
    page = "/access/account?key=new-shop"
    shown = visitor.get(page)
    assert "Bills=PUB, Orders=SUB; all others DENY" in text_of(shown)
    assert secret not in shown.text
    done = visitor.post(page, topics="Orders=PUB", other_topics="DENY", other_groups="SUB")
    assert "account new-shop has new permissions" in text_of(done)
    with pytest.raises(NoPermission):
        ask(broker, lambda admin: admin.send(Message(topic="Bills", body=b"x")), shop)

    removal = "/access/removal?key=new-shop"
    assert "is not the same" in text_of(visitor.post(removal, repeated="new-shoe"))
    assert "account new-shop is removed" in text_of(visitor.post(removal, repeated="new-shop"))
    assert visitor.get(page).status_code == 404
    last = visitor.post("/access/removal?key=operator", repeated="operator")
    assert (last.status_code, "no administrator would be left" in text_of(last)) == (409, True)
    audit = visitor.get("/audit?action=UPDATE_AND_CREATE_ACL_CONFIG")
    assert "operator" in text_of(audit)
    assert secret not in audit.text
    assert all(secret not in str(entry) for entry in acts(broker, limit=1_000))


def test_a_visitor_who_changes_their_own_secret_stays_logged_in(console, visitor):
    to, page = "/access/account?key=operator", "/cluster"
    changed = {"admin": "yes", "other_topics": "DENY", "other_groups": "DENY"}
    for secret in ("another-secret", OPERATOR.secret_key):
        done = visitor.post(to, **changed, secret=secret, secret_again=secret)
        assert "account operator has new permissions and a new secret" in text_of(done)
        assert visitor.get(page).status_code == 200
    with Visitor(console.url) as other:
        assert other.log_in("operator", "another-secret").status_code != 200


# Audit


def test_the_audit_is_filtered_and_paged(broker, visitor):
    async def make(admin):
        for number in range(60):
            await admin.create_topic(f"Audited-{number}", queues=1)

    ask(broker, make)
    newest = visitor.get("/audit?person=oper&action=UPDATE_AND_CREATE_TOPIC")
    assert "Audited-59" in text_of(newest)
    assert "Audited-5 " not in text_of(newest)
    older = re.search(r'id="page-older" href="([^"]+)"', newest.text)[1].replace("&amp;", "&")
    assert "Audited-5 " in text_of(visitor.get(older))
    nobody = text_of(visitor.get("/audit?person=no-such-person"))
    assert "Nothing was recorded that matches" in nobody
    visitor.post("/topic/change?name=Audited-1&queues=2", repeated="Audited-1")
    refused = visitor.get("/audit?refused=yes&since=1h&until=latest")
    assert "Audited" not in text_of(refused)
    assert visitor.get("/audit?since=yesterday").status_code == 400
    assert visitor.get("/audit?before=nonsense").status_code == 409


# Delayed messages


def test_a_delayed_message_is_listed_and_recalled_under_the_persons_name(broker, visitor):
    async def make(admin):
        await admin.create_topic("Later", queues=1)
        for level in (5, 9):
            await admin.send(Message(topic="Later", body=b"x", keys=("k",), delay_level=level))
        return await admin.send(Message(topic="Later", body=b"x", deliver_after=3_000))

    receipt = ask(broker, make)
    everything = text_of(visitor.get("/delayed"))
    assert "waiting at broker-a 3 level 5, 60 s 1 level 9, 5 min 1" in everything
    own = visitor.get("/delayed?level=own")
    assert receipt.id in text_of(own)
    assert "No message that waits here matches" in text_of(visitor.get("/delayed?level=3"))
    assert receipt.id in text_of(visitor.get("/delayed?from=2026-01-01"))
    assert visitor.get("/delayed?level=soon").status_code == 400

    to = re.search(r'href="(/delayed/recall\?handle=[^"]+)"', own.text)[1]
    assert receipt.id in text_of(visitor.get(to))
    wrong = visitor.post(to, reason="the wrong amount", repeated="Sooner")
    assert "the topic is not the same" in text_of(wrong)
    assert 'value="the wrong amount"' in wrong.text
    done = text_of(visitor.post(to, reason="the wrong amount", repeated="Later"))
    assert f"message {receipt.id} of Later is recalled, by operator" in done
    assert "No message that waits here matches" in text_of(visitor.get("/delayed?level=own"))
    (entry, *_) = acts(broker, action="RECALL_DELAYED")
    assert (entry.account, entry.fields["reason"]) == ("operator", "the wrong amount")
    assert "the wrong amount" in text_of(visitor.get("/audit?person=operator"))


# Producers


def test_connected_producers_are_listed_by_group(broker, visitor):
    assert "No producer of this group is connected" in text_of(visitor.get("/producers?group=pay"))
    settings = ClientSettings(credentials=OPERATOR)

    async def main():
        async with Session(broker.names, credentials=OPERATOR) as session:
            await Admin(session).create_topic("Paid", queues=1)
        async with Client(broker.names, settings) as client, Producer("pay", client) as producer:
            await producer.send(Message(topic="Paid", body=b"x"))
            return text_of(visitor.get("/producers")), text_of(visitor.get("/producers?group=pay"))

    listed, of_group = run_apart(main())
    assert "pay 1 client" in listed
    assert "127.0.0.1:" in of_group


# Topics and groups


def test_a_topic_grows_shrinks_in_two_steps_and_is_deleted(broker, visitor):
    ask(broker, lambda admin: admin.create_topic("Sized", queues=2))
    grow = "/topic/change?name=Sized&queues=4"
    assert "2 queues, rw → 4 queues, rw" in text_of(visitor.get(grow))
    assert "is not the same" in text_of(visitor.post(grow, repeated="Other"))
    assert "topic Sized has 4 queues, rw" in text_of(visitor.post(grow, repeated="Sized"))

    shrink = "/topic/change?name=Sized&queues=1&perm=r"
    preview = text_of(visitor.get(shrink))
    assert "First step: new messages go to the first 1 queue only" in preview
    assert "Sends to the topic fail" in preview
    done = visitor.post(shrink, repeated="Sized")
    assert "topic Sized has 1 queue to write, 4 to read, r" in text_of(done)
    assert "Second step" in text_of(visitor.get(shrink))
    assert "topic Sized has 1 queue, r" in text_of(visitor.post(shrink, repeated="Sized"))
    again = text_of(visitor.get(shrink))
    assert "has these settings already" in again
    for wrong in ("queues=0", "queues=99999999", "perm=x"):
        assert visitor.get(f"/topic/change?name=Sized&{wrong}").status_code == 400

    gone = "/topic/deletion?name=Sized"
    assert "Nothing brings them back" in text_of(visitor.get(gone))
    assert "is not the same" in text_of(visitor.post(gone, repeated="sized"))
    assert "topic Sized is deleted" in text_of(visitor.post(gone, repeated="Sized"))
    assert visitor.get(gone).status_code == 404
    (entry, *_) = acts(broker, action="DELETE_TOPIC_IN_BROKER")
    assert (entry.account, entry.fields["topic"]) == ("operator", "Sized")


def test_a_topic_with_messages_keeps_its_queues_and_says_why(broker, visitor):
    async def make(admin):
        route = await admin.create_topic("Full", queues=2)
        for queue in route.writable:
            await admin.send(Message(topic="Full", body=b"x"), queue)

    ask(broker, make)
    to = "/topic/change?name=Full&queues=1"
    visitor.post(to, repeated="Full")
    preview = visitor.get(to)
    assert "This cannot be done now" in text_of(preview)
    assert "No group has consumed them" in text_of(preview)
    assert "txmq topic update" not in preview.text


def test_a_group_is_paused_and_deleted(broker, visitor):
    ask(broker, lambda admin: admin.create_group("dunning"))
    to = "/group/change?name=dunning&enabled=no&retries=3"
    assert "may consume yes → no retries 16 → 3" in text_of(visitor.get(to))
    assert "group dunning has its new settings" in text_of(visitor.post(to, repeated="dunning"))
    config = ask(broker, lambda admin: admin.groups())["dunning"]
    assert (config.consume_enable, config.retry_max_times) == (False, 3)
    assert "has these settings already" in text_of(visitor.get(to))

    gone = "/group/deletion?name=dunning"
    assert "is not the same" in text_of(visitor.post(gone, repeated="Dunning"))
    assert "group dunning is deleted" in text_of(visitor.post(gone, repeated="dunning"))
    assert visitor.get(gone).status_code == 404
    (entry, *_) = acts(broker, action="DELETE_SUBSCRIPTIONGROUP")
    assert entry.account == "operator"


# Hostile texts, and brokers of another make


def test_hostile_keys_and_reasons_are_escaped(broker, visitor):
    async def make(admin):
        await admin.create_topic("Bad", queues=1)
        named = {"keys": ("<script>document.title='owned'</script>",), "delay_level": 18}
        await admin.send(Message(topic="Bad", body=b"x", **named))

    ask(broker, make)
    to = re.search(
        r'href="(/delayed/recall\?handle=[^"]+)"', visitor.get("/delayed?level=18").text
    )[1]
    pages = [visitor.get("/delayed?level=18"), visitor.post(to, reason=HOSTILE, repeated="Bad")]
    pages.append(visitor.get("/audit?action=RECALL_DELAYED"))
    pages.append(visitor.post("/settings/change?name=deleteWhen&value=%3Cscript%3E04"))
    pages.append(visitor.post("/access", key=HOSTILE, secret="s" * 9, secret_again="s" * 9))
    for page in (*pages, visitor.get("/audit?refused=yes"), visitor.get("/access")):
        assert page.status_code < 500
        assert "<script>document" not in page.text
        assert "<script>04" not in page.text
        assert "\x1b" not in page.text
        assert "\u202e" not in page.text
    assert "&lt;script&gt;" in pages[2].text


def test_pages_say_what_brokers_of_apache_rocketmq_do_not_support():
    async def main():
        async with (
            FakeCluster(SystemNetwork(), SystemClock(), brokers=2) as cluster,
            opened(cluster.names) as client,
        ):
            for path, words in (
                ("/cluster", "does not report the copies of its log"),
                ("/delayed", "cannot list delayed messages"),
                ("/audit", "keep no audit"),
                ("/producers", "Type the name of a producer group"),
                ("/access", "has no accounts that it can list"),
            ):
                page = await client.get(path)
                assert (page.status_code, words in text_of(page)) == (200, True), text_of(page)

    run_apart(main())


def test_two_brokers_are_shown_together_and_a_restarted_one_returns():
    flush = StoreSettings(flush="async")
    with (
        BrokerThread(BrokerSettings(store=flush)) as first,
        ConsoleProcess(first.names) as console,
        Visitor(console.url) as visitor,
    ):
        other = BrokerSettings(name="broker-b", names=first.names, store=flush)
        with BrokerThread(other):
            shown = text_of(visitor.get("/cluster"))
            assert ("broker-a up" in shown, "broker-b up" in shown) == (True, True)
            to = "/settings/change?broker=broker-b&name=deleteWhen&value=05"
            assert "Also change it at broker-a" in text_of(visitor.get(to))
            done = text_of(visitor.post(to, everywhere="yes"))
            assert "deleteWhen is 05 at broker-a, broker-b" in done
            merged = text_of(visitor.get("/audit?action=UPDATE_BROKER_CONFIG"))
            named = re.findall(r"deleteWhen=05 .*? (broker-[ab]) ", merged)
            assert sorted(named) == ["broker-a", "broker-b"]

        gone = text_of(visitor.get("/cluster?broker=broker-b"))
        assert "the name server knows no broker 'broker-b'" in gone
        for page in ("settings", "delayed", "audit", "access"):
            away = visitor.get(f"/{page}?broker=broker-b")
            assert (away.status_code, "choose broker-a" in text_of(away)) == (400, True), page
        with BrokerThread(other):
            assert "broker-b up" in text_of(visitor.get("/cluster"))
            assert visitor.get("/settings?broker=broker-b").status_code == 200


def test_an_unreachable_broker_does_not_hide_the_others():
    async def main():
        async with (
            FakeCluster(SystemNetwork(), SystemClock(), brokers=2) as cluster,
            opened(cluster.names) as client,
        ):
            names = [broker.name for broker in cluster.brokers]
            lost = {"cluster": "c1", "brokerName": names[1], "brokerAddrs": {0: "127.0.0.1:1"}}
            known = {"cluster": "c1", "brokerName": names[0]}
            known["brokerAddrs"] = {0: cluster.brokers[0].address}
            view = {
                "brokerAddrTable": {names[0]: known, names[1]: lost},
                "clusterAddrTable": {"c1": names},
            }
            body = json.dumps(view).encode()
            cluster.replies[106] = lambda request: answer(request, body=body)
            shown = text_of(await client.get("/cluster"))
            assert f"{names[0]} up" in shown
            assert f"{names[1]} does not answer" in shown
            merged = text_of(await client.get("/audit"))
            assert f"Without {names[1]}" in merged
            preview = await client.get(f"/cluster/change?do=drain&broker={names[1]}")
            assert "Which topics the broker has is not known" in text_of(preview)
            for page in ("settings", "delayed", "audit", "access"):
                away = await client.get(f"/{page}?broker={names[1]}")
                assert (away.status_code, "tries again" in text_of(away)) == (503, True), page
            del cluster.replies[106]
            assert f"{names[1]} up" in text_of(await client.get("/cluster"))

    run_apart(main())
