"""One interface to the connections of SQLAlchemy, psycopg and Django; with ``txmq[sql]``.

The work with a database is written once, over a :class:`~txmq.databases.door.Door`; each kind of
connection has a door of its own, which :func:`~txmq.databases.sources.door_of` finds. A transaction
whose commit must be known for certain begins with a guard row, see
:mod:`~txmq.databases.guarded_transaction`.
"""
