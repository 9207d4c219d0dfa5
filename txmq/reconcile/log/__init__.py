"""The broker's log as the third ledger: read from its files, as one row per message."""
