"""``txmq group reset`` shows where it moves a group, and asks; unknown groups are errors."""

import pytest

from txmq.protocol.bodies import ClientConnection, ConsumerConnections, GroupConfig

RESET = ("group", "reset", "billing", "Orders", "--to", "earliest")


@pytest.fixture
def orders(asking, cluster):
    cluster.add_topic("Orders", queues=1)
    for broker in ("broker-a", "broker-b"):
        for _ in range(3):
            assert not asking("message", "send", "Orders", "x", "--queue", f"{broker}:0").exit_code
    cluster.brokers[0].groups["billing"] = GroupConfig("billing")
    cluster.brokers[0].offsets["billing", "Orders", 0] = 2
    return cluster


def test_a_reset_shows_the_old_and_new_offsets_and_asks(asking, orders, terminal):
    kept = asking(*RESET, input="n\n")

    moves = [line.split() for line in kept.stdout.splitlines() if line.startswith(" broker-")]
    assert kept.exit_code == 1
    assert [line[:4] for line in moves] == [
        ["broker-a", "0", "2", "0"], ["broker-b", "0", "never", "consumed"],
    ]  # fmt: skip
    assert moves[0][4] == "-2"
    question = "move group billing in topic Orders: 2 messages delivered again?"
    assert question in kept.stderr
    assert orders.brokers[0].offsets["billing", "Orders", 0] == 2

    moved = asking(*RESET, input="y\n")

    assert moved.exit_code == 0
    assert moved.stdout.endswith("group billing is moved in 2 queues of Orders\n")
    assert orders.brokers[0].offsets["billing", "Orders", 0] == 0


def test_a_reset_asks_with_the_number_of_skipped_messages(asking, orders, terminal):
    asked = asking(*RESET[:-1], "latest", input="n\n")

    assert "move group billing in topic Orders: 1 message skipped?" in asked.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("Orders --offset 3 --queue 0", "name the topic, --queue and --reason"),
        ("Orders --offset 3 --reason x", "name the topic, --queue and --reason"),
        ("--all --offset 3 --queue 0 --reason x", "name the topic, --queue and"),
        ("Orders --reason x", "--offset names the damaged message to skip"),
        (
            "Orders --offset 3 --through 2 --queue 0 --reason x",
            "--through 2 lies before --offset 3",
        ),
        (
            "Orders --offset 1 --queue 0 --reason x",
            "name one with --broker: broker-a, broker-b",
        ),
    ],
)
def test_skipping_a_damaged_message_needs_its_place_and_a_reason(asking, orders, words, why):
    refused = asking("group", "skip", "billing", *words.split(), "--yes")

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert why in refused.stderr
    assert orders.brokers[0].offsets["billing", "Orders", 0] == 2


def test_without_a_terminal_a_reset_needs_yes(asking, orders):
    refused = asking(*RESET, "--json")

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "standard input is not a terminal; add --yes" in refused.stderr
    assert orders.brokers[0].offsets["billing", "Orders", 0] == 2
    assert asking(*RESET, "--yes").exit_code == 0
    assert orders.brokers[0].offsets["billing", "Orders", 0] == 0


UNKNOWN_GROUP = (
    "group 'biling' does not exist; the nearest name is 'billing'; "
    "list all groups with: txmq group list\n"
)
UNKNOWN_TOPIC = (
    "topic 'Ordres' does not exist; the nearest name is 'Orders'; "
    "create it with: txmq topic create Ordres\n"
)


@pytest.mark.parametrize(
    "words",
    [
        "group reset biling Orders --to earliest --yes",
        "group delete biling --yes",
        "group progress biling",
        "group clients biling",
        "dlq list --group biling",
        "dlq show biling",
        "dlq show biling A1",
        "dlq resend biling A1 --reason r",
        "dlq resend biling --all --reason r --yes",
        "topic status Ordres",
        "topic route Ordres",
        "topic delete Ordres --yes",
        "topic permit Ordres r",
        "group reset billing Ordres --to earliest --yes",
        "group progress billing --topic Ordres",
        "message pull Ordres",
        "message send Ordres x",
        "message query Ordres k",
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_name(asking, orders, words):
    result = asking(*words.split())

    unknown = UNKNOWN_GROUP if "biling" in words else UNKNOWN_TOPIC
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"txmq: {unknown}")
    assert ("biling", "Orders", 0) not in orders.brokers[0].offsets


def test_a_relay_does_not_start_with_a_misspelt_dead_letter_topic(asking, orders, tmp_path):
    where = ("--database", f"sqlite:///{tmp_path}/bank.db")
    poison = ("--on-poison", "dead_letter", "--dead-letter-topic", "Ordres")

    result = asking("relay", *where, *poison)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"txmq: the dead-letter {UNKNOWN_TOPIC}"


def by_offsets(cluster):
    cluster.brokers[1].offsets["late", "Orders", 0] = 1


def by_clients(cluster):
    client = ClientConnection("10.0.0.1:5", "c1", "GO", 317)
    cluster.brokers[1].consumers["late"] = ConsumerConnections([client], "X", "P", "C", {})


def by_retries(cluster):
    cluster.add_topic("%RETRY%late")


@pytest.mark.parametrize("known", [by_offsets, by_clients, by_retries])
def test_a_group_with_only_offsets_clients_or_retries_counts_as_known(asking, orders, known):
    known(orders)

    assert asking("group", "delete", "late", "--yes").exit_code == 0


def test_an_unknown_producer_group_is_an_error(txmq_broker, txmq):
    result = txmq("tx", "list", "--group", "icbc", "--names", txmq_broker.names)

    assert (result.exit_code, result.stdout) == (1, "")
    assert "producer group 'icbc' has no open transactions and no connected" in result.stderr


def test_an_unreachable_name_server_error_says_how_to_start_a_broker(txmq):
    result = txmq("topic", "list", "--names", "127.0.0.1:1")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "txmq: cannot connect to 127.0.0.1:1: no server listens there; "
        "start a broker with: txmq serve\n"
    )
