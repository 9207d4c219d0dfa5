"""One interface to the connections of SQLAlchemy, psycopg and Django; with ``txmq[sql]``.

Database code is written once, over the adapter interface :class:`~txmq.databases.door.Door`. Each
kind of connection has its own adapter, which :func:`~txmq.databases.sources.door_of` finds. A
transaction whose outcome must be certain begins with a guard row, see
:mod:`~txmq.databases.guarded_transaction`.
"""
