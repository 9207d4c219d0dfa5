"""The ids under which followers register."""

from txmq_broker.replication.log_shipper import ReplicaIds


def test_every_member_keeps_an_id_of_its_own():
    ids = ReplicaIds()

    assert [ids.id_of(name, 0) for name in ("m1", "m2", "m1")] == [1, 2, 1]
    # What it had under the leader before, unless another member has it by now.
    assert [ids.id_of("m3", 7), ids.id_of("m4", 7), ids.id_of("m2", 5)] == [7, 3, 2]
