"""Which checkpoint a resumed run goes on from, in a folder that is not ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tunefleet.trainer_control.autoload.trainings import begin, recorded
from tunefleet.trainer_control.checkpoints.manifest import finish_checkpoint


def save(out: Path, step: int, *, at: float) -> str:
    folder = out / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").write_text(f"{step} {at}")
    digest = finish_checkpoint(folder).digest
    file = folder / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "at": at}))
    return digest


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.launches = folder, folder / "out", 0
        (folder / "journal").mkdir()

    def start(self, out: Path | None = None, *, wanted: bool = True, lived_until: float | None = None) -> int | None:
        """Begin a launch with one training; return the step that it resumes from."""
        self.launches += 1
        job = {"launch": f"launch-{self.launches}", "attempt": self.launches, "spec": {"lived_until": lived_until}}
        found = begin(self.folder, job, out or self.out, wanted=wanted).checkpoint
        return None if found is None else found.step

    def journal(self, **record: Any) -> None:
        with (self.folder / "journal" / f"launch-{self.launches}.jsonl").open("a") as file:
            file.write(json.dumps({"type": "checkpoint", **record}) + "\n")

    @property
    def began_at(self) -> float:
        return float(recorded(self.folder)[-1]["at"])


def test_the_first_launch_takes_nothing_that_lies_there(tmp_path: Path) -> None:
    run = Run(tmp_path)
    save(run.out, 500, at=1.0)
    assert run.start() is None


def test_only_what_the_run_has_made_is_gone_on_from(tmp_path: Path) -> None:
    run = Run(tmp_path)
    save(run.out, 500, at=1.0)  # of a run before
    run.start()
    run.journal(digest=save(run.out, 5, at=2.0))  # journalled: whatever the clock says
    end = run.began_at + 10
    save(run.out, 10, at=end - 1)  # whole, and the process was killed before the journal said so
    save(run.out, 600, at=end + 1)  # of a run after
    assert run.start(lived_until=end) == 10


def test_a_broken_one_is_passed_over_and_stays_where_it_is(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start()
    for step in (5, 10):
        run.journal(digest=save(run.out, step, at=1.0))
    (run.out / "checkpoint-10" / "weights").write_text("10 2.0")
    assert run.start(lived_until=1.0) == 5
    assert (run.out / "checkpoint-10").is_dir()


def test_a_script_that_chooses_itself_keeps_its_choice(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start()
    run.journal(digest=save(run.out, 5, at=1.0))
    assert run.start(wanted=False) is None


def test_another_folder_begins_anew(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start()
    run.journal(digest=save(run.out, 5, at=1.0))
    assert run.start(tmp_path / "other") is None


def test_two_trainings_that_share_a_folder_are_not_mixed_up(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start()
    begin(run.folder, {"launch": "launch-1", "attempt": 1}, run.out, wanted=True)
    run.journal(digest=save(run.out, 5, at=1.0))
    assert run.start() is None
