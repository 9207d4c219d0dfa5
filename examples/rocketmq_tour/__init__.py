"""The stations of RocketMQ's own tutorial, on a broker of ours. Run it: ``python -m
examples.rocketmq_tour``.
"""
