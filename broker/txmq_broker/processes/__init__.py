"""Several brokers of one cluster on one machine, each in a process of its own."""
