"""How many parts a run cuts its rows into."""

from txmq.reconcile.spark import set_partition_count


def test_shuffles_are_cut_by_how_many_rows_there_are(spark):
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        set_partition_count(spark, 10**9)
        assert spark.conf.get("spark.sql.shuffle.partitions") == before  # Somebody has said it.
        spark.conf.set("spark.sql.shuffle.partitions", "64")
        set_partition_count(spark, 30_000_000)
        assert spark.conf.get("spark.sql.shuffle.partitions") == "30"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
