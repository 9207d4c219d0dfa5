import asyncio

import pytest

from tests.unit.client.client_stage import STEADY, staged
from tests.unit.client.fake_cluster import FakeCluster
from txmq.client import Admin, Session
from txmq.client.routes import FRESH_S
from txmq.client.session import KNOWN_ROUTE_WAIT_S
from txmq.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    RequestTimeout,
    TopicNotFound,
    TransportError,
    UsageError,
)
from txmq.message import Message, Queue
from txmq.protocol import bodies, command
from txmq.protocol.codes import RequestCode
from txmq.testing import SeededEntropy, World

ROUTE = "GET_ROUTEINFO_BY_TOPIC"


@pytest.mark.parametrize("names", ["", " ; ", "nowhere", "host:port", "a:1;b"])
def test_name_servers_must_be_addresses(names):
    with pytest.raises(ConfigError):
        Session(names)


def test_addresses_may_be_spaced():
    assert Session(" a:1 ; b:2;").names == ("a:1", "b:2")


def test_making_a_session_opens_nothing():
    with World(1) as world:

        async def scenario():
            session = Session("10.9.9.9:1", world.machine("client").network)
            with pytest.raises(UsageError, match="not open"):
                await session.route("T")

        world.run(scenario())


@staged()
async def test_a_session_is_not_opened_twice(stage):
    with pytest.raises(UsageError, match="open already"):
        async with stage.session:
            pass


@staged()
async def test_a_closed_session_says_so(stage):
    async with Session(stage.cluster.names, stage.world.machine("client").network) as session:
        await session.ask_names(RequestCode.GET_BROKER_CLUSTER_INFO)

    with pytest.raises(UsageError, match="not open"):
        await session.ask_names(RequestCode.GET_BROKER_CLUSTER_INFO)


@staged()
async def test_closing_a_session_does_not_cancel_those_who_ask(stage):
    stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: None
    session = Session(stage.cluster.names, stage.world.machine("client").network)
    async with session:
        asking = asyncio.create_task(session.route("T"))
        await asyncio.sleep(1)

    with pytest.raises(UsageError, match="closed during the call"):
        await asking


@staged()
async def test_somebody_who_gives_up_is_cancelled_as_ever(stage):
    stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: None
    asking = asyncio.create_task(stage.session.route("T"))
    await asyncio.sleep(1)

    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking


# Routes


@staged(brokers=2)
async def test_a_route_is_asked_for_once_and_then_known(stage):
    queues = stage.cluster.add_topic("T")

    first, second = await stage.session.route("T"), await stage.session.route("T")

    assert first is second
    assert list(first.writable) == queues
    assert len(stage.cluster.codes(ROUTE)) == 1


@staged()
async def test_many_who_ask_at_once_share_one_question(stage):
    stage.cluster.add_topic("T")

    found = await asyncio.gather(*(stage.session.route("T") for _ in range(50)))

    assert len({id(each) for each in found}) == 1
    assert len(stage.cluster.codes(ROUTE)) == 1


@staged()
async def test_one_who_gives_up_does_not_take_the_answer_from_the_others(stage):
    stage.cluster.add_topic("T")
    hasty = asyncio.create_task(stage.session.route("T"))
    patient = asyncio.create_task(stage.session.route("T"))
    await asyncio.sleep(0)

    hasty.cancel()

    assert (await patient).topic == "T"


@staged()
async def test_an_old_route_is_asked_for_again(stage):
    stage.cluster.add_topic("T", queues=1)
    await stage.session.route("T")
    stage.cluster.add_topic("T", queues=4)

    await asyncio.sleep(FRESH_S + 1)

    assert len((await stage.session.route("T")).writable) == 4


@staged()
async def test_an_unknown_topic_is_not_remembered_as_unknown(stage):
    with pytest.raises(TopicNotFound):
        await stage.session.route("T")

    stage.cluster.add_topic("T")

    assert (await stage.session.route("T")).topic == "T"


@staged()
async def test_a_topic_to_come_is_written_to_where_the_template_is(stage):
    stage.cluster.add_topic("TBW102", queues=8, perm=7)

    route = await stage.session.route_to_write("new")

    assert [each.number for each in route.writable] == [0, 1, 2, 3]
    with pytest.raises(TopicNotFound):
        await stage.session.route("new")


@staged()
async def test_without_a_template_an_unknown_topic_stays_unknown(stage):
    for topic in ("new", "TBW102"):
        with pytest.raises(TopicNotFound):
            await stage.session.route_to_write(topic)


@staged()
async def test_a_queue_at_a_broker_that_joined_since_is_found(stage):
    queue = stage.cluster.add_topic("T")[0]
    await stage.session.route("T")
    stage.cluster.brokers[0].name = "broker-z"

    address = await stage.session.address_of(Queue("T", "broker-z", 0))

    assert address == stage.cluster.brokers[0].address
    with pytest.raises(TopicNotFound, match="nothing at broker 'broker-a'"):
        await stage.session.address_of(queue)


# Name servers


@staged(name_servers=3)
async def test_one_name_server_is_kept_to(stage):
    for _ in range(10):
        await stage.session.ask_names(RequestCode.GET_BROKER_CLUSTER_INFO)

    assert sorted(each.connections for each in stage.cluster.name_listeners) == [0, 0, 1]


def test_where_to_begin_is_chance():
    begun = set()
    for seed in range(20):
        session = Session("a:1;b:2;c:3", entropy=SeededEntropy(seed))
        begun.add(session._names_at)

    assert begun == {0, 1, 2}


@staged(name_servers=3)
async def test_where_one_name_server_is_gone_the_next_is_asked_and_kept_to(stage):
    stage.cluster.add_topic("T")
    first = stage.session._names_at
    stage.cluster.name_listeners[first].close()

    await stage.session.fresh_route("T")
    await stage.session.fresh_route("T")

    after = [each.connections for each in stage.cluster.name_listeners]
    assert after[(first + 1) % 3] == 1
    assert sum(after) == 1


@staged(name_servers=2)
async def test_a_refusal_is_an_answer_and_no_reason_to_ask_the_next(stage):
    with pytest.raises(TopicNotFound):
        await stage.session.route("T")

    assert len(stage.cluster.codes(ROUTE)) == 1


@staged(name_servers=2)
async def test_a_silent_name_server_is_passed_over(stage):
    stage.cluster.add_topic("T")
    silent = stage.cluster.addresses[stage.session._names_at]
    stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = _once_silent(stage.cluster)
    before = stage.world.now()

    await stage.session.route("T")

    assert 3.0 <= stage.world.now() - before < 3.1
    assert stage.session.names[stage.session._names_at] != silent


def _once_silent(cluster):
    def reply(request):
        del cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC]

    return reply


@staged(name_servers=2)
async def test_with_no_name_server_left_the_error_names_them_all(stage):
    for each in stage.cluster.name_listeners:
        each.close()

    with pytest.raises(ConnectFailed) as caught:
        await stage.session.route("T")

    for address in stage.cluster.addresses:
        assert address in str(caught.value)


@staged()
async def test_a_single_name_server_that_is_gone_is_told_as_it_is(stage):
    stage.cluster.name_listeners[0].close()

    with pytest.raises(ConnectFailed, match="cannot connect to"):
        await stage.session.route("T")


@staged(name_servers=3)
async def test_what_all_must_know_is_told_to_all_even_past_one_that_is_gone(stage):
    stage.cluster.name_listeners[0].close()

    with pytest.raises(ConnectFailed):
        await stage.session.tell_names(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})

    assert len(stage.cluster.codes("DELETE_TOPIC_IN_NAMESRV")) == 2


# Connections


@staged(brokers=2)
async def test_connections_are_shared(stage):
    stage.cluster.add_topic("T")

    await asyncio.gather(*(stage.admin.send(Message(topic="T", body=b"x")) for _ in range(40)))

    assert [each.connections for each in stage.cluster.listeners] == [1, 1]


@staged()
async def test_an_answer_that_does_not_come_is_a_timeout_that_leaves_the_effect_open(stage):
    stage.cluster.add_topic("T")
    stage.cluster.replies[RequestCode.SEND_MESSAGE_V2] = lambda request: None

    with pytest.raises(RequestTimeout) as caught:
        await stage.admin.send(Message(topic="T", body=b"x"))

    assert caught.value.effect.value == "maybe"


@staged()
async def test_a_broker_that_went_is_connected_to_again(stage):
    queue, _ = stage.cluster.add_topic("T")
    await stage.admin.send(Message(topic="T", body=b"x"), queue)
    stage.world.network.cut("client", "server")
    await asyncio.sleep(1)

    receipt = await stage.admin.send(Message(topic="T", body=b"y"), queue)

    assert receipt.offset == 1


@staged()
async def test_a_connection_that_breaks_under_a_request_leaves_the_effect_open(stage):
    stage.cluster.add_topic("T")
    stage.cluster.replies[RequestCode.SEND_MESSAGE_V2] = lambda request: None
    sending = asyncio.create_task(stage.admin.send(Message(topic="T", body=b"x")))
    await asyncio.sleep(1)

    stage.world.network.cut("client", "server")

    with pytest.raises(ConnectionLost) as caught:
        await sending
    assert caught.value.effect.value == "maybe"


@staged()
async def test_what_brokers_ask_goes_to_the_service(stage):
    heard, came = [], []
    serve = stage.cluster.serve

    def remembering(connection, request):
        came.append(connection)
        return serve(connection, request)

    stage.cluster.name_listeners[0]._service = remembering
    network = stage.world.machine("client").network
    listening = lambda _, request: heard.append(request.code)  # noqa: E731
    async with Session(stage.cluster.names, network, service=listening) as session:
        await session.ask_names(RequestCode.GET_BROKER_CLUSTER_INFO)
        came[0].oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        await asyncio.sleep(1)

    assert heard == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]


def test_one_seed_gives_one_trace():
    def trace(seed):
        with World(seed, conditions=STEADY) as world:

            async def scenario():
                server, client = world.machine("server"), world.machine("client")
                async with (
                    FakeCluster(server.network, server.clock, server.address, 2, 2) as cluster,
                    Session(cluster.names, client.network, client.clock, client.entropy) as session,
                ):
                    admin = Admin(session)
                    await admin.create_topic("T", 4)
                    messages = [Message(topic="T", body=b"%d" % n) for n in range(20)]
                    receipts = await asyncio.gather(*map(admin.send, messages))
                    return [(each.queue, each.offset, each.id) for each in receipts]

            return world.run(scenario()), world.trace.digest()

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


@staged()
async def test_only_our_errors_leave(stage):
    """What comes back malformed is the peer's fault, in our words."""
    stage.cluster.add_topic("T")
    stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: command.answer(
        request, body=b"[nonsense"
    )

    with pytest.raises(Exception) as caught:
        await stage.session.route("T")

    assert type(caught.value).__name__ == "RemoteProtocolError"
    assert not isinstance(caught.value, TransportError)


# Routes that were good once: a name server returns a stale or an empty route


def unknown(request):
    return command.answer(request, 17, remark="No topic route info")


def empty(request):
    return command.answer(request, body=bodies.TopicRoute(queue_datas=[], broker_datas=[]).write())


def silent(request):
    """Never answer."""


@pytest.mark.fault("N5")
@pytest.mark.parametrize("reply", [unknown, empty, silent])
def test_a_route_that_was_good_once_is_kept(reply):
    """The name server forgets the topic, names no queue of it, or does not answer."""

    @staged()
    async def scenario(stage):
        stage.cluster.add_topic("T")
        good = await stage.session.route("T")
        stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = reply

        for _ in range(3):
            await asyncio.sleep(FRESH_S + 1)
            asked_at = stage.world.now()
            assert await stage.session.route("T") == good
            assert stage.world.now() - asked_at <= KNOWN_ROUTE_WAIT_S
        if reply is silent:
            with pytest.raises(TransportError):
                await stage.session.refresh()
        else:
            assert await stage.session.refresh() == []
        assert await stage.session.address_of(good.writable[0])

    scenario()


@pytest.mark.fault("N5")
@pytest.mark.parametrize("reply", [unknown, empty])
def test_only_a_topic_that_was_never_seen_is_not_found(reply):

    @staged()
    async def scenario(stage):
        stage.cluster.add_topic("T")
        stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = reply

        with pytest.raises(TopicNotFound):
            await stage.session.route("T")
        with pytest.raises(TopicNotFound):
            await stage.session.route_to_write("T")

    scenario()


@pytest.mark.fault("N5")
@staged()
async def test_a_kept_route_gives_way_to_a_newer_one(stage):
    """The name server knows the topic again, with more queues."""
    stage.cluster.add_topic("T", queues=1)
    await stage.session.route("T")
    stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = unknown
    await asyncio.sleep(FRESH_S + 1)
    await stage.session.route("T")
    stage.cluster.replies.clear()
    stage.cluster.add_topic("T", queues=4)

    await asyncio.sleep(FRESH_S + 1)

    assert len((await stage.session.route("T")).writable) == 4


@pytest.mark.fault("N5")
@staged()
async def test_a_topic_that_its_brokers_deleted_is_not_kept(stage):
    """The broker's own refusal counts for more than a route that was good once."""
    stage.cluster.add_topic("T")
    await stage.session.route("T")
    for broker in stage.cluster.brokers:
        del broker.topics["T"]

    with pytest.raises(TopicNotFound, match="no such topic"):
        await stage.admin.send(Message(topic="T", body=b"x"))
    with pytest.raises(TopicNotFound, match="No topic route info"):
        await stage.session.route("T")


@pytest.mark.fault("N5")
@staged(brokers=2)
async def test_a_broker_without_the_topic_takes_only_its_own_queues_along(stage):
    """The other broker's queues stay, also while the name server knows nothing."""
    queues = stage.cluster.add_topic("T")
    await stage.session.route("T")
    del stage.cluster.brokers[0].topics["T"]
    stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = unknown

    with pytest.raises(TopicNotFound):
        await stage.admin.send(Message(topic="T", body=b"x"), queues[0])

    assert (await stage.session.route("T")).writable == tuple(queues[2:])
