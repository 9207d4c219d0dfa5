"""Drives the C++ RocketMQ client (PyPI rocketmq-client-python) from the command line.

Stands alone: it runs in the interpreter that holds the package and imports nothing of txmq.
Senders read one JSON message per line from stdin; every fact goes to stdout as one JSON line.
Closing stdin or SIGTERM makes it leave in good order: the client is shut down, exit code 0.

Bodies are text without NUL: the wrapper hands them to C as NUL-terminated strings.
"""

import argparse
import hashlib
import json
import signal
import sys
import threading
import time

from rocketmq.client import ConsumeStatus, Message, Producer, PushConsumer
from rocketmq.exceptions import RocketMQException
from rocketmq.ffi import MessageModel

RETRY_PAUSE_S = 0.1
_output = threading.Lock()


class Leave(Exception):
    """SIGTERM arrived."""


def leave(signum, frame):
    raise Leave


def emit(event, **facts):
    line = json.dumps({"event": event, **facts}) + "\n"
    with _output:  # callbacks come from the library's own threads
        sys.stdout.write(line)
        sys.stdout.flush()


def text(value):
    return (value or b"").decode()


def build(topic, line):
    message = Message(topic)
    message.set_body(line["body"])
    if line.get("keys"):
        message.set_keys(line["keys"])
    if line.get("tags"):
        message.set_tags(line["tags"])
    return message


def attempt(producer, verb, topic, line):
    message = build(topic, line)
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
        "status": result.status.name,
        "msg_id": result.msg_id,
        "queue_offset": result.offset,
    }


def send_until_acknowledged(producer, verb, topic, line):
    """A broker that restarts refuses for a while; the message is offered until it is taken."""
    while True:
        try:
            facts = attempt(producer, verb, topic, line)
        except RocketMQException as error:
            emit("refused", keys=line.get("keys"), error=str(error))
            time.sleep(RETRY_PAUSE_S)
        else:
            emit("sent", keys=line.get("keys"), **facts)
            return


def produce(options):
    producer = Producer(options.group, orderly=options.verb == "send-orderly")
    producer.set_namesrv_addr(options.names)
    producer.start()
    emit("ready")
    try:
        for line in sys.stdin:
            send_until_acknowledged(producer, options.verb, options.topic, json.loads(line))
            time.sleep(options.pace_ms / 1000)
    except Leave:
        pass
    finally:
        producer.shutdown()
    emit("stopped")


def handle(message):
    body = message.body or b""
    emit(
        "message",
        topic=message.topic,
        msg_id=message.id,
        keys=text(message.keys),
        tags=text(message.tags),
        body_size=len(body),
        body_sha256=hashlib.sha256(body).hexdigest(),
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        reconsume_times=message.reconsume_times,
    )
    return ConsumeStatus.CONSUME_SUCCESS


def consume(options):
    model = MessageModel.BROADCASTING if options.broadcasting else MessageModel.CLUSTERING
    consumer = PushConsumer(options.group, orderly=options.orderly, message_model=model)
    consumer.set_namesrv_addr(options.names)
    consumer.subscribe(options.topic, handle, options.tags)
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
    parser.add_argument("verb", choices=["send", "send-oneway", "send-orderly", "consume"])
    parser.add_argument("--names", required=True, help="name server, HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--pace-ms", type=int, default=0, help="pause between sends")
    parser.add_argument("--tags", default="*", help="tag expression, for example 'A || B'")
    parser.add_argument("--broadcasting", action="store_true")
    parser.add_argument("--orderly", action="store_true")
    return parser.parse_args()


def main():
    options = parse()
    signal.signal(signal.SIGTERM, leave)
    if options.verb == "consume":
        consume(options)
    else:
        produce(options)


if __name__ == "__main__":
    main()
