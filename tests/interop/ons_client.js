'use strict';

/*
 * Drives the Node client ali-ons from the command line, with the same verbs, the same JSON lines
 * and the same way to leave as cpp_client.py (stdin closed or SIGTERM; exit code 0).
 *
 * ali-ons offers no one-way send and no orderly consumer: a consumer handles each queue one
 * message at a time (parallelConsumeLimit 1), which keeps the order within a queue.
 */

const crypto = require('node:crypto');
const fs = require('node:fs');
const net = require('node:net');
const readline = require('node:readline');
const tls = require('node:tls');
const { parseArgs } = require('node:util');
const { Consumer, Message, Producer } = require('ali-ons');

const RETRY_PAUSE_MS = 100;

// Its own timers are made for production (up to 30 s); tests wait for what they bring about.
const SHORT_TIMERS = {
  pollNameServerInteval: 1000, // the client's spelling
  heartbeatBrokerInterval: 1000,
  rebalanceInterval: 500, // it ignores the broker's notice that members changed (code 40)
  persistConsumerOffsetInterval: 300,
  pullTimeDelayMillsWhenException: 200,
};

const complain = (...parts) => console.error(...parts);
const quiet = () => {};
const logger = { debug: quiet, info: quiet, warn: complain, error: complain };

function emit(event, facts = {}) {
  process.stdout.write(`${JSON.stringify({ event, at_ms: Date.now(), ...facts })}\n`);
}

function pause(milliseconds) {
  return new Promise(resolve => setTimeout(resolve, milliseconds));
}

function parse() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      names: { type: 'string' },
      topic: { type: 'string' },
      group: { type: 'string' },
      'pace-ms': { type: 'string', default: '0' },
      tags: { type: 'string', default: '*' },
      sql: { type: 'string' },
      tell: { type: 'string', multiple: true, default: [] },
      'work-ms': { type: 'string', default: '0' },
      fails: { type: 'string', default: '0' },
      'attempts-max': { type: 'string', default: '16' },
      broadcasting: { type: 'boolean', default: false },
      account: { type: 'string', default: ':' },
      'tls-ca': { type: 'string' },
    },
  });
  return { verb: positionals[0], ...values };
}

function settings(options) {
  // A truthy httpclient satisfies an assertion; with nameSrv given nothing is fetched by it.
  const [ accessKey, secretKey ] = options.account.split(':');
  const account = accessKey ? { accessKey, secretKey } : {};
  return { ...SHORT_TIMERS, ...account, nameSrv: options.names, httpclient: {}, logger };
}

function build(topic, line) {
  const body = line.body_hex ? Buffer.from(line.body_hex, 'hex') : line.body;
  const message = new Message(topic, line.tags || '', body);
  if (line.keys) message.keys = [ line.keys ];
  if (line.shard) message.shardingKey = line.shard;
  if (line.level) message.delayTimeLevel = line.level;
  if (line.deliver_at_ms) message.properties.TIMER_DELIVER_MS = String(line.deliver_at_ms);
  Object.assign(message.properties, line.properties);
  return message;
}

async function sendUntilAcknowledged(producer, usualTopic, line) {
  const topic = line.topic || usualTopic;
  for (;;) {
    const offered = Date.now();
    try {
      // Built anew each time: a send compresses the body in place.
      const result = await producer.send(build(topic, line));
      emit('sent', {
        topic,
        keys: line.keys,
        offered_ms: offered,
        status: result.sendStatus.replace('SEND_', ''),
        msg_id: result.msgId,
        queue_id: Number(result.messageQueue.queueId),
        queue_offset: Number(result.queueOffset),
      });
      return;
    } catch (error) {
      emit('refused', { keys: line.keys, error: error.message });
      await pause(RETRY_PAUSE_MS);
    }
  }
}

async function produce(options) {
  const producer = new Producer({ ...settings(options), producerGroup: options.group });
  producer.on('error', complain);
  await producer.ready();
  const lines = readline.createInterface({ input: process.stdin });
  process.on('SIGTERM', () => lines.close());
  emit('ready');
  for await (const line of lines) {
    await sendUntilAcknowledged(producer, options.topic, JSON.parse(line));
    await pause(Number(options['pace-ms']));
  }
  await producer.close();
}

function report(message, told) {
  const body = message.body || Buffer.alloc(0);
  emit('message', {
    topic: message.topic,
    msg_id: message.msgId,
    keys: message.keys || '',
    tags: message.tags || '',
    body_size: body.length,
    body_sha256: crypto.createHash('sha256').update(body).digest('hex'),
    queue_id: message.queueId,
    queue_offset: message.queueOffset,
    reconsume_times: message.reconsumeTimes,
    properties: Object.fromEntries(told.map(name => [ name, message.properties[name] ])),
  });
}

async function consume(options) {
  let leaving = false;
  const consumer = new Consumer({
    ...settings(options),
    consumerGroup: options.group,
    isBroadcast: options.broadcasting,
    maxReconsumeTimes: Number(options['attempts-max']),
  });
  consumer.on('error', complain);
  const wanted = options.sql ? { expressionType: 'SQL92', subString: options.sql } : options.tags;
  consumer.subscribe(options.topic, wanted, async message => {
    // A closed consumer counts what it still holds as consumed; a handler that never returns
    // stops its loop instead, and the next member gets those messages.
    if (leaving) await new Promise(quiet);
    report(message, options.tell);
    if (options['work-ms'] !== '0') await pause(Number(options['work-ms']));
    // Its ACTION_RETRY counts for the first attempt only.
    if (message.reconsumeTimes < Number(options.fails)) throw new Error('later');
  });
  await consumer.ready();
  emit('ready');
  await new Promise(resolve => {
    process.on('SIGTERM', resolve);
    process.stdin.on('end', resolve).resume();
  });
  leaving = true;
  await new Promise(setImmediate);
  await consumer.close();
}

async function main() {
  const options = parse();
  if (options['tls-ca']) {
    // The client has no option for TLS; it opens all its connections with this function.
    const ca = fs.readFileSync(options['tls-ca']);
    net.connect = where => tls.connect({ ...where, ca });
  }
  await (options.verb === 'consume' ? consume(options) : produce(options));
  emit('stopped');
  process.exit(0); // its timers would hold the process until they fire
}

// The client lets some promises fail unheard when a broker goes away; that must not end it.
process.on('unhandledRejection', complain);
main().catch(error => {
  complain(error);
  process.exit(1);
});
