"""Which parts targets name, which are refused, and in which order parts are opened."""

import asyncio
import os
import re
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from types import ModuleType, SimpleNamespace

import pytest

from txmq import (
    Client,
    ClientSettings,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionManager,
    blocking,
)
from txmq.client.observe.worker_process import CURRENT, WorkerProcess
from txmq.errors import ConfigError
from txmq.worker.parts import OpenParts, load_parts

NAMES = "127.0.0.1:9876"


RESOURCE = SimpleNamespace(is_blocking=True, propose=None)


def handled(client):
    client.on("T", group="g")(lambda message: None)
    return client


class Manager(TransactionManager):
    """A manager whose resource is never asked."""

    def __init__(self, client):
        super().__init__("m", client, RESOURCE)


class App:
    def __init__(self, names):
        self.title = "an application"
        self.client = handled(Client(names))
        self.consumers = [PushConsumer("one", self.client), PushConsumer("two", self.client)]


@pytest.fixture
def module(monkeypatch):
    module = ModuleType("an_app")
    monkeypatch.setitem(sys.modules, "an_app", module)
    return module


def load(target, names=None):
    async def scenario():
        async with AsyncExitStack() as stack:
            return await load_parts(target, names, stack)

    return asyncio.run(scenario())


def objects(target, names=None):
    return [part.object for part in load(target, names)]


def test_a_target_without_a_name_means_all_parts_of_its_module(module):
    module.client, module.consumer = Client(NAMES), PushConsumer("g", NAMES)
    module.alias = module.client
    module.pulled, module.Client = PullConsumer("p", NAMES), Client

    assert objects("an_app") == [module.client, module.consumer]


def test_targets_can_be_objects_lists_or_functions(module):
    module.app, module.made = App(NAMES), []
    module.several = (module.app.client, [PushConsumer("g", NAMES)])
    module.holder = SimpleNamespace(app=module.app)

    def build(names):
        module.made.append(App(names))
        return module.made[-1]

    async def later():
        return build(NAMES)

    module.build, module.later, module.App = build, later, App

    assert objects("an_app:app") == [module.app.client, *module.app.consumers]
    assert objects("an_app:holder.app.client") == [module.app.client]
    assert len(objects("an_app:several")) == 2
    assert objects("an_app:build", "10.0.0.1:9876")[0] is module.made[-1].client
    assert module.made[-1].client.session.names == ("10.0.0.1:9876",)
    assert len(objects("an_app:later")) == 3
    assert len(objects("an_app:App", NAMES)) == 3


def test_a_context_manager_is_entered_and_left(module):
    steps = []

    @asynccontextmanager
    async def lifespan():
        steps.append("entered")
        yield handled(Client(NAMES))
        steps.append("left")

    module.lifespan = lifespan
    (part,) = load("an_app:lifespan")

    assert part.may_be_open
    assert steps == ["entered", "left"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("an_app:clinet", "has no name 'clinet'; the nearest name is 'client'; it can run client"),
        ("an_app:app.x", "App in an_app has no name 'x'"),
        ("an_app:number", "an_app:number is a int; a worker runs a Client, PushConsumer"),
        ("an_app:nothing", "an_app:nothing is None; a worker runs"),
        ("an_app:build", "an_app:build needs names: give --names HOST:PORT, or set TXMQ_NAMES"),
        ("an_app:wants", "an_app:wants needs database; a worker calls it with names"),
        ("an_app:endless", "nested too deeply"),
        ("app/orders.py:client", "is not a target; write module:name, as in app.orders:client"),
        ("orders.py:client", "is not a target; write module:name, as in orders:client"),
        ("nowhere_at_all:x", "module 'nowhere_at_all' does not exist; start the worker in"),
    ],
)
def test_a_wrong_target_is_refused_with_advice(module, target, reason):
    module.client, module.app, module.number, module.nothing = Client(NAMES), App(NAMES), 3, None
    module.build, module.wants = (lambda names: None), (lambda database: None)
    module.endless = lambda: module.endless

    with pytest.raises(ConfigError, match=re.escape(reason)):
        load(target)


def test_shared_clients_are_opened_first_and_handlers_last(module):
    client = handled(Client(NAMES))
    consumer, producer = PushConsumer("c", client), Producer("p", client)
    consumer.on("U")(lambda message: None)
    manager = Manager(client)
    module.parts = [consumer, manager, producer]
    parts = OpenParts(load("an_app:parts"), 1.0)

    found = [part.object for part in parts.parts]
    assert found == [client, manager, producer, consumer]
    assert list(parts.consumers) == [client.consumers["g"], consumer]
    assert parts.description == "T as g, checks of m, U as c"


def test_blocking_clients_and_managers_can_be_targets(module):
    module.client = blocking.Client(NAMES)
    module.client.on("T", group="g")(lambda message: None)
    parts = OpenParts(load("an_app:client"), 1.0)
    parts.check()

    assert parts.description == "T as g"
    assert [consumer.group for consumer in parts.consumers] == ["g"]

    module.shares = blocking.TransactionManager("m", module.client, RESOURCE)
    with pytest.raises(ConfigError, match="an_app:shares shares a client of txmq.blocking; name"):
        OpenParts(load("an_app:shares"), 1.0).check()


def test_a_target_with_nothing_to_run_or_already_open_is_refused(module):
    module.client = Client(NAMES)
    with pytest.raises(ConfigError, match="an_app:client: nothing to run; give a client handlers"):
        OpenParts(load("an_app:client"), 1.0).check()

    handled(module.client)
    parts = OpenParts(load("an_app:client"), 1.0)
    parts.check()
    module.client._is_open = True
    with pytest.raises(ConfigError, match="an_app:client is open already; the worker opens it"):
        parts.check()


def test_processes_with_one_instance_name_have_separate_client_ids():
    settings = ClientSettings(instance="billing", host="here")
    assert Client(NAMES, settings).id == "here@billing"

    def id_in_worker():
        CURRENT.set(WorkerProcess(2, 1.0, None))
        return Client(NAMES, settings).id

    assert copy_context().run(id_in_worker) == f"here@billing-{os.getpid()}"
