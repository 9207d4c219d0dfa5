"""One interface to the connections of SQLAlchemy, psycopg and Django; with ``txmq[sql]``.

Database code is written once, over the interface :class:`~txmq.databases.adapter.DatabaseAdapter`.
Each kind of connection has its own adapter, which :func:`~txmq.databases.sources.adapter_of` finds.
A transaction whose outcome must be certain begins with a guard row, see
:mod:`~txmq.databases.guarded_transaction`.
"""
