"""The programs of RocketMQ's own tutorials in Python, one file each, against any broker.

::

    python -m examples.rocketmq_tour.sync_producer --names 127.0.0.1:9876
    python -m examples.rocketmq_tour.normal_consumer --names 127.0.0.1:9876

Producers end by themselves, consumers at Ctrl-C or after ``--count`` messages. All of them one
after the other, with a broker of their own: ``python -m examples.rocketmq_tour``.

Each consumer has a group of its own here: members of one group share its queues, and so all of them
have to want the same.
"""
