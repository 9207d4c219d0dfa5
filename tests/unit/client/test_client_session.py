import asyncio

import pytest

from tests.unit.client.client_stage import QUEUE, STEADY, staged
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
def test_malformed_name_server_addresses_are_refused(names):
    with pytest.raises(ConfigError):
        Session(names)


def test_name_server_addresses_may_contain_spaces():
    assert Session(" a:1 ; b:2;").names == ("a:1", "b:2")


def test_creating_a_session_opens_no_connection():
    with World(1) as world:

        async def scenario():
            session = Session("10.9.9.9:1", world.machine("client").network)
            with pytest.raises(UsageError, match="not open"):
                await session.route("T")

        world.run(scenario())


@staged()
async def test_opening_a_session_twice_is_refused(stage):
    with pytest.raises(UsageError, match="open already"):
        async with stage.session:
            pass


@staged()
async def test_a_closed_session_refuses_requests(stage):
    async with Session(stage.cluster.names, stage.world.machine("client").network) as session:
        await session.ask_names(RequestCode.GET_BROKER_CLUSTER_INFO)

    with pytest.raises(UsageError, match="not open"):
        await session.ask_names(RequestCode.GET_BROKER_CLUSTER_INFO)


@staged()
async def test_closing_a_session_fails_open_requests_without_cancelling_their_tasks(stage):
    stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: None
    session = Session(stage.cluster.names, stage.world.machine("client").network)
    async with session:
        asking = asyncio.create_task(session.route("T"))
        await asyncio.sleep(1)

    with pytest.raises(UsageError, match="closed during the call"):
        await asking


@staged()
async def test_a_cancelled_request_raises_cancelled_error(stage):
    stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: None
    asking = asyncio.create_task(stage.session.route("T"))
    await asyncio.sleep(1)

    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking


# Routes


@staged(brokers=2)
async def test_a_route_is_fetched_once_and_then_cached(stage):
    queues = stage.cluster.add_topic("T")

    first, second = await stage.session.route("T"), await stage.session.route("T")

    assert first is second
    assert list(first.writable) == queues
    assert len(stage.cluster.codes(ROUTE)) == 1


@staged(topic="T")
async def test_concurrent_requests_for_a_route_share_one_query(stage):
    found = await asyncio.gather(*(stage.session.route("T") for _ in range(50)))

    assert len({id(route) for route in found}) == 1
    assert len(stage.cluster.codes(ROUTE)) == 1


@staged(topic="T")
async def test_a_cancelled_request_for_a_route_does_not_affect_the_others(stage):
    hasty = asyncio.create_task(stage.session.route("T"))
    patient = asyncio.create_task(stage.session.route("T"))
    await asyncio.sleep(0)

    hasty.cancel()

    assert (await patient).topic == "T"


@staged()
async def test_a_stale_route_is_fetched_again(stage):
    stage.cluster.add_topic("T", queues=1)
    await stage.session.route("T")
    stage.cluster.add_topic("T", queues=4)

    await asyncio.sleep(FRESH_S + 1)

    assert len((await stage.session.route("T")).writable) == 4


@staged()
async def test_an_unknown_topic_is_not_cached_as_unknown(stage):
    with pytest.raises(TopicNotFound):
        await stage.session.route("T")

    stage.cluster.add_topic("T")

    assert (await stage.session.route("T")).topic == "T"


@staged()
async def test_a_new_topic_is_written_to_the_brokers_of_the_template_topic(stage):
    stage.cluster.add_topic("TBW102", queues=8, perm=7)

    route = await stage.session.route_to_write("new")

    assert [queue.number for queue in route.writable] == [0, 1, 2, 3]
    with pytest.raises(TopicNotFound):
        await stage.session.route("new")


@staged()
async def test_without_a_template_topic_an_unknown_topic_is_not_found(stage):
    for topic in ("new", "TBW102"):
        with pytest.raises(TopicNotFound):
            await stage.session.route_to_write(topic)


@staged()
async def test_a_queue_at_a_broker_that_joined_later_is_found(stage):
    queue = stage.cluster.add_topic("T")[0]
    await stage.session.route("T")
    stage.cluster.brokers[0].name = "broker-z"

    address = await stage.session.address_of(Queue("T", "broker-z", 0))

    assert address == stage.cluster.brokers[0].address
    with pytest.raises(TopicNotFound, match="nothing at broker 'broker-a'"):
        await stage.session.address_of(queue)


# Name servers


@staged(name_servers=3)
async def test_a_session_stays_with_one_name_server(stage):
    for _ in range(10):
        await stage.session.ask_names(RequestCode.GET_BROKER_CLUSTER_INFO)

    assert sorted(listener.connections for listener in stage.cluster.name_listeners) == [0, 0, 1]


def test_the_first_name_server_is_chosen_at_random():
    begun = set()
    for seed in range(20):
        session = Session("a:1;b:2;c:3", entropy=SeededEntropy(seed))
        begun.add(session._names_at)

    assert begun == {0, 1, 2}


@staged(name_servers=3, topic="T")
async def test_a_session_switches_to_the_next_name_server_when_one_is_gone(stage):
    first = stage.session._names_at
    stage.cluster.name_listeners[first].close()

    await stage.session.fresh_route("T")
    await stage.session.fresh_route("T")

    after = [listener.connections for listener in stage.cluster.name_listeners]
    assert after[(first + 1) % 3] == 1
    assert sum(after) == 1


@staged(name_servers=2)
async def test_a_refusal_of_one_name_server_is_not_retried_at_the_next(stage):
    with pytest.raises(TopicNotFound):
        await stage.session.route("T")

    assert len(stage.cluster.codes(ROUTE)) == 1


@staged(name_servers=2, topic="T")
async def test_a_silent_name_server_is_skipped(stage):
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
async def test_when_no_name_server_is_reachable_the_error_names_them_all(stage):
    for listener in stage.cluster.name_listeners:
        listener.close()

    with pytest.raises(ConnectFailed) as caught:
        await stage.session.route("T")

    for address in stage.cluster.addresses:
        assert address in str(caught.value)


@staged()
async def test_an_unreachable_single_name_server_raises_connect_failed(stage):
    stage.cluster.name_listeners[0].close()

    with pytest.raises(ConnectFailed, match="cannot connect to"):
        await stage.session.route("T")


@staged(name_servers=3)
async def test_a_command_for_all_name_servers_reaches_the_rest_when_one_is_gone(stage):
    stage.cluster.name_listeners[0].close()

    with pytest.raises(ConnectFailed):
        await stage.session.tell_names(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})

    assert len(stage.cluster.codes("DELETE_TOPIC_IN_NAMESRV")) == 2


# Connections


@staged(brokers=2, topic="T")
async def test_concurrent_sends_share_one_connection_per_broker(stage):
    await asyncio.gather(*(stage.admin.send(Message(topic="T", body=b"x")) for _ in range(40)))

    assert [listener.connections for listener in stage.cluster.listeners] == [1, 1]


@staged(topic="T")
async def test_a_missing_answer_is_a_timeout_that_leaves_the_effect_open(stage):
    stage.cluster.replies[RequestCode.SEND_MESSAGE_V2] = lambda request: None

    with pytest.raises(RequestTimeout) as caught:
        await stage.admin.send(Message(topic="T", body=b"x"))

    assert caught.value.effect.value == "maybe"


@staged(topic="T")
async def test_a_lost_connection_to_a_broker_is_opened_again(stage):
    await stage.admin.send(Message(topic="T", body=b"x"), QUEUE)
    stage.world.network.cut("client", "server")
    await asyncio.sleep(1)

    receipt = await stage.admin.send(Message(topic="T", body=b"y"), QUEUE)

    assert receipt.offset == 1


@staged(topic="T")
async def test_a_connection_that_breaks_under_a_request_leaves_the_effect_open(stage):
    stage.cluster.replies[RequestCode.SEND_MESSAGE_V2] = lambda request: None
    sending = asyncio.create_task(stage.admin.send(Message(topic="T", body=b"x")))
    await asyncio.sleep(1)

    stage.world.network.cut("client", "server")

    with pytest.raises(ConnectionLost) as caught:
        await sending
    assert caught.value.effect.value == "maybe"


@staged()
async def test_requests_from_the_other_side_go_to_the_service(stage):
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


def test_equal_seeds_give_equal_traces():
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
                    return [(receipt.queue, receipt.offset, receipt.id) for receipt in receipts]

            return world.run(scenario()), world.trace.digest()

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


@staged(topic="T")
async def test_a_malformed_answer_raises_remote_protocol_error(stage):
    """A malformed answer raises an error of txmq, and not one of the decoder."""
    stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: command.answer(
        request, body=b"[nonsense"
    )

    with pytest.raises(Exception) as caught:
        await stage.session.route("T")

    assert type(caught.value).__name__ == "RemoteProtocolError"
    assert not isinstance(caught.value, TransportError)


# Kept routes: a name server returns a stale or an empty route


def unknown(request):
    return command.answer(request, 17, remark="No topic route info")


def empty(request):
    return command.answer(request, body=bodies.TopicRoute(queue_datas=[], broker_datas=[]).write())


def silent(request):
    """Never answer."""


@pytest.mark.fault("N5")
@pytest.mark.parametrize("reply", [unknown, empty, silent])
@staged(topic="T")
async def test_a_known_route_is_kept_while_the_name_server_does_not_know_it(stage, reply):
    """The name server forgets the topic, names no queue of it, or does not answer."""

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


@pytest.mark.fault("N5")
@pytest.mark.parametrize("reply", [unknown, empty])
@staged(topic="T")
async def test_a_topic_without_a_known_route_is_not_found(stage, reply):
    stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = reply

    with pytest.raises(TopicNotFound):
        await stage.session.route("T")
    with pytest.raises(TopicNotFound):
        await stage.session.route_to_write("T")


@pytest.mark.fault("N5")
@staged()
async def test_a_kept_route_is_replaced_by_a_newer_one(stage):
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
@staged(topic="T")
async def test_the_route_of_a_topic_that_its_brokers_deleted_is_not_kept(stage):
    """The refusal of the broker overrides a route from before."""
    await stage.session.route("T")
    for broker in stage.cluster.brokers:
        del broker.topics["T"]

    with pytest.raises(TopicNotFound, match="no such topic"):
        await stage.admin.send(Message(topic="T", body=b"x"))
    with pytest.raises(TopicNotFound, match="No topic route info"):
        await stage.session.route("T")


@pytest.mark.fault("N5")
@staged(brokers=2)
async def test_a_broker_that_lost_the_topic_removes_only_its_own_queues_from_the_route(stage):
    """The queues of the other broker stay while the name server does not know the topic."""
    queues = stage.cluster.add_topic("T")
    await stage.session.route("T")
    del stage.cluster.brokers[0].topics["T"]
    stage.cluster.replies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = unknown

    with pytest.raises(TopicNotFound):
        await stage.admin.send(Message(topic="T", body=b"x"), queues[0])

    assert (await stage.session.route("T")).writable == tuple(queues[2:])
