"""Every bound txmq keeps, with the reason for its value. Reaching one is always a typed error."""

from __future__ import annotations

from typing import Final

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""One frame with its length prefix; what RocketMQ's own decoder accepts on either side."""

MESSAGE_BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""One message body, RocketMQ's ``maxMessageSize``; configurable in the broker and the client."""

PROPERTIES_BYTES_MAX: Final = 32_767
"""One message's properties: their length is a signed 16-bit number in the stored record."""

TOPIC_CHARS_MAX: Final = 127
"""A topic's name: its length is one signed byte in the stored record every client can read."""

GROUP_CHARS_MAX: Final = 255
"""A group's name, as stock clients check it."""

CLIENT_ID_CHARS_MAX: Final = 1_024
"""A client's id; stock clients put addresses, and for traces all name servers, into theirs."""

BATCH_MESSAGES_MAX: Final = 65_536
"""Messages in one batch: the smallest take 23 bytes, so a 4 MiB body could claim 180,000."""

JSON_DEPTH_MAX: Final = 64
"""Nesting in a header or body; the deepest one RocketMQ has is 7."""

HEADER_FIELDS_MAX: Final = 1_024
"""Fields in one header; the largest known has 20."""

PROPERTIES_OF_HALF_MAX: Final = PROPERTIES_BYTES_MAX - 256
"""A half message's properties, or a retry's; what the broker adds to them must still fit."""

CHECKS_MAX: Final = 8_192
"""Transactions whose producers are being asked at once; the others wait their turn."""

CHECKS_PER_PRODUCER_MAX: Final = 1_024
"""Of these at one producer: a stock client queues 2,000 and drops the rest without a word."""

RECENT_TRANSACTIONS: Final = 262_144
"""Decided transactions that are known without a search: a repeated request costs no more."""

RECALLED_TRANSACTIONS: Final = 4_096
"""Of these, how many a start reads again; a tenth of a second of its time."""

REASON_CHARS_MAX: Final = 500
"""What a consumer may say about a message it could not handle; kept with a dead letter."""

DELAY_LEVELS_MAX: Final = 64
"""Delay levels of one broker; each is a queue, and RocketMQ has 18."""

DELIVERED_TOGETHER_MAX: Final = 500
"""Messages whose time has come that are written in one go; some ten milliseconds of everybody's
time."""

DELIVERED_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes of these; the span they go into must have room for them all."""

RECALLED_TOGETHER_MAX: Final = 256
"""Messages that wait under one id, all of which a recall must read: a producer that is not answered
sends two or three, and each group of consumers has some tens of retries."""

RECALLED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of these: three of the largest messages, and some ten milliseconds of everybody's time."""

KEYS_PER_MESSAGE_MAX: Final = 64
"""Index keys of one message; more are stored but cannot be searched."""

SPAN_BYTES_MAX: Final = 8 * 1024 * 1024
"""Records written to the log in one go: bounds what one torn write can take with it."""

UNSYNCED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Records waiting for the disk before sends are answered "busy": bounds memory on a slow disk."""

PULL_MESSAGES_MAX: Final = 32
"""Messages in one answer to a pull, as a stock broker answers from memory."""

PULL_BYTES_MAX: Final = 256 * 1024
"""Bytes in one answer to a pull, though one message is always given whole."""

PULL_SCAN_MAX: Final = 800
"""Index entries one pull looks through before it answers "none matched, go on from here"."""

YOUNG_LOG_BYTES: Final = 4 * 1024**3
"""A new group starts at a queue's first message while no more than this was stored since; a stock
broker draws the line where that message leaves 40 % of its memory."""

HELD_PULLS_MAX: Final = 100_000
"""Pulls held open for messages to arrive; one more is answered at once."""

RELAYED_MAX: Final = 10_000
"""Requests passed on to clients that wait for their answer; one more is answered "busy"."""

CONNECTION_BACKLOG_BYTES: Final = 4 * 1024 * 1024
"""Answers a peer has not read yet before we stop reading its requests."""

PUSH_BACKLOG_BYTES: Final = 16 * 1024 * 1024
"""Answers a peer has not read yet before it is taken for dead and cut off."""

ROUTE_TOPICS_MAX: Final = 100_000
"""Topics a name server keeps; a broker that registers more is refused."""

TOPICS_MAX: Final = 50_000
"""Topics one broker keeps: all of them must fit the one frame that registers it."""

GROUPS_MAX: Final = 50_000
"""Consumer groups one broker keeps; each has a retry topic."""

GROUPS_PER_CLIENT_MAX: Final = 1_000
"""Groups one heartbeat may name; programs have a handful."""

SUBSCRIPTION_CHARS_MAX: Final = 16 * 1024
"""A filter expression that comes with a pull; it may be held with it."""

FILTER_DEPTH_MAX: Final = 64
"""Nesting in one condition: it is read and evaluated by functions that call each other."""

FILTER_OPERANDS_MAX: Final = 1_024
"""Properties and constants in one condition, the texts of IN not counted: each may cost a message
half a microsecond."""

FILTER_NUMBER_CHARS_MAX: Final = 1_100
"""Digits of a number in a property: with so many every double can be written without rounding."""

FILTER_SCAN_BYTES_MAX: Final = 2 * 1024 * 1024
"""Records one pull reads to look at their properties before it answers "none matched"."""

FILTER_WORK_MAX: Final = 32 * 1024 * 1024
"""Characters of properties one pull looks through, once for each operand, and another thousand for
each: some 20 ms."""

FILTERS_CHARS_MAX: Final = 1024 * 1024
"""Text of all conditions a broker keeps ready; each character stands for up to 100 bytes."""

HELD_FILTERS_CHARS_MAX: Final = 4 * 1024 * 1024
"""Text of the filters that held pulls brought themselves; with more a pull is answered at once."""

WOKEN_TOGETHER_MAX: Final = 512
"""Held pulls that one arrival may wake in one go, or operands of their filters: some ten
milliseconds; hundreds of long conditions took a second for one large message."""

LAX_HEADER_BYTES_MAX: Final = 64 * 1024
"""A header that is no strict JSON: reading 1 MiB the slow way would stop everybody for a second."""

LAX_BODY_BYTES_MAX: Final = 128 * 1024
"""A body that is no strict JSON, likewise; statistics, which only clients read, have their own."""

TURNS_MAX: Final = 4_096
"""Topics whose turn a client remembers; one that is forgotten begins anew, where chance says."""

FAULTS_MAX: Final = 1_024
"""Brokers whose last latency a client remembers; the largest clusters have a few hundred."""

FAILED_MESSAGES_MAX: Final = 1024
"""Messages whose last failure a handler remembers, so that the log has each traceback once."""

FORMS_MAX: Final = 4_096
"""Topics at brokers whose prepared headers a producer keeps, of half a kilobyte each."""

FETCHED_MESSAGES_MAX: Final = 10_000
"""Messages that a pull consumer has fetched, of all its queues, and nobody has asked for yet; as in
stock clients."""

HUNG_CHECKS_MAX: Final = 32
"""Check handlers of one producer that hang, each perhaps with a thread, before no more are run."""

STORIES_MAX: Final = 10_000
"""Transactions of one producer whose spans are open before those of the oldest are ended; they pile
up only where somebody sends half messages and never decides them."""

XID_CHARS_MAX: Final = 255
"""A transaction's id in the fence; ours have 32, and a key of MySQL's has room for no more."""

XA_THREADS: Final = 8
"""Branches of one blocking database that are ended at once, one connection each."""

GID_CHARS_MAX: Final = 199
"""The name of a prepared transaction; PostgreSQL's bound."""

LATE_SECONDS_MAX: Final = 300
"""How much younger than its row of a fence a half message may be. Rows are kept ten minutes beyond
their time, half of it for clocks that differ."""

RESOURCE_THREADS: Final = 5
"""Checks of a blocking database at once, one connection each; as many as are worked on at once."""

FENCE_CHECKS_TOGETHER: Final = 256
"""Checks that share a database transaction: then its own cost is no longer seen, and its locks are
held for some milliseconds."""

FENCE_ROWS_REMOVED: Final = 500
"""Rows of the fence that one database transaction removes: some milliseconds of locks."""

KEY_CHARS_MAX: Final = 255
"""A key of something that is done once, and its scope; an index of MySQL's has room for two such
columns of any characters."""

STORED_RESULT_BYTES_MAX: Final = 64 * 1024
"""A result that is kept for whoever asks again; it is read each time, and lies in the way of those
who clean. Larger ones belong into a table of the application's, and their key here."""

DONE_ROWS_REMOVED: Final = 1_000
"""Rows of what is done that one database transaction removes: some milliseconds of locks."""

REPLIES_AWAITED_MAX: Final = 16_384
"""Requests of one producer that wait for their replies; each keeps a timer and a task."""

TRACES_MAX: Final = 10_000
"""Trace records that wait to be sent, of some 300 bytes each; one more drops the oldest."""

SLOTS: Final = 64
"""Shares of an outbox; so many relays can have one each."""

LANE_CHARS_MAX: Final = 255
"""A lane's name: an index of MySQL's has room for no more."""

MESSAGE_ID_CHARS_MAX: Final = 255
"""A message's id in an outbox; ours have 32, and whoever brings one brings no novel."""

OUTBOX_LANES_KEPT: Final = 50_000
"""Lanes of which a relay remembers how far it has come, of some 300 bytes each; one that is
forgotten is looked up anew."""

OUTBOX_RESTING_MAX: Final = 10_000
"""Rows and lanes that a relay lets rest because nobody takes their messages; of one more, the first
is tried again early."""

RELAY_THREADS: Final = 4
"""Statements of a relay at once where its database blocks: it reads, deletes, renews its lease, and
somebody asks for figures."""
