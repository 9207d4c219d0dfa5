"""Nightly reconciliation of three ledgers: both banks' books and the log, on Spark."""
