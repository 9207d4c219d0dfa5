"""Connections of others, used alike: SQLAlchemy's, psycopg's and Django's; with ``txmq[sql]``.

What is done with a database is written once, over a :class:`~txmq.databases.door.Door`; how each
kind of connection is used stands in a door of its own. :func:`~txmq.databases.sources.door_of`
finds it. A transaction of which it must be known what became of it begins with a row of ours, see
:mod:`~txmq.databases.witnessed`.
"""
