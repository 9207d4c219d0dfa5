"""What a process of a broker set is: a leader, a follower of one, or a member that may be both."""
