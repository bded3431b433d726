"""What a delivered model says about itself: which base it belongs to, under a name that its owner knows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

CONFIG: Final = "adapter_config.json"
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")


def name_base(folder: Path, base: str) -> None:
    """Let an adapter name its base as the user does, not by the folder that it had on this machine."""
    path = folder / CONFIG
    if not path.is_file():
        return
    config = json.loads(path.read_bytes())
    config["base_model_name_or_path"] = base
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_card(folder: Path, kind: str, base: str) -> None:
    """Write a model card."""
    adapter = (folder / CONFIG).is_file()
    on_hub = _HUB_ID.fullmatch(base) is not None and not base.startswith(".")
    lines = [
        "---",
        *([f"base_model: {base}"] if on_hub else []),
        f"library_name: {'peft' if adapter else 'transformers'}",
        "tags:",
        *(["- lora"] if adapter else []),
        f"- {kind}",
        "- tunefleet",
        "---",
        "",
        f"# {'LoRA adapter' if adapter else 'Model'} trained from {base if on_hub else Path(base).name}",
        "",
        f"Trained with Tunefleet, task kind `{kind}`.",
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")
