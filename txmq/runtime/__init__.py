"""The four doors to the outside world (clock, network, disk, entropy) and the real things behind
them.

Everything that can surprise a program enters through one of these ports, so the same code runs on a
machine and inside the simulated world of :mod:`txmq.testing`. This package knows nothing of
messages.
"""
