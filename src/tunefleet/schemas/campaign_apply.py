"""Campaigns as they are sent to `/api/v1/campaigns`: apart, since who only reads needs none of a file's models."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tunefleet.schemas.base import Body
from tunefleet.spec.documents.campaign_document import CampaignSpec

CampaignName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""What a file calls a campaign."""


class CampaignApply(Body):
    """Campaigns to make or to change; those that are not named stay as they are.

    Args:
        campaigns: Name → what is wanted of it.
        start: Let those that are paused, held or stopped go on, unless they are not `enabled`.
    """

    campaigns: dict[CampaignName, CampaignSpec] = Field(min_length=1, max_length=100)
    start: bool = False
