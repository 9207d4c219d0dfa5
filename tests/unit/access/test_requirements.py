"""How a refusal and the audit log name the permission that a request lacks."""

import pytest

from txmq_broker.access.accounts import Permission
from txmq_broker.access.requirements import EITHER, Need


@pytest.mark.parametrize(
    ("need", "shown"),
    [
        (Need("admin"), "an administrator"),
        (Need("topic", "Orders"), "SUB of topic Orders"),
        (Need("topic", "Orders", Permission.PUB), "PUB of topic Orders"),
        (Need("group", "billing", EITHER), "PUB or SUB of group billing"),
    ],
)
def test_a_need_is_named_by_its_permission_and_its_topic_or_group(need, shown):
    assert str(need) == shown
