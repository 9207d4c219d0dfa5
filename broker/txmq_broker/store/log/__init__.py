"""The commit log itself: its files, its spans, its identity, and its durable end.

This package does not know queues, keys, half messages or delayed messages.
"""
