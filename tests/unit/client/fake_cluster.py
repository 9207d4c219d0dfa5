"""A small cluster in one object: a name server and brokers that keep messages in lists.

It answers the requests of Session and Admin like a stock broker, and remembers them.
Any answer can be replaced: ``cluster.replies[code] = lambda request: ...`` (a frame, or None for
silence).
"""

from collections import Counter
from types import SimpleNamespace

from txmq.limits import PULL_MESSAGES_MAX
from txmq.message import Queue
from txmq.protocol import batch, bodies, command, headers
from txmq.protocol.bodies import MessageQueue, queue_map
from txmq.protocol.codes import Perm, RequestCode
from txmq.protocol.record import Record, host_bytes, pack, unpack
from txmq.remoting.listener import Listener

SYSTEM_ERROR, NOT_SUPPORTED, FORBIDDEN, NO_TOPIC, NOT_FOUND, OFFLINE = 1, 3, 16, 17, 22, 206
EMPTY, NONE_MATCHED, MOVED = 19, 20, 21


class FakeBroker:
    def __init__(self, cluster, name, cluster_name="c1"):
        self.cluster = cluster
        self.name = name
        self.cluster_name = cluster_name
        self.topics = {}
        self.groups = {}
        self.queues = {}
        self.offsets = {}
        self.consumers = {}
        self.members = {}  # By group and connection: the client that sent a heartbeat.
        self.locks = {}
        self.log = []
        self.shown_after = 0  # How often the name server still returns the state before a change.
        self.stale = {}
        self.address = ""

    # Serving

    def serve(self, connection, request):
        self.connection = connection
        self.cluster.asked.append((self.name, RequestCode(request.code), request.field_map()))
        if request.code in self.cluster.replies:
            return self.cluster.replies[request.code](request)
        handler = getattr(self, "on_" + RequestCode(request.code).name.lower(), None)
        if handler is None:
            return command.answer(request, NOT_SUPPORTED, remark="not supported")
        return handler(request)

    def store(self, topic, number, request, body, properties, flag, sys_flag=0, attempts=0):
        queue = self.queues.setdefault((topic, number), [])
        host, port = self.address.rsplit(":", 1)
        record = Record(
            queue_id=number,
            flag=flag,
            queue_offset=len(queue),
            position=sum(len(packed) for packed in self.log),
            sys_flag=sys_flag,
            born_ms=request.born_timestamp,
            born_host=host_bytes("127.0.0.1", 1),
            stored_ms=self.cluster.clock.wall_ms(),
            store_host=host_bytes(host, int(port)),
            attempts=attempts,
            prepared_position=0,
            body=body,
            topic=topic,
            properties=properties,
        )
        self.log.append(pack(record))
        queue.append(record)
        return record

    def on_send_message_v2(self, request):
        head = request.read(headers.SendMessageV2)
        if head.topic not in self.topics:
            if head.default_topic not in self.topics:
                return command.answer(request, NO_TOPIC, remark="no such topic")
            self.topics[head.topic] = bodies.TopicConfig(head.topic, 4, 4)
        args = head.topic, head.queue_id, head
        if head.batch:
            items = batch.unpack(request.body)
            stored = [self.store(*args, body, text, flag) for flag, body, text in items]
        else:
            text = head.properties or ""
            stored = [self.store(*args, request.body, text, head.flag, head.sys_flag)]
        ids = ",".join(record.offset_id for record in stored)
        told = headers.SendAnswer(ids, head.queue_id, stored[0].queue_offset)
        return command.answer(request, 0, told)

    on_send_batch_message = on_send_message_v2

    def on_pull_message(self, request):
        head = request.read(headers.PullMessage)
        if head.topic not in self.topics:
            return command.answer(request, NO_TOPIC, remark="no such topic")
        if not self.topics[head.topic].perm & Perm.READ:
            return command.answer(request, FORBIDDEN, remark="pulling message is forbidden")
        queue = self.queues.get((head.topic, head.queue_id), [])
        count = min(head.max_msg_nums, PULL_MESSAGES_MAX)
        here = queue[head.queue_offset : head.queue_offset + count]
        code = 0 if here else EMPTY
        following = head.queue_offset + len(here)
        if head.queue_offset > len(queue):
            code, following = MOVED, len(queue)
        bounds = headers.PullAnswer(0, following, 0, len(queue))
        return command.answer(request, code, bounds, body=b"".join(pack(record) for record in here))

    def on_query_message(self, request):
        head = request.read(headers.MessageQuery)
        unique = request.field_map().get("_UNIQUE_KEY_QUERY") == "true"
        found = []
        for (topic, _), queue in self.queues.items():
            for record in queue if topic == head.topic else []:
                named = record.property_map()
                keys = [named.get("UNIQ_KEY")] if unique else named.get("KEYS", "").split()
                # Like a real broker, it finds by hash: here, by the first letter.
                if any(key and key[0] == head.key[0] for key in keys):
                    found.append(record)
        if not found:
            return command.answer(request, NOT_FOUND, remark="can not find message")
        return command.answer(
            request, 0, headers.QueryAnswer(0, 0), body=b"".join(pack(record) for record in found)
        )

    def on_view_message_by_id(self, request):
        at = 0
        for packed in self.log:
            if at == request.read(headers.MessagePosition).offset:
                return command.answer(request, 0, body=packed)
            at += len(packed)
        return command.answer(request, SYSTEM_ERROR, remark="can not find message")

    def on_end_transaction(self, request):
        """Like a stock broker, answer only what decides the transaction."""
        said = request.read(headers.EndTransaction).commit_or_rollback
        return command.answer(request) if said and not request.is_oneway else None

    # Members of groups

    def on_heart_beat(self, request):
        beat = bodies.Heartbeat.read(request.body)
        for consumer in beat.consumer_data_set:
            self.members.setdefault(consumer.group_name, {})[self.connection] = beat.client_id
            retry = f"%RETRY%{consumer.group_name}"
            self.topics.setdefault(retry, bodies.TopicConfig(retry, 1, 1))
        return command.answer(request)

    def on_unregister_client(self, request):
        head = request.read(headers.ClientGroups)
        self.members.get(head.consumer_group, {}).pop(self.connection, None)
        return command.answer(request)

    def member_ids(self, group):
        """The ids of the connected members of a group."""
        known = self.members.get(group, {})
        return sorted({who for connection, who in known.items() if connection.is_open})

    def on_get_consumer_list_by_group(self, request):
        found = self.member_ids(request.read(headers.GroupHeader).consumer_group)
        if not found:
            return command.answer(request, SYSTEM_ERROR, remark="no consumer for this group")
        return command.answer(request, body=bodies.ConsumerIds(found).write())

    def notify(self, group):
        """40: tell the members that others came or went."""
        for connection in self.members.get(group, {}):
            if connection.is_open:
                connection.oneway(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, headers.GroupHeader(group)
                )

    def on_lock_batch_mq(self, request):
        wanted = bodies.LockRequest.read(request.body)
        group, who = wanted.consumer_group, wanted.client_id
        locked = [
            queue
            for queue in wanted.mq_set
            if self.locks.setdefault((group, queue.topic, queue.queue_id), who) == who
        ]
        return command.answer(request, body=bodies.LockedQueues(locked).write())

    def on_unlock_batch_mq(self, request):
        given = bodies.LockRequest.read(request.body)
        for queue in given.mq_set:
            key = given.consumer_group, queue.topic, queue.queue_id
            if self.locks.get(key) == given.client_id:
                del self.locks[key]
        return command.answer(request)

    def on_consumer_send_msg_back(self, request):
        """Store it at once, whatever the level; a dead letter is dropped."""
        head = request.read(headers.SendBack)
        at = 0
        for packed in self.log:
            if at == head.offset:
                break
            at += len(packed)
        else:
            return command.answer(request, SYSTEM_ERROR, remark="look message by offset failed")
        record = unpack(packed)[0]
        if head.delay_level >= 0:
            named = {"RETRY_TOPIC": head.origin_topic, **record.property_map()}
            text = "".join(f"{name}\x01{value}\x02" for name, value in named.items())
            sent = SimpleNamespace(born_timestamp=record.born_ms)
            retry = f"%RETRY%{head.group}"
            self.store(retry, 0, sent, record.body, text, 0, attempts=record.attempts + 1)
        return command.answer(request)

    # Offsets

    def _offset(self, request, value):
        return command.answer(request, 0, headers.OffsetAnswer(value))

    def on_get_max_offset(self, request):
        head = request.read(headers.QueueHeader)
        return self._offset(request, len(self.queues.get((head.topic, head.queue_id), [])))

    def on_get_min_offset(self, request):
        return self._offset(request, 0)

    def on_search_offset_by_timestamp(self, request):
        head = request.read(headers.OffsetByTime)
        queue = self.queues.get((head.topic, head.queue_id), [])
        at = sum(record.stored_ms < head.timestamp for record in queue)
        if head.boundary_type is None and at == len(queue) > 0:
            at -= 1  # Like RocketMQ: without a boundary, a later time leads to the last message.
        return self._offset(request, at)

    def on_query_consumer_offset(self, request):
        head = request.read(headers.OffsetQuery)
        found = self.offsets.get((head.consumer_group, head.topic, head.queue_id))
        if found is None and head.set_zero_if_not_found is False:
            return command.answer(request, NOT_FOUND, remark="not found")
        # Like RocketMQ 5, which returns 0 for a young queue unless the request forbids it.
        return self._offset(request, found or 0)

    def on_update_consumer_offset(self, request):
        head = request.read(headers.OffsetCommit)
        self.offsets[head.consumer_group, head.topic, head.queue_id] = head.commit_offset
        return command.answer(request)

    def on_invoke_broker_to_reset_offset(self, request):
        head = request.read(headers.ResetOffset)
        if head.group not in self.consumers:
            return command.answer(request, OFFLINE, remark="no consumer")
        table = {
            MessageQueue(self.name, number, topic): 0
            for topic, number in sorted(self.queues)
            if topic == head.topic
        }
        return command.answer(request, body=b'{"offsetTable":' + queue_map(table) + b"}")

    # Topics

    def on_update_and_create_topic(self, request):
        head = request.read(headers.TopicSettings)
        before = dict(self.topics)
        self.topics[head.topic] = bodies.TopicConfig(
            head.topic,
            head.read_queue_nums,
            head.write_queue_nums,
            head.perm,
            head.topic_filter_type,
            head.topic_sys_flag or 0,
            head.order,
        )
        self.cluster.hidden[head.topic] = self.shown_after
        self.stale = before
        return command.answer(request)

    def on_get_all_topic_config(self, request):
        body = bodies.TopicConfigs(topic_config_table=self.topics)
        return command.answer(request, body=body.write())

    def on_delete_topic_in_broker(self, request):
        self.topics.pop(request.read(headers.TopicHeader).topic, None)
        return command.answer(request)

    def on_get_topic_stats_info(self, request):
        topic = request.read(headers.TopicHeader).topic
        table = {
            MessageQueue(self.name, number, topic): bodies.QueueStats(
                0, len(self.queues.get((topic, number), [])), 5
            )
            for number in range(self.topics[topic].write_queue_nums)
        }
        return command.answer(request, body=b'{"offsetTable":' + queue_map(table) + b"}")

    def on_query_topic_consume_by_who(self, request):
        topic = request.read(headers.TopicHeader).topic
        groups = {group for group, consumed, _ in self.offsets if consumed == topic}
        return command.answer(request, body=bodies.GroupList(sorted(groups)).write())

    # Groups

    def on_update_and_create_subscriptiongroup(self, request):
        config = bodies.GroupConfig.read(request.body)
        self.groups[config.group_name] = config
        return command.answer(request)

    def on_get_all_subscriptiongroup_config(self, request):
        table = bodies.GroupConfigs(subscription_group_table=self.groups)
        return command.answer(request, body=table.write())

    def on_delete_subscriptiongroup(self, request):
        self.groups.pop(request.read(headers.DeleteGroup).group_name, None)
        return command.answer(request)

    def on_get_consume_stats(self, request):
        head = request.read(headers.GroupHeader)
        table = {
            MessageQueue(self.name, number, topic): bodies.OffsetPair(
                len(self.queues.get((topic, number), [])), offset, 7
            )
            for (group, topic, number), offset in self.offsets.items()
            if group == head.consumer_group and head.topic in (None, topic)
        }
        body = b'{"consumeTps":0.0,"offsetTable":' + queue_map(table) + b"}"
        return command.answer(request, body=body)

    def on_query_consume_time_span(self, request):
        head = request.read(headers.TopicAndGroup)
        spans = []
        for number in range(self.topics[head.topic].read_queue_nums):
            queue = self.queues.get((head.topic, number), [])
            offset = self.offsets.get((head.group, head.topic, number), 0)
            delay = self.cluster.clock.wall_ms() - queue[offset].stored_ms if queue[offset:] else 0
            place = MessageQueue(self.name, number, head.topic)
            spans.append(bodies.ConsumeTimeSpan(place, -1, -1, -1, delay))
        return command.answer(request, body=bodies.ConsumeTimeSpans(spans).write())

    def on_get_consumer_connection_list(self, request):
        found = self.consumers.get(request.read(headers.GroupHeader).consumer_group)
        if found is None:
            return command.answer(request, OFFLINE, remark="not online")
        return command.answer(request, body=found.write())

    def on_get_producer_connection_list(self, request):
        return command.answer(request, SYSTEM_ERROR, remark="no producer")

    def on_get_broker_runtime_info(self, request):
        return command.answer(
            request, body=bodies.TextTable({"brokerVersionDesc": self.name}).write()
        )


class FakeCluster:
    """Brokers ``broker-a``, ``broker-b``, ... and ``name_servers`` name servers that agree."""

    def __init__(self, network, clock, host="127.0.0.1", brokers=1, name_servers=1):
        self.network = network
        self.clock = clock
        self.host = host
        self.asked = []
        self.replies = {}
        self.hidden = Counter()
        self.listeners = []
        self.name_listeners = []
        self.brokers = [FakeBroker(self, f"broker-{'abcdef'[n]}") for n in range(brokers)]
        self.name_servers = name_servers
        self.addresses = []

    async def __aenter__(self):
        for broker in self.brokers:
            broker.address = await self._open(broker.serve, self.listeners)
        for _ in range(self.name_servers):
            self.addresses.append(await self._open(self.serve, self.name_listeners))
        return self

    async def __aexit__(self, *problem):
        for listener in self.listeners + self.name_listeners:
            listener.close()

    async def reopen(self, number):
        """Let a broker whose listener was closed listen at the same address again."""
        broker, kept = self.brokers[number], []
        await self._open(broker.serve, kept, int(broker.address.rpartition(":")[2]))
        (self.listeners[number],) = kept

    async def _open(self, service, kept, port=0):
        listener = Listener(self.network, self.clock, service, connections_max=100)
        await listener.open(self.host, port)
        kept.append(listener)
        return "{}:{}".format(*listener.address)

    @property
    def names(self):
        return ";".join(self.addresses)

    def add_topic(self, name, queues=2, perm=6):
        for broker in self.brokers:
            broker.topics[name] = bodies.TopicConfig(name, queues, queues, perm)
        return [Queue(name, holder.name, n) for holder in self.brokers for n in range(queues)]

    def codes(self, *names):
        """Which of the named requests came, and to whom, in order."""
        return [(who, code.name) for who, code, _ in self.asked if code.name in names]

    # The name server

    def serve(self, connection, request):
        self.asked.append(("names", RequestCode(request.code), request.field_map()))
        if request.code in self.replies:
            return self.replies[request.code](request)
        handler = getattr(self, "on_" + RequestCode(request.code).name.lower(), None)
        if handler is None:
            return command.answer(request, NOT_SUPPORTED, remark="not supported")
        return handler(request)

    def on_get_routeinfo_by_topic(self, request):
        topic = request.read(headers.RouteQuery).topic
        hidden = self.hidden[topic] > 0
        self.hidden[topic] -= hidden
        told = [(broker, broker.stale if hidden else broker.topics) for broker in self.brokers]
        having = [(broker, topics[topic]) for broker, topics in told if topic in topics]
        if not having:
            return command.answer(request, NO_TOPIC, remark="No topic route info")
        route = bodies.TopicRoute(
            queue_datas=[
                bodies.QueueRoute(
                    broker.name, config.read_queue_nums, config.write_queue_nums, config.perm
                )
                for broker, config in having
            ],
            broker_datas=[
                bodies.BrokerRoute(broker.name, {0: broker.address}, broker.cluster_name)
                for broker, _ in having
            ],
        )
        return command.answer(request, body=route.write())

    def on_get_broker_cluster_info(self, request):
        clusters = {}
        for broker in self.brokers:
            clusters.setdefault(broker.cluster_name, []).append(broker.name)
        view = bodies.ClusterView(
            broker_addr_table={
                broker.name: bodies.BrokerRoute(
                    broker.name, {0: broker.address}, broker.cluster_name
                )
                for broker in self.brokers
            },
            cluster_addr_table=clusters,
        )
        return command.answer(request, body=view.write())

    def on_get_all_topic_list_from_nameserver(self, request):
        names = {name for broker in self.brokers for name in broker.topics}
        return command.answer(request, body=bodies.TopicNames(sorted(names)).write())

    def on_delete_topic_in_namesrv(self, request):
        return command.answer(request)
