"""What a process runs: a broker, a follower, a set member, or a supervisor of several brokers."""
