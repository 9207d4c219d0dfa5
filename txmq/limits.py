"""The limits of txmq and the reason for each value. Exceeding one raises a typed error."""

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
"""Messages in one batch. The smallest take 23 bytes, so a 4 MiB body could hold 180,000."""

JSON_DEPTH_MAX: Final = 64
"""Nesting in a header or body; the deepest one RocketMQ has is 7."""

HEADER_BYTES_MAX: Final = 256 * 1024
"""One header. The longest a client needs is 200 KB: a send with 32,767 bytes of properties, each
escaped as six characters. Decoding this much takes a few milliseconds; 12 MB took 0.6 s."""

REMARK_CHARS_MAX: Final = 8 * 1024
"""The text of a refusal; longer text is cut. It may quote the peer, with each character escaped as
seven, and must still fit a header."""

HEADER_BYTES_USUAL: Final = 4 * 1024
"""A header that is decoded at once; almost all are shorter. The server counts the fields of a
longer one first and gives it a separate turn, so that several strangers' long headers never share
one."""

HEADER_FIELDS_MAX: Final = 1_024
"""Fields in one header; the largest known has 20."""

PROPERTIES_OF_HALF_MAX: Final = PROPERTIES_BYTES_MAX - 256
"""Properties of a half message or a retry. The broker adds more, and those must fit too."""

CHECKS_MAX: Final = 8_192
"""Open checks of one broker; further transactions wait their turn."""

CHECKS_PER_PRODUCER_MAX: Final = 1_024
"""Open checks at one producer: a stock client queues 2,000 and drops the rest without a word."""

RECENT_TRANSACTIONS: Final = 262_144
"""Decided transactions kept in memory, so that a repeated request needs no search."""

RECALLED_TRANSACTIONS: Final = 4_096
"""Decided transactions that a broker reads back when it starts, in a tenth of a second."""

REASON_CHARS_MAX: Final = 500
"""A consumer's reason for a failed message; the broker keeps it with the dead letter."""

PAYLOAD_REASON_CHARS_MAX: Final = 300
"""Why a body does not fit the type its handler declares; leaves room for the rest of the consumer's
reason."""

DELAY_LEVELS_MAX: Final = 64
"""Delay levels of one broker; each is a queue, and RocketMQ has 18."""

DELIVERED_TOGETHER_MAX: Final = 500
"""Due messages that the broker writes in one go, which blocks it for about ten milliseconds."""

DELIVERED_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes of due messages written in one go; they must all fit one span."""

RECALLED_TOGETHER_MAX: Final = 256
"""Delayed messages with the same id; a recall reads all of them. A producer that gets no answer
sends two or three copies, and each consumer group adds some tens of retries."""

RECALLED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes that one recall reads: three of the largest messages, in about ten milliseconds."""

KEYS_PER_MESSAGE_MAX: Final = 64
"""Index keys of one message; further keys are stored but not searchable."""

SPAN_BYTES_MAX: Final = 8 * 1024 * 1024
"""Records written to the log in one go; bounds the loss from one torn write."""

UNSYNCED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Records that wait for a sync; beyond it sends get "busy". Bounds memory on a slow disk."""

PULL_MESSAGES_MAX: Final = 32
"""Messages in one answer to a pull, as a stock broker answers from memory."""

PULL_BYTES_MAX: Final = 256 * 1024
"""Bytes in one answer to a pull; a single larger message is still returned whole."""

PULL_SCAN_MAX: Final = 800
"""Index entries one pull scans before it answers "none matched, go on from here"."""

YOUNG_LOG_BYTES: Final = 4 * 1024**3
"""A new group starts at a queue's first message if at most this much was stored after it. A stock
broker does so while the message is in the newest part of the log, up to 40 % of its memory."""

HELD_PULLS_MAX: Final = 100_000
"""Pulls held until messages arrive; the broker answers one more at once."""

RELAYED_MAX: Final = 10_000
"""Requests relayed to clients and not answered yet; one more gets "busy"."""

CONNECTION_BACKLOG_BYTES: Final = 4 * 1024 * 1024
"""Answers a peer has not read; beyond it we stop reading its requests."""

PUSH_BACKLOG_BYTES: Final = 16 * 1024 * 1024
"""Answers a peer has not read; beyond it we close its connection as dead."""

UNFINISHED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of unfinished frames over all connections of a server: two of the largest. Beyond it the
server closes the connections whose frames began first; an honest frame takes milliseconds."""

OWED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Unread answers over all connections of a server, without those in kernel buffers. Beyond it the
server closes the connections whose answers have been unread longest."""

OWED_BYTES_SPARED: Final = 16 * 1024
"""Unread answers of one connection that are too few to count: a few routes."""

TURN_S: Final = 0.005
"""How long a server works on the requests of one read before it serves other connections. A read
holds up to 256 KiB; a thousand small requests that each write a file took seconds."""

KEY_VALUES_MAX: Final = 10_000
"""Key-value entries of a name server; each names the queues of one topic with an order."""

KEY_VALUE_BYTES_MAX: Final = 1024 * 1024
"""Characters of all key-value entries of a name server; 10,000 real entries take half of that. Each
change rewrites all of them twice, which takes some 10 ms in the disk's thread."""

TLS_HANDSHAKE_S: Final = 10.0
"""Seconds for a peer's first byte, and again for its TLS handshake: several round trips on a bad
line. Until then a silent peer costs only a socket."""

TLS_HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""Bytes of an incomplete TLS handshake. OpenSSL itself accepts 128 KiB for a hello and 100 KiB of
certificates; they usually take 2 and 5 KiB."""

REPEATED_LINES_MAX: Final = 1_000
"""Distinct log lines about refused peers whose repeats are counted; a stranger can cause any number
of lines."""

ROUTE_TOPICS_MAX: Final = 300_000
"""Topics a name server keeps; it refuses a broker that registers more. Its list of all topics must
fit one frame, even with names of 50 characters."""

ROUTE_BROKERS_MAX: Final = 10_000
"""Broker replicas that a name server keeps; each has its own connection."""

TOPICS_MAX: Final = 150_000
"""Topics one broker keeps, including retry and dead-letter topics. Each takes 2 KiB of memory with
four queues, and a broker loads 100,000 of them in 2 seconds when it starts."""

GROUPS_MAX: Final = 50_000
"""Consumer groups one broker keeps; each has a retry topic."""

WAITING_RETRIES_MAX: Final = 100_000
"""Combinations of group, topic and retry number for which a broker counts waiting messages: 20 MiB.
Beyond it, messages of further combinations count only for their group."""

QUEUES_OF_NEW_TOPICS: Final = 4
"""Default number of queues of a new topic at each broker, whether a command, a page or a first
message creates it. RocketMQ's clients ask for four too."""

MADE_TOPICS_MAX: Final = 40_000
"""Beyond this many topics at a broker, sends and consumers create no more. The rest up to
``TOPICS_MAX`` is for operators, so that a stranger who fills the table cannot lock them out."""

MADE_GROUPS_MAX: Final = 40_000
"""Beyond this many groups at a broker, consuming creates no more; see ``MADE_TOPICS_MAX``."""

MADE_TOGETHER_MAX: Final = 2_000
"""Topics, or groups, that clients may create in one burst: enough to start two of the largest."""

MADE_PER_SECOND_MAX: Final = 20
"""Topics, or groups, that clients may create per second after the burst: 1.7 million a day."""

POSTPONED_MAX: Final = 2_000
"""Requests that wait for their topic or key value to be saved; one more gets "unavailable"."""

POSTPONED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of the bodies, or key values, in these waiting requests."""

GROUPS_PER_CLIENT_MAX: Final = 1_000
"""Producer groups, and consumer groups, of one connection; a client has one connection to a
broker, and real programs have a handful of groups."""

MEMBERS_MAX: Final = 100_000
"""Groups of all connections together: ten of each of 10,000 connections. Each takes some 500
bytes."""

SUBSCRIPTIONS_MAX: Final = 100_000
"""Subscriptions of all connected groups together; each takes some 500 bytes."""

GROUPS_SPARED: Final = 4
"""A connection with no more groups than this, and no more subscriptions in each, is accepted even
beyond ``MEMBERS_MAX`` and ``SUBSCRIPTIONS_MAX``: a stranger who fills those must not lock out
others."""

HEARTBEAT_BYTES_MAX: Final = 1536 * 1024
"""A heartbeat. A thousand consumer groups with two topics each take half of that; reading this much
takes about ten milliseconds."""

LOCK_BYTES_MAX: Final = 1024 * 1024
"""A request to lock queues: 8,000 queues with long names. Reading and locking them takes about ten
milliseconds."""

HEARTBEAT_AT_ONCE_BYTES: Final = 8 * 1024
"""A heartbeat that is served at once, in a tenth of a millisecond; a longer one is served in parts.
Real programs have a handful of groups."""

LONG_REQUESTS_BYTES_MAX: Final = 16 * 1024 * 1024
"""Heartbeats that wait to be served in parts: ten of the longest, or a second of work."""

GROUPS_TOGETHER: Final = 50
"""Groups of a long heartbeat that are recorded in one part: with ten subscriptions each, a few
tenths of a millisecond."""

SUBSCRIPTIONS_PER_CLIENT_MAX: Final = 10_000
"""Subscriptions in one heartbeat: ten for each of a thousand groups."""

LOCKS_MAX: Final = 100_000
"""Locked queues of a broker; each takes some 300 bytes, and expires after a minute."""

OFFSETS_MAX: Final = 1_000_000
"""Committed offsets of a broker, one for each queue of each group; saving them takes a second."""

UNKNOWN_OFFSETS_MAX: Final = 10_000
"""Committed offsets of groups that the broker does not know. They are rare: the client's group
belongs to another broker, or consumes nothing here yet."""

SKIPS_MAX: Final = 10_000
"""Ranges of damaged messages that groups skip on an operator's order."""

SUBSCRIPTION_CHARS_MAX: Final = 16 * 1024
"""A filter expression in a pull; the broker keeps it while it holds the pull."""

FILTER_DEPTH_MAX: Final = 64
"""Nesting in one condition: recursive functions read and evaluate it."""

FILTER_OPERANDS_MAX: Final = 1_024
"""Properties and constants in one condition, without the texts of IN; each costs up to half a
microsecond a message."""

FILTER_NUMBER_CHARS_MAX: Final = 1_100
"""Digits of a number in a property; enough to write every double without rounding."""

FILTER_SCAN_BYTES_MAX: Final = 2 * 1024 * 1024
"""Record bytes one pull reads for its condition before it answers "none matched"."""

FILTER_WORK_MAX: Final = 32 * 1024 * 1024
"""Property characters one pull scans, once for each operand, plus a thousand for each operand:
some 20 ms."""

FILTERS_CHARS_MAX: Final = 1024 * 1024
"""Text of all conditions a broker keeps compiled; each character takes up to 100 bytes."""

HELD_FILTERS_CHARS_MAX: Final = 4 * 1024 * 1024
"""Text of the filters in held pulls; beyond it the broker answers a pull at once."""

WOKEN_TOGETHER_MAX: Final = 512
"""Held pulls, or operands of their filters, that one arrival wakes in one go: about ten
milliseconds. Hundreds of long conditions took a second for one large message."""

LAX_HEADER_BYTES_MAX: Final = 2 * 1024
"""A header that is not strict JSON: the slow reader takes up to 1.3 ms per KiB. No known client
writes one."""

LAX_BODY_BYTES_MAX: Final = 128 * 1024
"""A body that is not strict JSON. Statistics, which only clients read, have their own limit."""

TURNS_MAX: Final = 4_096
"""Topics whose round-robin position a client remembers; a forgotten one restarts at random."""

FAULTS_MAX: Final = 1_024
"""Brokers whose last latency a client remembers; the largest clusters have a few hundred."""

FAILED_MESSAGES_MAX: Final = 1024
"""Messages whose last failure a handler remembers, so that it logs each traceback once."""

FORMS_MAX: Final = 4_096
"""Prepared headers a producer keeps, one for each topic at each broker, half a kilobyte each."""

FETCHED_MESSAGES_MAX: Final = 10_000
"""Messages that a pull consumer has fetched and the application has not taken yet, over all queues;
as in stock clients."""

HUNG_CHECKS_MAX: Final = 32
"""Hung check handlers of one producer, each with up to one thread; at the limit it runs no more."""

STORIES_MAX: Final = 10_000
"""Transactions of one producer with open spans; beyond it the oldest spans end. They pile up only
if the application sends half messages and never decides them."""

MESSAGES_OF_TRANSACTION_MAX: Final = 64
"""Each is half a message more to store before the commit, and to check if its END is lost."""

XID_CHARS_MAX: Final = 255
"""A transaction's id in the fence. Ours have 32; a key in MySQL has room for no more."""

XA_THREADS: Final = 8
"""Branches of one blocking database that end concurrently, one connection each."""

GID_CHARS_MAX: Final = 199
"""The name of a prepared transaction; PostgreSQL's limit."""

LATE_SECONDS_MAX: Final = 300
"""How much younger than its fence row a half message may be. Rows are kept ten minutes longer than
needed; half of that covers clock differences."""

RESOURCE_THREADS: Final = 5
"""Concurrent checks of a blocking database, one connection each."""

FENCE_CHECKS_TOGETHER: Final = 256
"""Checks that share a database transaction: enough to make its cost negligible, and it still holds
its locks for only some milliseconds."""

FENCE_ROWS_REMOVED: Final = 500
"""Fence rows that one database transaction deletes: some milliseconds of locks."""

KEY_CHARS_MAX: Final = 255
"""An idempotency key, and its scope; a MySQL index has room for two columns of this length, with
any characters."""

STORED_RESULT_BYTES_MAX: Final = 64 * 1024
"""A result kept for repeated calls. Each repeat reads it, and clean-up must pass it. Store larger
results in a table of the application, and their key here."""

DONE_ROWS_REMOVED: Final = 1_000
"""Idempotency rows that one database transaction deletes: some milliseconds of locks."""

REPLIES_AWAITED_MAX: Final = 16_384
"""Requests of one producer that wait for their replies; each keeps a timer and a task."""

TRACES_MAX: Final = 10_000
"""Trace records that wait to be sent, of some 300 bytes each; one more drops the oldest."""

SLOTS: Final = 64
"""Slots of an outbox; at most this many relays share its work."""

LANE_CHARS_MAX: Final = 255
"""A lane's name; an index in MySQL has room for no more."""

MESSAGE_ID_CHARS_MAX: Final = 255
"""A message's id in an outbox; ours have 32."""

OUTBOX_LANES_KEPT: Final = 50_000
"""Lanes whose position a relay remembers, some 300 bytes each; it looks a forgotten one up
again."""

OUTBOX_RESTING_MAX: Final = 10_000
"""Rows and lanes that a relay pauses because brokers refuse their messages; one more makes it retry
the first early."""

RELAY_THREADS: Final = 4
"""Concurrent statements of a relay on a blocking database: it reads, deletes, renews its lease, and
reports figures."""

CHECKED_TRANSACTIONS_KEPT: Final = 8_192
"""Transactions whose latest checks a broker remembers, for operators to look at."""

CHECKS_KEPT: Final = 8
"""The latest checks kept for each of these transactions; at most 25 MB in all."""

RECHECKS_KEPT: Final = 4
"""Operators' latest recheck requests, kept for each of these transactions; at most 30 MB in all."""

CONSOLE_SESSIONS_MAX: Final = 200
"""Sessions of a web console; one more ends the session that was idle longest."""

CONSOLE_REQUESTS_MAX: Final = 400
"""Connections of a web console, not counting those that wait for a request; one more gets 503. A
browser opens at most six."""

CONSOLE_WAITING_MAX: Final = 256
"""Connections of a web console whose next request has not arrived completely. One more closes the
oldest, so that half-sent requests keep nobody out."""

CONSOLE_STREAMS_MAX: Final = 200
"""Pages of a web console that receive live changes, each over its own connection. One more gets 503
and keeps what it shows. The other connections remain for requests."""

CONSOLE_STREAMS_OF_SESSION_MAX: Final = 4
"""Live pages of one session; one more ends the oldest. A browser has six connections to one host
and needs the others to load pages. Hidden tabs hold no connection."""

CONSOLE_FORM_BYTES_MAX: Final = 256 * 1024
"""A form of a web console; the largest has the body of a test message."""

CONSOLE_ROWS: Final = 50
"""Rows of a page in a web console. Some rows take two requests to a broker."""

CONSOLE_SORTED_MAX: Final = 200
"""Topics or groups that a console page sorts by their figures, which needs the figures of all of
them. Longer lists are sorted by name."""

CONSOLE_RESENT_MAX: Final = 500
"""Dead letters that one click in a web console resends: some seconds."""

WORKER_PROCESSES_MAX: Final = 256
"""Processes of one worker; each runs its own interpreter, which takes 50 MB."""

WATCHED_FILES_MAX: Final = 10_000
"""Source files that a reloading worker looks at three times a second: some 30 ms."""

HTTP_REQUEST_BYTES_MAX: Final = 8 * 1024
"""A request for a metrics or health page; a browser's takes one or two thousand bytes."""

HTTP_ANSWERS_MAX: Final = 16
"""Metrics and health pages made concurrently; only a few programs scrape and probe. One more
request gets 503. A server keeps twice as many unread pages, then closes the oldest."""

HTTP_WAITING_MAX: Final = 512
"""Connections whose metrics or health request is incomplete. One more closes the oldest, so that
half-sent requests keep nobody out; an honest request arrives within milliseconds."""

METRIC_SERIES_MAX: Final = 1_000
"""Series of one metric: some 4 ms of a scrape. Topics and groups that came later have no series."""
