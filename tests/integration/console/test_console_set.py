"""The members of a broker set in a console: a real set with its etcd, and people's changes."""

import pytest

from tests.integration.console.console_look import check_page, examined, keep_picture
from tests.integration.console.console_stage import ConsoleProcess, Visitor, text_of
from tests.servers.broker_set import BrokerSet

REASON = "its disk is old"

pytestmark = pytest.mark.timeout(120)


def test_a_set_is_handed_over_and_a_member_is_removed_and_rejoins(tmp_path, etcd, browser):
    settings = ("replication.lease=2", "replication.min_in_sync=2", "replication.reads=true")
    with BrokerSet(tmp_path, etcd.port, settings, count=2) as duo:
        leader = duo.wait_in_sync(1)
        leader.create_topic("T", 4)
        duo.wait_settled()
        (follower,) = (member for member in duo.members.values() if member is not leader)
        with (
            ConsoleProcess(duo.names.names) as console,
            Visitor(console.url) as visitor,
            examined(browser) as shown,
        ):
            listed = text_of(visitor.get("/cluster"))
            assert f"leader {leader.name} epoch 1 copies in sync 2 of 2, at least 2" in listed
            assert f"{follower.name} follower 127.0.0.1:" in listed
            assert f"{follower.address} 1 txmq " in listed.partition("serves reads at")[2]
            page = f"/cluster/member?broker={duo.name}&member={follower.name}"
            assert "role follower" in text_of(visitor.get(page))
            for path in ("/cluster", page):
                check_page(shown, console.url + path)

            shown.set_viewport_size({"width": 1_100, "height": 790})
            shown.goto(f"{console.url}/cluster")
            keep_picture(shown, "console-cluster")

            def change(act, member, **fields):
                to = f"/cluster/change?broker={duo.name}&do={act}&member={member.name}"
                return visitor.post(to, reason=REASON, repeated=member.name, **fields)

            refused = change("promote", leader)
            assert (refused.status_code, "leads already" in text_of(refused)) == (409, True)
            refused = change("remove", follower)
            assert (refused.status_code, "sends would be refused" in text_of(refused)) == (
                409,
                True,
            )
            assert REASON in refused.text  # It need not be typed again.

            assert "hands over to" in text_of(change("promote", follower))
            assert duo.wait_for_leader(other_than=leader) is follower
            duo.wait_in_sync(1)
            duo.until(
                lambda: f"leader {follower.name} epoch 2" in text_of(visitor.get("/cluster")),
                "the page does not show the new leader",
            )

            assert f"{leader.name} is removed" in text_of(change("remove", leader, allow="yes"))
            gone = text_of(visitor.get(page.replace(follower.name, leader.name)))
            assert "role removed" in gone
            assert REASON in gone
            assert f"{leader.name} may follow" in text_of(change("rejoin", leader))
            duo.wait_in_sync(1)
            audit = text_of(visitor.get("/audit?action=CHANGE_SET"))
            assert "change a broker set" in audit
            assert REASON in audit
