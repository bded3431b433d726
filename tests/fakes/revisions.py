"""The revision after the newest one, as a later version of Tunefleet would bring it; with it, 0100 is an older version.

It does what migrations do: adds a column and fills it, makes a table from rows of another, and rebuilds a table. Two
rows of `meta` with the prefix `label-` and the same value contradict it: then it fails after its first changes.

    python -m tests.fakes.revisions SERVER-OPTIONS

runs the server of that later version.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import op

from tunefleet.db.engine import migrate

PREVIOUS = migrate.HEAD
NEXT = f"{int(PREVIOUS) + 1:04}"
_FILE = """
from tests.fakes.revisions import NEXT as revision, PREVIOUS as down_revision, upgrade
branch_labels = depends_on = None
"""


def upgrade() -> None:
    """Make the changes."""
    op.add_column("meta", sa.Column("size", sa.Integer(), nullable=True))
    op.execute("UPDATE meta SET size = length(value)")
    with op.batch_alter_table("training_jobs", table_kwargs={"sqlite_with_rowid": False}) as table:
        table.alter_column("updates", existing_type=sa.Text(), nullable=True)
    op.create_table(
        "labels",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_labels"),
        sa.UniqueConstraint("name", name="uq_labels_name"),
        sqlite_autoincrement=True,
    )
    op.execute("INSERT INTO labels (name) SELECT value FROM meta WHERE name LIKE 'label-%' ORDER BY name")


def install(patch: pytest.MonkeyPatch, folder: Path) -> str:
    """Let this process be of the version that has it.

    Args:
        patch: Takes it back at its end.
        folder: Where the migrations of that version go; it does not exist yet.

    Returns:
        The revision.
    """
    shutil.copytree(migrate.FOLDER, folder)
    (folder / "versions" / f"{NEXT}_next.py").write_text(_FILE, encoding="utf-8")
    patch.setattr(migrate, "FOLDER", folder)
    patch.setattr(migrate, "REVISIONS", (*migrate.REVISIONS, NEXT))
    patch.setattr(migrate, "HEAD", NEXT)
    return NEXT


def main() -> int:
    """Run the server of that version."""
    from tests.fakes import revisions
    from tunefleet.api import process

    with tempfile.TemporaryDirectory(prefix="revisions-") as folder, pytest.MonkeyPatch.context() as patch:
        revisions.install(patch, Path(folder, "migrations"))
        return process.main()


if __name__ == "__main__":
    sys.exit(main())
