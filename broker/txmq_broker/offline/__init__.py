"""Readers of a directory while its broker is stopped: inspection, repair and backups."""
