"""The reports of a run: a page, JSON, metrics, and a few lines in a terminal.

All of it is made from :class:`txmq.reconcile.summary.Run` alone, and needs no Spark.
"""
