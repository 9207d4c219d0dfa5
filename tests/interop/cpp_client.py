"""Drives the C++ RocketMQ client (PyPI rocketmq-client-python) from the command line.

Stands alone: it runs in the interpreter that holds the package and imports nothing of txmq.
Senders read one JSON message per line from stdin, which may name another `topic`; every fact goes
to stdout as one JSON line.
Closing stdin or SIGTERM makes it leave in good order: the client is shut down, exit code 0.

The verb `transact` takes lines that say what the local transaction comes to (`local`; with `holds`
it waits for one line more), plain messages (no `local`), and `{"beat": true}`; what checks are told
is said once, by --checks.

Bodies are text, or bytes in hexadecimal digits (`body_hex`); no NUL among them: the wrapper hands
them to C as NUL-terminated strings.
"""

import argparse
import hashlib
import json
import signal
import sys
import threading
import time
from functools import partial

from rocketmq.client import (
    ConsumeStatus,
    Message,
    Producer,
    PushConsumer,
    TransactionMQProducer,
    TransactionStatus,
)
from rocketmq.exceptions import RocketMQException
from rocketmq.ffi import MessageModel

RETRY_PAUSE_S = 0.1
SILENT = "SILENT"  # in place of an answer: whoever asks waits for as long as the process lives
TOLD_PROPERTIES = ("TRAN_MSG", "PGROUP", "UNIQ_KEY", "REAL_TOPIC", "REAL_QID")
TOLD_PROPERTIES += ("TRANSACTION_CHECK_TIMES", "__transactionId__", "KEYS", "TAGS")
_output = threading.Lock()


class Leave(Exception):
    """SIGTERM arrived."""


def leave(signum, frame):
    raise Leave


def now_ms():
    return time.time_ns() / 1e6


def emit(event, **facts):
    line = json.dumps({"event": event, "at_ms": now_ms(), **facts}) + "\n"
    with _output:  # callbacks come from the library's own threads
        sys.stdout.write(line)
        sys.stdout.flush()


def text(value):
    return (value or b"").decode(errors="replace")  # a body may be no text


def build(topic, line):
    message = Message(topic)
    body_hex = line.get("body_hex")
    message.set_body(bytes.fromhex(body_hex) if body_hex else line["body"])
    if line.get("keys"):
        message.set_keys(line["keys"])
    if line.get("tags"):
        message.set_tags(line["tags"])
    if line.get("level"):
        message.set_delay_time_level(line["level"])
    if line.get("deliver_at_ms"):  # the library has no name for it
        message.set_property("TIMER_DELIVER_MS", str(line["deliver_at_ms"]))
    for name, value in (line.get("properties") or {}).items():
        message.set_property(name, value)
    return message


def attempt(producer, verb, topic, line):
    message = build(topic, line)
    offered_ms = now_ms()
    try:
        if verb == "send-oneway":
            producer.send_oneway(message)
            return {}
        if verb == "send-orderly":
            result = producer.send_orderly_with_sharding_key(message, line["shard"])
        else:
            result = producer.send_sync(message)
    finally:
        message.destroy()
    return {
        "offered_ms": offered_ms,
        "status": result.status.name,
        "msg_id": result.msg_id,
        "queue_offset": result.offset,
    }


def send_until_acknowledged(producer, verb, topic, line):
    """A broker that restarts refuses for a while; the message is offered until it is taken."""
    topic = line.get("topic", topic)
    while True:
        try:
            facts = attempt(producer, verb, topic, line)
        except RocketMQException as error:
            emit("refused", keys=line.get("keys"), error=str(error))
            time.sleep(RETRY_PAUSE_S)
        else:
            emit("sent", topic=topic, keys=line.get("keys"), **facts)
            return


def produce(options):
    producer = started(Producer(options.group, orderly=options.verb == "send-orderly"), options)
    emit("ready")
    # The library drops one-way messages while it opens a connection, and tells nobody.
    verb = "send" if options.verb == "send-oneway" else options.verb
    try:
        for line in sys.stdin:
            send_until_acknowledged(producer, verb, options.topic, json.loads(line))
            verb = options.verb
            time.sleep(options.pace_ms / 1000)
    except Leave:
        pass
    finally:
        producer.shutdown()
    emit("stopped")


def transact(options):
    """The library beats when a producer starts, if it knows a broker by then, and then every 30 s.

    So the process first sends a message with a plain producer, which makes it know the broker, and
    starts the transactional one after it: all producers of a process share their connections.
    """
    plain = started(Producer(f"{options.group}-plain"), options)
    send_until_acknowledged(plain, "send", options.topic, json.loads(sys.stdin.readline()))
    checks = Answers(options.checks.split(","))
    producer = started(TransactionMQProducer(options.group, checks), options)
    others = []
    emit("ready")
    try:
        for text_line in sys.stdin:
            line = json.loads(text_line)
            if line.get("beat"):
                others.append(started(Producer(f"{options.group}-beat-{len(others)}"), options))
                emit("beaten")
            elif line.get("local"):
                send_half(producer, options.topic, line)
            else:
                send_until_acknowledged(plain, "send", options.topic, line)
    except Leave:
        pass
    finally:
        for member in (producer, plain, *others):
            member.shutdown()
    emit("stopped")


def sign(member, options):
    if options.account:
        access_key, secret_key = options.account.split(":")
        member.set_session_credentials(access_key, secret_key, "channel")


def started(producer, options):
    producer.set_namesrv_addr(options.names)
    sign(producer, options)
    producer.start()
    return producer


def send_half(producer, topic, line):
    def execute(message, argument):
        emit("executed", local=line["local"], **sent_facts(message))
        if line.get("holds"):
            sys.stdin.readline()
        return told(line["local"])

    message = build(topic, line)
    try:
        result = producer.send_message_in_transaction(message, execute)
    finally:
        message.destroy()
    emit(
        "sent",
        keys=line["keys"],
        status=result.status.name,
        msg_id=result.msg_id,
        queue_offset=result.offset,
    )


class Answers:
    """What checks are told, in turn; the last answer holds for all that follow."""

    def __init__(self, names):
        self._names = names

    def __call__(self, message):
        name = self._names.pop(0) if len(self._names) > 1 else self._names[0]
        emit("checked", said=name, **described(message))
        return told(name)


def told(name):
    while name == SILENT:
        time.sleep(60)
    return TransactionStatus[name]


def sent_facts(message):
    """All that may be asked of a message on its way out: asked for its id, the library crashes."""
    properties = {name: message.get_property(name) for name in TOLD_PROPERTIES}
    return {
        "topic": message.topic,
        "keys": text(message.keys),
        "body": text(message.body),
        "properties": {name: text(value) for name, value in properties.items() if value},
    }


def described(message):
    return {
        **sent_facts(message),
        "msg_id": message.id,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "position": message.commit_log_offset,
        "prepared_position": message.prepared_transaction_offset,
    }


def handle(message, options):
    body = message.body or b""
    facts = described(message)
    facts.pop("body")  # may be large
    facts["properties"] |= {name: text(message.get_property(name)) for name in options.tell}
    emit(
        "message",
        tags=text(message.tags),
        body_size=len(body),
        body_sha256=hashlib.sha256(body).hexdigest(),
        reconsume_times=message.reconsume_times,
        **facts,
    )
    time.sleep(options.work_ms / 1000)
    later = message.reconsume_times < options.fails
    return ConsumeStatus.RECONSUME_LATER if later else ConsumeStatus.CONSUME_SUCCESS


def consume(options):
    model = MessageModel.BROADCASTING if options.broadcasting else MessageModel.CLUSTERING
    consumer = PushConsumer(options.group, orderly=options.orderly, message_model=model)
    consumer.set_namesrv_addr(options.names)
    sign(consumer, options)
    consumer.subscribe(options.topic, partial(handle, options=options), options.tags)
    consumer.start()
    emit("ready")
    try:
        for _ in sys.stdin:
            pass
    except Leave:
        pass
    finally:
        consumer.shutdown()
    emit("stopped")


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = ["send", "send-oneway", "send-orderly", "transact", "consume"]
    parser.add_argument("verb", choices=verbs)
    parser.add_argument("--names", required=True, help="name server, HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--account", default="", help="access key:secret key")
    parser.add_argument("--pace-ms", type=int, default=0, help="pause between sends")
    parser.add_argument("--tags", default="*", help="tag expression, for example 'A || B'")
    parser.add_argument("--tell", action="append", default=[], help="a property to tell as well")
    parser.add_argument("--work-ms", type=int, default=0, help="how long handling takes")
    parser.add_argument("--fails", type=int, default=0, help="attempts at a message that fail")
    parser.add_argument("--broadcasting", action="store_true")
    parser.add_argument("--orderly", action="store_true")
    answers = "comma separated: COMMIT, ROLLBACK, UNKNOWN, SILENT"
    parser.add_argument("--checks", default="UNKNOWN", help=f"what checks are told, {answers}")
    return parser.parse_args()


def main():
    options = parse()
    signal.signal(signal.SIGTERM, leave)
    if options.verb == "consume":
        consume(options)
    elif options.verb == "transact":
        transact(options)
    else:
        produce(options)


if __name__ == "__main__":
    main()
