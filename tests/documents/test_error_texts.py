"""Every error that is raised on purpose is a sentence that names a thing, and says the way out where there is one."""

from __future__ import annotations

import pytest

from scripts.error_texts import ErrorText, collect, faults

_REASONS = {
    "Job {job_id} not found": "the agent's documented answer",
    "no training is running": "a reason within another sentence",
    "its checkpoint could not be saved": "a reason within another sentence",
    "{…} failed: {…}.": "it is sent without being packed then",
    "Invalid system prompt: {…}.": "the reason says what may be typed",
    "The question failed: {…}: {error}": "the server's sentence follows, with its own way out",
    "The preview failed: {…}": "the last words of a program; TUNEFLEET_DEBUG=true shows all of them",
    "--workflows supports only --status, --owner, --limit and --all.": "it says what goes",
    "It ended with code {done.returncode}: {…}.": "a finding of `tunefleet env check`, which says the way out below",
    "Importing took more than {_IMPORT_S} s.": "a finding of `tunefleet env check`",
    "It does not run: {error}.": "a finding of `tunefleet env check`",
    "Cannot start job {…}: {error}.": "the error of the system, with the file's name",
    "The interpreter {python} of the GGUF converter cannot be run: {error}": "the interpreter's own sentence follows",
    "Campaign {campaign_id} not found.": "a job of it asks, and ends",
    "The attempt token is not valid.": "a worker asks, and drops the attempt",
    "{…} processes of simulated workers did not leave in time.": "nobody can act: the load has ended",
    "A process of simulated workers ended with status {code}.": "nobody can act: the log above has its traceback",
    "A process of simulated workers returned a message that cannot be parsed.": "nobody can act",
    "The worker cannot continue: {error}.": "the system's sentence follows",
    "The rendezvous endpoint of the training run is unknown.": "the server leaves that out of no offer",
    "The server sent a malformed attempt id: {attempt_id}.": "nobody can act: it is not a server of ours",
}
"""Texts that break a rule on purpose, and why."""


def test_every_error_keeps_the_rules() -> None:
    texts = list(collect())
    assert len(texts) > 1000, "the errors are not found"
    others = [each for each in texts if each.message not in _REASONS]
    assert [f"{each.path}:{each.line} {each.message!r}: {fault}" for each in others for fault in faults(each)] == []
    assert _REASONS.keys() - {each.message for each in texts if list(faults(each))} == set(), (
        "these break none any more"
    )


def _text(message: str, hint: str | None = None, kind: str = "InputError") -> ErrorText:
    return ErrorText("src/tunefleet/server/a.py", 1, kind, message, hint)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (_text("There is no file"), "does not end as a sentence"),
        (_text("there is no file {name}."), "does not begin as a sentence"),
        (_text("The payload of {name} is missing."), "'payload', which is no word"),
        (_text("It failed."), "names nothing"),
        (_text("The folder {path} cannot be written.", kind="MachineError"), "no hint says how"),
        (_text("The folder {path} is full.", "please free some space.", "MachineError"), "'please'"),
        (_text("Federation {row.id} is running.", "Cancel it first."), "'Cancel it', and names no command"),
        (_text("Task {task} reads it.", "Wait for it, or cancel {task}."), "'cancel {task}', and names no command"),
        (_text("Federation {row.id} is paused.", "Start it first."), "'Start it first', and names no command"),
    ],
)
def test_a_poor_text_is_a_fault(text: ErrorText, fault: str) -> None:
    assert any(fault in found for found in faults(text))


@pytest.mark.parametrize(
    "text",
    [
        _text("spec.data: there is no {path}."),
        _text("No Tunefleet server configured.", "Start one with `tunefleet up`."),
        _text("Task {row.id} is running.", "Cancel it first: `tunefleet cancel {row.id}`."),
        _text("Artifacts in S3 require the package boto3.", "Install it: {extras.install('s3')}", "MachineError"),
    ],
)
def test_a_good_text_is_none(text: ErrorText) -> None:
    assert list(faults(text)) == []
