"""Runs the consumers, managers and relays of an application in several processes.

``txmq worker app.orders:client --processes 4`` starts a supervisor, which does not import the
application. Each child process finds and opens the parts of its targets (``parts``) and counts the
work of their handlers (``figures``); the supervisor's pages (``pages``) add up these counts.
"""
