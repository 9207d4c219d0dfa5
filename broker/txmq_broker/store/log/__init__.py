"""The commit log itself: its files, its spans, whose log it is, and how far it is durable.

Nothing in here knows queues, keys, half messages or delayed messages.
"""
