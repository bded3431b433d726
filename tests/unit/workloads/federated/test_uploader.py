"""The thread that sends: newest first, nothing twice, nothing lost."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import (
    AdapterRefused,
    ArtifactError,
    AuthError,
    ForbiddenError,
    GoneError,
    NotFoundError,
    TunefleetError,
    UnreachableError,
)
from tunefleet.federation import AdapterFile
from tunefleet.schemas.federated import UpdateCreate, UpdateTaken


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Capture, Reachability, Intent, Packer, Progress, RESIDUAL, TakenFile, Uploader, uploader, outgoing_folder
    global torch
    pytest.importorskip("peft")

    import torch

    from tunefleet.workloads.federated import uploader
    from tunefleet.workloads.federated.contact import Reachability
    from tunefleet.workloads.federated.state import Intent, Progress, TakenFile
    from tunefleet.workloads.federated.update_compression import RESIDUAL, Packer
    from tunefleet.workloads.federated.uploader import Capture, Uploader, outgoing_folder


pytestmark = pytest.mark.torch
LIMIT_S = 20.0


class Client:
    """A federation without a network: what it is sent, and when it is there."""

    worker_id = "lab"

    def __init__(self, attempt: int | None = None) -> None:
        self.attempt = attempt
        self.files: list[bytes] = []
        self.announced: list[UpdateCreate] = []
        self.asked = threading.Event()
        self.before_send: Callable[[Path], None] = lambda _: None
        self.before_answer: Callable[[], None] = lambda: None
        self.before_announce: Callable[[], None] = lambda: None

    def give(self, file: Path, update: UpdateCreate, *, heard: Callable[[], None]) -> UpdateTaken:
        self.asked.set()
        self.before_send(file)
        heard()
        self.before_answer()
        self.files.append(file.read_bytes())
        return self.announce(update)

    def send(self, file: Path) -> str:
        self.asked.set()
        self.before_send(file)
        self.files.append(file.read_bytes())
        return hashlib.sha256(self.files[-1]).hexdigest()

    def give_rest(self, file: Path, update: UpdateCreate) -> UpdateTaken:
        self.send(file)
        return self.announce(update)

    def announce(self, update: UpdateCreate) -> UpdateTaken:
        self.announced.append(update)
        self.before_announce()
        return UpdateTaken(id=1, counted=True, should_aggregate=False, round=1, version=0)

    @property
    def counted(self) -> list[tuple[int, int]]:
        return [(update.step, update.num_examples) for update in self.announced]


class Line:
    """An uploader with what it needs."""

    def __init__(
        self,
        folder: Path,
        progress: Progress | None = None,
        intent: Intent | None = None,
        attempt: int | None = None,
        before_announce: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = Client(attempt)
        self.client.before_announce = before_announce
        self.progress = progress or Progress()
        self.refused: list[Exception] = []
        self.ended = threading.Event()
        self.folder = folder
        self.uploader = Uploader(
            self.client,  # type: ignore[arg-type]
            {"r": 2},
            Packer("fp32", outgoing_folder(folder), folder / RESIDUAL),
            self.progress,
            (TakenFile(folder, "fed-1", "lab"), intent),
            Reachability(),
            refused=self.refused.append,
            ended=self.ended.set,
        )

    def capture(self, step: int, rows: int, value: float = 1.0, given_up: int = 0) -> None:
        self.uploader.submit(Capture(step, rows, 3, {"a": torch.full((2,), value)}, given_up=given_up))


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    made = Line(tmp_path)
    yield made
    made.uploader.close()
    assert made.ended.wait(LIMIT_S)


def test_each_update_weighs_the_rows_since_the_one_before(line: Line) -> None:
    for step, rows in ((10, 80), (20, 150), (25, 153)):
        line.capture(step, rows)
        assert line.uploader.drain(LIMIT_S)
    assert line.client.counted == [(10, 80), (20, 70), (25, 3)]
    assert line.client.announced[0].base_version == 3
    assert [sent.num_examples for sent in line.uploader.sent] == [80, 70, 3]
    assert not list((line.folder / "outgoing").iterdir())
    resumed = Progress()
    TakenFile(line.folder, "fed-1", "lab").catch_up(resumed)
    assert (resumed.taken, resumed.taken_step) == (153, 25)


def test_what_could_not_be_sent_goes_with_the_next(line: Line) -> None:
    last = 3.0

    def send(file: Path) -> None:
        with AdapterFile(file) as opened:
            if opened.whole("a")[0] != last:
                raise UnreachableError("Nothing answers.")

    line.client.before_send = send
    line.capture(10, 80)
    assert line.client.asked.wait(LIMIT_S)
    line.capture(20, 150, 2.0)
    line.capture(30, 200, last)
    assert line.uploader.drain(LIMIT_S)
    assert line.client.counted == [(30, 200)]


def test_rows_whose_learning_a_version_has_replaced_do_not_weigh(line: Line) -> None:
    slow = threading.Event()
    line.client.before_send = lambda _: slow.wait(LIMIT_S) and None
    line.capture(10, 80)
    assert line.client.asked.wait(LIMIT_S)
    line.capture(20, 150)
    # A version comes, which leaves nothing of the 150 rows; this takes the place of what waits.
    line.capture(30, 200, given_up=150)
    slow.set()
    assert line.uploader.drain(LIMIT_S)
    assert line.client.counted == [(10, 80), (30, 50)]
    assert [update.rows_before for update in line.client.announced] == [0, 150]


def test_once_the_server_may_know_it_is_asked_until_it_answers(line: Line) -> None:
    answers = iter([UnreachableError("The connection broke."), UnreachableError("Nothing answers."), None])
    heard = threading.Event()

    def announce() -> None:
        heard.set()
        error = next(answers, None)
        if error is not None:
            raise error

    line.client.before_announce = announce
    line.capture(10, 80)
    assert heard.wait(LIMIT_S)
    line.capture(20, 150)
    assert line.uploader.drain(LIMIT_S)
    # The first one is asked about three times, with the same words, and only then comes the second.
    assert line.client.counted == [(10, 80)] * 3 + [(20, 70)]
    assert len({update.model_dump_json() for update in line.client.announced[:3]}) == 1


def test_what_broke_on_its_last_bytes_is_sent_again_before_anything_newer(line: Line) -> None:
    faults: list[Exception] = [ArtifactError("The file was not uploaded."), UnreachableError("The connection broke.")]
    broke = threading.Event()

    def answer() -> None:
        broke.set()
        raise faults.pop()

    def announce() -> None:
        if faults:
            raise faults.pop()

    line.client.before_answer = answer
    line.client.before_announce = announce
    line.capture(10, 80)
    assert broke.wait(LIMIT_S)
    line.client.before_answer = lambda: None
    line.capture(20, 150)
    assert line.uploader.drain(LIMIT_S)
    # In one request, which broke; asked about, and not there; its file by itself, and what it is.
    assert line.client.counted == [(10, 80), (10, 80), (20, 70)]
    assert len(line.client.files) == 2


def test_what_never_arrived_before_a_crash_goes_with_the_next(tmp_path: Path) -> None:
    killed = Line(tmp_path)
    at_it = threading.Event()

    def answer() -> None:
        at_it.set()
        raise UnreachableError("The connection broke.")

    killed.client.before_answer = killed.client.before_announce = answer
    killed.capture(10, 80)
    assert at_it.wait(LIMIT_S)
    killed.uploader.close()
    assert killed.ended.wait(LIMIT_S)
    progress = Progress()
    intent = TakenFile(tmp_path, "fed-1", "lab").catch_up(progress)
    assert intent is not None
    refusals = [ArtifactError("The file was not uploaded.")]

    def announce() -> None:
        if refusals:
            raise refusals.pop()

    line = Line(tmp_path, progress, intent, before_announce=announce)
    line.capture(20, 160)
    assert line.uploader.drain(LIMIT_S)
    line.uploader.close()
    assert line.client.counted == [(10, 80), (20, 160)]
    assert line.refused == []
    assert TakenFile(tmp_path, "fed-1", "lab").catch_up(Progress()) is None


@pytest.mark.parametrize("earlier", [True, False], ids=["of an earlier process", "of this one"])
def test_an_update_at_which_the_server_fails_every_time_does_not_hold_up_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    monkeypatch.setattr(uploader, "_FAULTS", 2)
    began, failed = threading.Event(), threading.Event()
    line: Line

    def announce() -> None:
        assert began.wait(LIMIT_S)
        if line.client.announced[-1].step == 10:
            failed.set()
            raise TunefleetError("Something went wrong.")

    body = UpdateCreate(worker="lab", step=10, num_examples=80, sha256="0" * 64, config={"r": 2})
    line = Line(tmp_path, intent=Intent(80, body) if earlier else None, before_announce=announce)
    began.set()
    if not earlier:
        line.capture(10, 80)
        assert failed.wait(LIMIT_S)
    line.capture(20, 150)
    assert line.uploader.drain(LIMIT_S)
    line.uploader.close()
    assert line.client.counted[-1] == (20, 150)
    assert line.client.announced[-1].rows_before == 0
    assert line.client.counted.count((10, 80)) >= 2
    assert line.refused == []


def test_rows_that_an_earlier_launch_has_sent_are_not_sent_again(tmp_path: Path) -> None:
    line = Line(tmp_path, Progress(version=1, rows=40, taken=80, taken_step=10))
    line.capture(10, 80)
    assert line.uploader.drain(LIMIT_S)
    assert line.client.files == []
    line.capture(20, 160)
    assert line.uploader.drain(LIMIT_S)
    line.uploader.close()
    assert line.client.counted == [(20, 80)]


def test_what_was_being_said_when_the_process_was_killed_is_said_again(tmp_path: Path) -> None:
    killed = Line(tmp_path, attempt=1)
    at_it = threading.Event()

    def announce() -> None:
        at_it.set()
        raise UnreachableError("The connection broke.")

    killed.client.before_announce = announce
    killed.capture(10, 80)
    assert at_it.wait(LIMIT_S)
    killed.uploader.close()
    assert killed.ended.wait(LIMIT_S)
    # The checkpoint is of step 12, and knows of nothing that was taken.
    progress = Progress(rows=96)
    intent = TakenFile(tmp_path, "fed-1", "lab").catch_up(progress)
    assert intent is not None
    line = Line(tmp_path, progress, intent, attempt=2)
    line.capture(20, 160)
    assert line.uploader.drain(LIMIT_S)
    line.uploader.close()
    assert line.client.counted == [(10, 80), (20, 80)]
    said, again = killed.client.announced[0], line.client.announced[0]
    assert again == said.model_copy(update={"attempt": 2}), "in the same words, by who takes part now"
    assert [update.rows_before for update in line.client.announced] == [0, 80]
    assert TakenFile(tmp_path, "fed-1", "lab").catch_up(Progress()) is None


def test_a_refusal_is_told_and_its_rows_go_with_the_next(line: Line) -> None:
    refusals = [AdapterRefused("The tensor a is not finite.")]

    def announce() -> None:
        if refusals:
            raise refusals.pop()

    line.client.before_announce = announce
    line.capture(10, 80)
    assert line.uploader.drain(LIMIT_S)
    assert [str(error) for error in line.refused] == ["The tensor a is not finite."]
    line.capture(20, 150)
    assert line.uploader.drain(LIMIT_S)
    assert line.client.counted == [(10, 80), (20, 150)]


@pytest.mark.parametrize(
    ("kind", "stays"),
    [(AdapterRefused, False), (GoneError, False), (AuthError, True), (ForbiddenError, True), (NotFoundError, True)],
)
def test_what_may_have_been_taken_is_said_again_by_the_next_process_unless_it_was_decided(
    line: Line, kind: type[TunefleetError], stays: bool
) -> None:
    def answer() -> None:
        raise kind("No.")

    line.client.before_answer = answer
    line.capture(10, 80)
    assert line.uploader.drain(LIMIT_S)
    assert [type(error) for error in line.refused] == [kind]
    assert (TakenFile(line.folder, "fed-1", "lab").catch_up(Progress()) is not None) == stays


def test_a_fault_of_our_own_is_told_as_well(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    def send(_: Path) -> None:
        raise KeyError("a bug")

    line.client.before_send = send
    with caplog.at_level(logging.ERROR):
        line.capture(10, 80)
        assert line.uploader.drain(LIMIT_S)
    assert [type(error) for error in line.refused] == [KeyError]
    assert "could not be sent" in caplog.text


def test_a_warning_is_told_once(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    said: dict[str, Any] = {"id": 1, "counted": False, "should_aggregate": False, "round": 1, "version": 0}
    reply = UpdateTaken(**said, warning="It equals the one before.")
    line.client.announce = lambda update: reply  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        for step in (10, 20):
            line.capture(step, 8 * step)
            assert line.uploader.drain(LIMIT_S)
    assert caplog.text.count("It equals the one before.") == 1


def test_nobody_waits_for_what_cannot_be_sent(line: Line) -> None:
    def send(_: Path) -> None:
        raise UnreachableError("Nothing answers.")

    line.client.before_send = send
    line.capture(10, 80)
    assert line.client.asked.wait(LIMIT_S)
    assert not line.uploader.drain(0.05)
    line.uploader.close()
    assert line.ended.wait(LIMIT_S)
    assert line.refused == []
