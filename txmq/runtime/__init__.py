"""The four ports to the outside world (clock, network, disk, entropy) and their real
implementations.

All nondeterminism enters through these ports, so the same code runs on a machine and in the
simulated world of :mod:`txmq.testing`. This package knows nothing about messages.
"""
