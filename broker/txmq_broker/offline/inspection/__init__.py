"""Tools for the log of a stopped broker: they verify, repair, dump and export it."""
