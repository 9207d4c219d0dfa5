"""The tasks that run alongside the request handlers. They sync the log, check transactions, deliver
delayed messages, save tables and register the broker.
"""
