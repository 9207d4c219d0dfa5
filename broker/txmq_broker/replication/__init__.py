"""The copies of a log: a leader ships it, followers copy it, and a lease says who leads."""
