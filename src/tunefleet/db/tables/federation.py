"""Tables of federations; part of the schema of `tables`.

Files of updates and versions are identified by digest and kept by pins: an update's until its round has ended, a
version's as long as the federation exists.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, text

from tunefleet.db.tables.core import SERIAL, metadata

_OPEN: Final = text("status IN ('sampling', 'collecting', 'aggregating', 'publishing')")
_COUNTED: Final = text("state = 'counted'")
_WAITING: Final = text("state = 'waiting'")
_OF_A_ROUND: Final = text("round IS NOT NULL")

# `seq` is the job number of the upload guide. `contract`: requirements on each update, taken from the first one;
# `version`: the newest, 0 for none; `round`: the newest; `task_seq`: the training task whose shards take part.
federations = Table(
    "federations",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("project", String, nullable=False),
    Column("name", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("status", String, nullable=False),
    Column("spec", Text, nullable=False),
    Column("contract", Text),
    Column("callback_secret", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("task_seq", BigInteger, index=True),
    sqlite_autoincrement=True,
)

# Known workers of a federation; `values_digest`: digest of the last weights of each; `attempt`: the newest.
federation_members = Table(
    "federation_members",
    metadata,
    Column("federation_seq", BigInteger, primary_key=True),
    Column("worker", String, primary_key=True),
    Column("callback_url", Text),
    Column("updates", Integer, nullable=False),
    Column("num_examples", BigInteger, nullable=False),
    Column("step", BigInteger),
    Column("round", Integer),
    Column("loss", Double),
    Column("values_digest", String),
    Column("joined_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("attempt", Integer),
    sqlite_with_rowid=False,
)

# `holder` works on a closed round until `lease_until`; without a holder that is the time of the next try.
#
# `participants`: JSON list, null if any worker may take part; `result`: the aggregate to publish.
#
federation_rounds = Table(
    "federation_rounds",
    metadata,
    Column("federation_seq", BigInteger, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("status", String, nullable=False),
    Column("reason", String),
    Column("error", Text),
    Column("participants", Text),
    Column("opened_at", Double, nullable=False),
    Column("deadline_at", Double),
    Column("closed_at", Double),
    Column("finished_at", Double),
    Column("holder", String),
    Column("lease_until", Double, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("result", Text),
    Column("version", Integer),
    Index("ix_federation_rounds_open", "federation_seq", sqlite_where=_OPEN),
    sqlite_with_rowid=False,
)

# `round`: the round in which an update counts; null while it waits for one. `tokenizer`: JSON, path → digest.
#
# `upload_digest`: digest of the weights as uploaded; `model_digest`: as floats, if they were quantized.
# `rows_before`: training rows that earlier updates cover, if the worker reports it; `rows_after`: the rows up to the
# end of this one.
federation_updates = Table(
    "federation_updates",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("federation_seq", BigInteger, nullable=False),
    Column("worker", String, nullable=False),
    Column("round", Integer),
    Column("state", String, nullable=False),
    Column("reason", Text),
    Column("step", BigInteger, nullable=False),
    Column("num_examples", BigInteger, nullable=False),
    Column("base_version", Integer),
    Column("upload_digest", String),
    Column("model_digest", String),
    Column("values_digest", String),
    Column("config", Text),
    Column("tokenizer", Text, nullable=False),
    Column("upload_dtype", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("norm", Double),
    Column("loss_before", Double),
    Column("loss_after", Double),
    Column("weight", Double),
    Column("created_at", Double, nullable=False),
    Column("settled_at", Double),
    Column("attempt", Integer),
    Column("rows_before", BigInteger),
    Column("rows_after", BigInteger),
    Index("ix_federation_updates_round", "federation_seq", "round"),
    Index("ix_federation_updates_worker", "federation_seq", "worker", "step"),
    Index(
        "uq_federation_updates_counted",
        "federation_seq", "round", "worker", unique=True, sqlite_where=_COUNTED,
    ),
    Index(
        "uq_federation_updates_waiting",
        "federation_seq", "worker", unique=True, sqlite_where=_WAITING,
    ),
    sqlite_autoincrement=True,
)  # fmt: skip

# `equals`: the version that a rollback restored; `files`: JSON list of path, digest, size; `archive_…`: their
# `.tar.gz`, built on the first request; `state_digest`: the outer optimizer's state; `summary` and `report`: JSON, the
# part for lists and the rest.
federation_versions = Table(
    "federation_versions",
    metadata,
    Column("federation_seq", BigInteger, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("round", Integer),
    Column("equals", Integer),
    Column("artifact_id", String, nullable=False),
    Column("strategy", String, nullable=False),
    Column("files", Text, nullable=False),
    Column("archive_digest", String),
    Column("archive_size_bytes", BigInteger),
    Column("state_digest", String),
    Column("summary", Text, nullable=False),
    Column("report", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Index(
        "uq_federation_versions_round",
        "federation_seq", "round", unique=True, sqlite_where=_OF_A_ROUND,
    ),
    sqlite_with_rowid=False,
)  # fmt: skip

# Chunks of a federation's data: `free`, `claimed` until `lease_until`, or `done`.
federation_chunks = Table(
    "federation_chunks",
    metadata,
    Column("federation_seq", BigInteger, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("digest", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("state", String, nullable=False),
    Column("worker", String),
    Column("lease_until", Double),
    Column("claims", Integer, nullable=False),
    Column("done_at", Double),
    sqlite_with_rowid=False,
)

# Federations whose token was replaced: how often, and until when the previous one stays valid.
federation_tokens = Table(
    "federation_tokens",
    metadata,
    Column("federation_id", String, primary_key=True),
    Column("serial", Integer, nullable=False),
    Column("old_until", Double),
    sqlite_with_rowid=False,
)
