"""A merge names what is missing for GGUF files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet.executors.registry import installed


def test_a_merge_says_whether_gguf_files_can_be_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFLEET_ENVS_DIR", str(tmp_path / "envs"))

    def said(**environment: str) -> dict[str, str | None]:
        (offer,) = [each for each in installed().offers(environment=environment) if each.kind == "merge"]
        assert offer.features is not None
        return {name: reason for name, reason in offer.features.items() if name != "s3"}

    nothing = said(PATH=str(tmp_path))
    assert set(nothing) == {"gguf", "llama-quantize"}
    assert all("tunefleet env create gguf" in (why or "") for why in nothing.values())
    assert all("is neither in TUNEFLEET_LLAMA_CPP nor on the PATH" in (why or "") for why in nothing.values())
    # Doubles: a converter whose interpreter has all that it asks for, and no llama-quantize.
    (tmp_path / "convert_hf_to_gguf.py").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho '[]'\n")
    python.chmod(0o755)
    there = said(TUNEFLEET_LLAMA_CPP=str(tmp_path), PATH="/usr/bin:/bin")
    assert there["gguf"] is None
    assert "needs llama-quantize, which is not on this worker" in (there["llama-quantize"] or "")
