"""A message broker that speaks Apache RocketMQ's remoting protocol, with its own name server."""
