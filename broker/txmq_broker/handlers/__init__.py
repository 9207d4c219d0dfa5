"""The request handlers, one short file per family: decode, call the core, encode.

Each family is a class that is given the few parts it uses and names its handlers in ``table()``;
:mod:`txmq_broker.app` joins the tables into one.
"""
