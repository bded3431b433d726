"""The smaller parts of a worker: its beginning, its pull, its rounding, its progress, its options."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tunefleet.errors import AdapterRefused, InputError, UnreachableError
from tunefleet.federation import AdapterFile
from tunefleet.federation.quantize import unpack
from tunefleet.schemas.federated import UpdateTaken
from tunefleet.trainer_control.control.command_queue import Command


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Arrived, Reachability, FederatedCallback, Downloader, Inbox, LiveAdapter, Mailbox, Packer, RetryPolicy
    global Progress, ProximalTerm, RESIDUAL, Ranks, TakenFile, RowTotal, VERSION, adapted, batch
    global share_initialization, check_arguments, following
    global other_values, torch, train
    pytest.importorskip("peft")

    import torch

    from tests.unit.workloads.federated.tiny import adapted, batch, other_values, train
    from tunefleet import FederatedCallback
    from tunefleet.workloads.federated import downloader as following
    from tunefleet.workloads.federated.contact import Reachability, RetryPolicy
    from tunefleet.workloads.federated.downloader import Arrived, Downloader, Inbox
    from tunefleet.workloads.federated.live_adapter import LiveAdapter
    from tunefleet.workloads.federated.options import check_arguments
    from tunefleet.workloads.federated.participation import ProximalTerm, share_initialization
    from tunefleet.workloads.federated.rank_sync import VERSION, Mailbox, Ranks, RowTotal
    from tunefleet.workloads.federated.state import Progress, TakenFile
    from tunefleet.workloads.federated.update_compression import RESIDUAL, Packer


pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]

TAKEN = UpdateTaken(id=1, counted=True, should_aggregate=False, round=1, version=0)


def factors(model: Any, side: str) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in LiveAdapter(model).tensors.items() if f"lora_{side}" in name}


@pytest.mark.parametrize("way", [True, "gaussian"])
def test_workers_begin_alike_and_the_model_is_unchanged(way: Any) -> None:
    one, other = adapted(seed=1, init_lora_weights=way), adapted(seed=2, init_lora_weights=way)
    before = one(**batch()).logits
    assert share_initialization(LiveAdapter(one), "fed-1")
    assert share_initialization(LiveAdapter(other), "fed-1")
    assert torch.equal(one(**batch()).logits, before)
    for name, drawn in factors(one, "A").items():
        assert torch.equal(drawn, factors(other, "A")[name])
        # As PEFT draws them: the same law, other numbers.
        assert 0.5 < float(drawn.detach().std() / factors(adapted(seed=3, init_lora_weights=way), "A")[name].std()) < 2
    assert share_initialization(LiveAdapter(other), "fed-2")
    assert not any(torch.equal(drawn, factors(other, "A")[name]) for name, drawn in factors(one, "A").items())


def test_what_was_trained_or_begins_in_its_own_way_is_left_alone() -> None:
    model = adapted()
    train(model, torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=1.0), 1)
    before = factors(model, "A")
    assert not share_initialization(LiveAdapter(model), "fed-1")
    assert all(torch.equal(each, before[name]) for name, each in factors(model, "A").items())
    assert not share_initialization(LiveAdapter(adapted(init_lora_weights="orthogonal")), "fed-1")


def test_the_pull_is_the_gradient_of_its_term() -> None:
    mu = 0.3
    model = adapted()
    live = LiveAdapter(model)
    anchor = other_values(live)
    pull = ProximalTerm(live, mu)
    pull.move_anchor(anchor)
    model(**batch()).loss.backward()
    pull.apply()
    pulled = {name: each.grad.clone() for name, each in live.trained.items()}
    model.zero_grad()
    term = sum(((each - anchor[name]) ** 2).sum() for name, each in live.trained.items())
    (model(**batch()).loss + mu / 2 * term).backward()
    for name, each in live.trained.items():
        torch.testing.assert_close(pulled[name], each.grad)


def test_until_there_is_a_version_the_pull_is_to_the_beginning() -> None:
    model = adapted()
    live = LiveAdapter(model)
    pull = ProximalTerm(live, 1.0)
    for parameter in live.trained.values():
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        for parameter in live.trained.values():
            parameter.add_(2.0)
    pull.apply()
    assert all(torch.allclose(each.grad, torch.full_like(each, 2.0)) for each in live.trained.values())


@pytest.fixture
def packer(tmp_path: Path) -> Packer:
    return Packer("int8", tmp_path, tmp_path / RESIDUAL)


def sent(file: Path, tmp_path: Path) -> dict[str, Any]:
    unpack(file, tmp_path / "plain")
    with AdapterFile(tmp_path / "plain") as opened:
        return {name: opened.whole(name) for name in opened.tensors}


def test_rounding_is_made_up_for_only_by_what_was_taken(packer: Packer, tmp_path: Path) -> None:
    values = other_values(LiveAdapter(adapted()))
    name = next(iter(values))
    first = packer.pack(values)
    again = packer.pack(values)
    np.testing.assert_array_equal(sent(first.file, tmp_path)[name], sent(again.file, tmp_path)[name])
    packer.keep(first, TAKEN)
    second = packer.pack(values)
    lost = values[name].numpy() - sent(first.file, tmp_path)[name]
    assert np.abs(lost).max() > 0
    made_up = values[name].numpy() + lost - sent(second.file, tmp_path)[name]
    np.testing.assert_allclose(made_up, second.residual[name], atol=1e-6)


def test_rounding_survives_a_new_process_and_a_lost_folder(
    packer: Packer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = other_values(LiveAdapter(adapted()))
    packer.keep(packer.pack(values), TAKEN)
    checkpoint = tmp_path / "checkpoint-1"
    checkpoint.mkdir()
    packer.copy_to(checkpoint)
    expected = packer.pack(values).file.read_bytes()
    for kept in (tmp_path / RESIDUAL, tmp_path / "gone"):
        later = Packer("int8", tmp_path / "later", kept)
        (tmp_path / "later").mkdir(exist_ok=True)
        later.resume(checkpoint / RESIDUAL)
        assert later.pack(values).file.read_bytes() == expected
    lost = Packer("int8", tmp_path, tmp_path / "gone")
    with caplog.at_level(logging.WARNING):
        lost.resume(tmp_path / "gone too")
    assert "does not include it" in caplog.text


@pytest.mark.parametrize(("dtype", "kind"), [("fp32", "F32"), ("fp16", "F16"), ("bf16", "BF16")])
def test_an_adapter_in_any_type_is_packed_as_was_asked(tmp_path: Path, dtype: Any, kind: str) -> None:
    values = {"a": torch.tensor([1.0, 2.5], dtype=torch.bfloat16), "b": torch.tensor([[3.0]])}
    packed = Packer(dtype, tmp_path, tmp_path / RESIDUAL).pack(values)
    with AdapterFile(packed.file) as opened:
        assert {each.dtype for each in opened.tensors.values()} == {kind}
        assert opened.whole("a").tolist() == [1.0, 2.5]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_a_training_that_diverged_uploads_nothing(tmp_path: Path, dtype: Any) -> None:
    with pytest.raises(AdapterRefused, match=r"tensor b .* diverged"):
        Packer(dtype, tmp_path, tmp_path / RESIDUAL).pack({"a": torch.zeros(2), "b": torch.tensor([float("nan")])})
    assert not list(tmp_path.iterdir())


def test_what_was_taken_after_the_checkpoint_is_known(tmp_path: Path) -> None:
    file = TakenFile(tmp_path, "fed-1", "lab")
    file.note(Progress(version=2, rows=90, taken=80, taken_step=10))
    resumed = Progress.of({"version": 1, "rows": 70, "taken": 40, "taken_step": 5})
    TakenFile(tmp_path, "fed-1", "lab").catch_up(resumed)
    assert resumed == Progress(version=1, rows=70, taken=80, taken_step=10)
    for other in (TakenFile(tmp_path, "fed-2", "lab"), TakenFile(tmp_path, "fed-1", "other")):
        stranger = Progress(rows=70, taken=40)
        other.catch_up(stranger)
        assert stranger.taken == 40
    file.forget()
    fresh = Progress()
    file.catch_up(fresh)
    assert fresh == Progress() == Progress.of(None)


@pytest.mark.parametrize("intent", [{"rows": 90, "body": {"of": "a later version"}}, {"body": {}}, [90]])
def test_what_cannot_be_read_of_what_was_being_sent_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, intent: Any
) -> None:
    file = TakenFile(tmp_path, "fed-1", "lab")
    file.note(Progress(taken=80, taken_step=10))
    (place,) = tmp_path.iterdir()
    place.write_text(json.dumps({**json.loads(place.read_text()), "intent": intent}))
    resumed = Progress(rows=70)
    assert file.catch_up(resumed) is None
    assert resumed.taken == 80
    assert "cannot be read" in caplog.text


def test_alone_a_process_adds_up_and_shares_with_nobody() -> None:
    ranks = Ranks()
    tally = RowTotal(ranks, 100)
    tally.add(8)
    tally.add(3)
    assert (ranks.leads, ranks.size, tally.total) == (True, 1, 111)
    assert ranks.broadcast({"a": 1}) == {"a": 1}


def test_what_arrives_waits_for_the_end_of_a_step() -> None:
    mailbox = Mailbox()
    assert not mailbox.armed
    mailbox.submit(VERSION, {"version": 3})
    assert mailbox.armed
    (item,) = mailbox.take()
    assert (item.command, item.data, mailbox.armed) == (VERSION, {"version": 3}, False)
    assert mailbox.adopt(Command("x", VERSION)).command_id == "x"


def test_a_wait_for_a_version_ends_with_it_or_when_somebody_hurries() -> None:
    mailbox = Mailbox()
    soon = threading.Timer(0.05, mailbox.hurry)
    soon.start()
    began = time.monotonic()
    assert mailbox.wait(30.0) == []
    assert time.monotonic() - began < 10
    soon.join()
    mailbox.submit(VERSION, {"version": 3})
    assert [item.data for item in mailbox.wait(30.0)] == [{"version": 3}]
    assert mailbox.wait(0.0) == []
    mailbox.hurry()
    assert mailbox.wait(30.0) == [], "it came before the wait"


def test_who_waits_for_versions_hears_that_there_will_be_none() -> None:
    standing = SimpleNamespace(id="fed-1", status="running")
    client: Any = SimpleNamespace(federation=lambda: standing)
    inbox: Any = SimpleNamespace(next=lambda after, wait_s: None, has_room=lambda: True)
    refused: list[Exception] = []
    ended = threading.Event()
    follower = Downloader(
        client, inbox, Reachability(), after=3, first=lambda: None, arrived=lambda found: None,
        refused=refused.append, ended=ended.set,
    )  # fmt: skip
    assert not ended.wait(0.2), "one that runs may have another version"
    standing.status = "completed"
    assert ended.wait(10)
    assert [str(error) for error in refused] == ["Federation fed-1 is completed; it accepts no more updates."]
    follower.close()


@pytest.mark.parametrize(("most", "asked"), [(8, ["fetch"]), (7, ["newest", "download"])])
def test_a_small_version_comes_with_the_answer_and_a_large_one_can_go_on_where_it_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, asked: list[str]
) -> None:
    monkeypatch.setattr(following, "AT_ONCE_BYTES", most)
    monkeypatch.setattr(following, "read_converted", lambda live, place: {"a": place})
    (tmp_path / "version-4").mkdir()
    place, said = tmp_path / "version-5", []

    def answering(name: str, answer: Any) -> Any:
        return lambda *_, **__: said.append(name) or answer

    client: Any = SimpleNamespace(
        fetch=answering("fetch", SimpleNamespace(version=5, folder=place)),
        newest=answering("newest", SimpleNamespace(version=5)),
        download=answering("download", place),
    )
    live: Any = SimpleNamespace(tensors={"a": torch.zeros(2)})
    found = Inbox(client, live, tmp_path, lambda: True).next(4, 20.0)
    assert found == Arrived(5, cast(Any, {"a": place}))
    assert said == asked
    assert not (tmp_path / "version-4").exists(), "only the newest stays"


def test_versions_are_not_piled_up_for_a_training_that_takes_none() -> None:
    newest = iter(range(4, 100))
    here: list[int] = []
    inbox: Any = SimpleNamespace(next=lambda after, wait_s: Arrived(next(newest), {}), has_room=lambda: len(here) < 2)
    full, taken, ended = threading.Event(), threading.Event(), threading.Event()

    def arrived(found: Arrived) -> None:
        here.append(found.version)
        (full if len(here) == 2 else taken).set()

    follower = Downloader(
        cast(Any, None), inbox, Reachability(), after=3, first=lambda: None, arrived=arrived,
        refused=lambda error: None, ended=ended.set,
    )  # fmt: skip
    assert full.wait(10)
    assert not ended.wait(0.3)
    assert here == [4, 5]
    taken.clear()
    here.clear()
    assert taken.wait(10), "it goes on once they are taken"
    follower.close()
    assert ended.wait(10)


def test_a_server_that_is_away_is_told_once_and_its_return_too(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [UnreachableError("Nothing answers."), UnreachableError("Nothing answers."), 7, 8]
    pauses: list[float] = []

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    patience = RetryPolicy(Reachability(), pauses.append)
    with caplog.at_level(logging.WARNING, "tunefleet.federation"):
        assert (patience.call(ask), patience.call(ask)) == (7, 8)
    assert len([each for each in pauses if each]) == 2
    assert [("Training continues" in each.message, "answers again" in each.message) for each in caplog.records] == [
        (True, False),
        (False, True),
    ]


def test_a_refusal_is_not_asked_again() -> None:
    asked = []

    def ask() -> None:
        asked.append(1)
        raise AdapterRefused("No.")

    with pytest.raises(AdapterRefused):
        RetryPolicy(Reachability(), lambda seconds: None).call(ask)
    assert len(asked) == 1


def test_no_secret_lies_in_a_checkpoint_and_a_callback_is_made_anew_from_it() -> None:
    url = "http://:very-secret@server:8000"
    for callback in (
        FederatedCallback(url, 7, 3, sync_every_steps=50, reload="mix(0.5)", upload_dtype="bf16"),
        FederatedCallback("http://server:8000", 8, 3, "very-secret"),
    ):
        callback.progress = {"version": 2, "rows": 5, "taken": 4, "taken_step": 1}
        state = json.loads(json.dumps(callback.state()))
        assert "very-secret" not in json.dumps(state)
        again = FederatedCallback.from_state(state)
        assert again._options == callback._options
        assert again.progress == callback.progress


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sync_every_steps": 0}, "sync_every_steps"),
        ({"upload_dtype": "fp8"}, "bf16 or int8"),
        ({"reload": "merge"}, "reload"),
        ({"optimizer_state": "half"}, "optimizer_state"),
        ({"on_refused": "ignore"}, "on_refused"),
        ({"mu": -1.0}, "mu"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused_at_once(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        FederatedCallback("http://server:8000", "fed-1", "lab", "token", **given)


@pytest.mark.parametrize(
    ("settings", "mu", "words"),
    [
        ({"fsdp": "full_shard"}, None, "fsdp"),
        ({"deepspeed": "zero.json"}, None, "deepspeed"),
        ({"parallelism_config": SimpleNamespace(tp_size=1, cp_size=2)}, None, "cp_size"),
        ({"fp16": True, "max_grad_norm": 0.0}, 0.1, "FedProx"),
    ],
)
def test_trainings_that_a_copy_would_not_reach_are_refused(settings: dict[str, Any], mu: Any, words: str) -> None:
    plain = {"fsdp": None, "deepspeed": None, "parallelism_config": None, "fp16": False, "max_grad_norm": 1.0}
    check_arguments(SimpleNamespace(**plain), mu)
    with pytest.raises(InputError, match=words):
        check_arguments(SimpleNamespace(**{**plain, **settings}), mu)
