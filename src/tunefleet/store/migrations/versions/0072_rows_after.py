"""Up to which row of its training each update of a federation's worker counts.

Updates from before do not know it: what one weighs may be the rows of two, so that it cannot be told from its first
row and its weight.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0072"
down_revision = "0071"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("federation_updates", sa.Column("rows_after", sa.BigInteger(), nullable=True))
