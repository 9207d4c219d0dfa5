"""The web console: a client of a cluster, with pages for operators; ``txmq console`` runs it.

A page asks brokers over the wire with :class:`txmq.client.Admin`, as the commands do, and signs
with the account of the person who looks at it. The console keeps only sessions, in memory.
"""
