"""Builds a dataset from others: the program of the task type `data`.

    run            the job from beginning to end
    inputs         a source → its rows, as a stream
    pipeline       the steps, and their counts
    spool          rows on disk, with random access
    filters        filter
    columns        map
    shapes         recognises the shape of a row
    conversion     one shape → another
    deduplication  dedupe
    random_draws   random choices, by seed and number only
    writer         JSONL and Parquet, with digests
    table_types    the types of the columns of Parquet

Rows are read, changed and written one by one; steps that need all rows keep them on disk.
"""

from tunefleet.workloads.data_pipeline.run import main

__all__ = ["main"]
