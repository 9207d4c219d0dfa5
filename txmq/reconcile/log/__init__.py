"""The broker's log as the third ledger: read from its files, and told as one row per message."""
