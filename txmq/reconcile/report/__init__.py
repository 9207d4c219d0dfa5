"""The reports of a run, made from :class:`txmq.reconcile.summary.Run` alone; without Spark."""
