"""How an extra is added to this very installation: a stranger may have the name `tunefleet` on a public index."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit


def install(extra: str) -> str:
    """Return the command that adds an extra, from where this package came.

    Args:
        extra: Such as `train`.
    """
    return f"{shlex.quote(sys.executable)} -m pip install {_requirement(extra)}"


def _requirement(extra: str) -> str:
    try:
        origin = json.loads(distribution("tunefleet").read_text("direct_url.json") or "null") or {}
    except (PackageNotFoundError, ValueError):
        origin = {}
    url, vcs = origin.get("url", ""), origin.get("vcs_info")
    if vcs:
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    if origin.get("dir_info") is not None:
        folder = shlex.quote(f"{unquote(urlsplit(url).path)}[{extra}]")
        return f"-e {folder}" if origin["dir_info"].get("editable") else folder
    return shlex.quote(f"tunefleet[{extra}] @ {url}" if url else f"./tunefleet-VERSION-py3-none-any.whl[{extra}]")
