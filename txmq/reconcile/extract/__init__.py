"""The extract of a day: both banks' books and the log as Parquet, with control totals."""
