"""Programs that show txmq at work."""
