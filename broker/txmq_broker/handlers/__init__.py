"""The request handlers, one short file per family: decode, call the core, encode.

Each family is a class. It receives the parts that it uses, and its ``table()`` lists its handlers.
:mod:`txmq_broker.app` joins the tables into one.
"""
