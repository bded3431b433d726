"""Makes a dataset out of others: the program of the task kind `data`.

    run            the job from beginning to end
    inputs         a source → its rows, one after the other
    pipeline       the steps, and what each counts
    spool          rows on disk, any of them by its number
    filters        filter
    columns        map
    shapes         recognises what a row is
    conversion     one shape → another
    deduplication  dedupe
    random_draws   what chance decides, by seed and number alone
    writer         JSONL and Parquet, with digests
    table_types    the types of the columns of Parquet

Rows are read, changed and written one by one; what needs all of them lies on disk meanwhile.
"""

from tunefleet.workloads.data_pipeline.run import main

__all__ = ["main"]
