"""Single requests to brokers and name servers: topics, groups, offsets, messages, transactions."""
