"""`FederatedCallback` and `FederatedClient` with the real server: uploads are averaged, and versions come back."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api.support import Running
from tunefleet import FederatedClient
from tunefleet.client import Client
from tunefleet.client.routes.federation_routes import (
    cancel_federation,
    create_federation,
    pause_federation,
)
from tunefleet.errors import AdapterRefused, GoneError
from tunefleet.spec.options.federation_options import FederationSpec, StrategySpec


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global At, Crash, FederatedCallback, LiveAdapter, RowCounter, Unhurried, Watch, adapted, arrived, crash
    global hot_reload, read_adapter, rows, torch, trainer, until
    pytest.importorskip("peft")

    import torch

    from tests.integration.federation.training import (
        At,
        Crash,
        Unhurried,
        Watch,
        adapted,
        arrived,
        crash,
        rows,
        trainer,
        until,
    )
    from tunefleet import FederatedCallback
    from tunefleet.workloads.federated import RowCounter, hot_reload
    from tunefleet.workloads.federated.live_adapter import LiveAdapter, read_adapter


pytestmark = [pytest.mark.torch, pytest.mark.proof, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    with Client(running.url, running.admin_key) as client:
        yield client


@pytest.fixture
def federate(client: Client) -> Callable[..., Any]:
    def make(**spec: Any) -> Any:
        return client.transport.run(create_federation(FederationSpec(name="test", **spec)))

    return make


def callback(running: Running, made: Any, worker: str, **options: Any) -> FederatedCallback:
    address = running.url.replace("http://", f"http://:{made.token}@")
    return FederatedCallback(address, made.id, worker, **{"sync_every_steps": 4, **options})


@pytest.mark.story
def test_two_trainings_take_the_weighted_mean_of_what_both_have_learnt(
    running: Running, federate: Callable[..., Any], tmp_path: Path
) -> None:
    made = federate(min_workers=2)
    one, two = callback(running, made, "one"), callback(running, made, "two")
    watches = {"one": Watch(one), "two": Watch(two)}

    # Made one after the other: Transformers does not load two models at once in one process.
    def make(federated: FederatedCallback, name: str, batch: int) -> Any:
        waits = At(5, lambda: until(arrived(federated)))
        options = {"data": rows(48, seed=batch), "model": adapted(seed=batch), "per_device_train_batch_size": batch}
        return trainer(tmp_path / name, federated, watches[name], waits, max_steps=8, **options)

    trainings = [make(one, "one", 2), make(two, "two", 6)]
    threads = [threading.Thread(target=training.train) for training in trainings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(110)
    assert [training.state.global_step for training in trainings] == [8, 8]
    assert [watches[name].versions[5] for name in ("one", "two")] == [1, 1]
    for name, tensor in watches["one"].values[5].items():
        assert torch.equal(tensor, watches["two"].values[5][name])
        mean = 0.25 * watches["one"].values[4][name] + 0.75 * watches["two"].values[4][name]
        torch.testing.assert_close(tensor, mean, rtol=1e-5, atol=1e-7)
    # The version came in at the end of step 5, whose rows it has replaced.
    assert [each.num_examples for each in (*one.sent, *two.sent)] == [8, 6, 24, 18]
    with FederatedClient(running.url, made.id, "one", made.token) as federation:
        version = federation.version(1)
        weights = {each.worker: (each.num_examples, each.weight) for each in version.contributions}
        assert weights == {"one": (8, 0.25), "two": (24, 0.75)}


def test_a_training_that_goes_on_elsewhere_counts_no_row_twice(
    running: Running, federate: Callable[..., Any], tmp_path: Path
) -> None:
    made = federate(min_workers=1)
    out, options = tmp_path / "out", {"max_steps": 16, "save_strategy": "steps", "save_steps": 6}
    first = callback(running, made, "one", attempt=1)
    with pytest.raises(Crash):
        trainer(out, first, Unhurried(first), At(10, crash), **options).train()
    assert [(each.step, each.reply.counted) for each in first.sent] == [(4, True), (8, True)]
    # Another machine has the checkpoint of step 6 alone, which knows nothing of what was taken at step 8. It has a
    # folder of its own: what crashed here leaves a thread that still fetches versions, and a killed process does not.
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(out / "checkpoint-6", elsewhere / "checkpoint-6")
    second = callback(running, made, "one", attempt=2)
    trainer(elsewhere, second, Unhurried(second), **options).train(resume_from_checkpoint=True)
    # That of step 8 again only if the server was too slow to say in time that it has it: then it takes its place.
    assert [(each.step, each.reply.counted) for each in second.sent][-2:] == [(12, True), (16, True)]
    with FederatedClient(running.url, made.id, "one", made.token) as federation:
        (member,) = federation.federation().member_list
    assert member.num_examples <= 64, "sixteen steps of four rows"
    # Less than 16 if a version has replaced what some of them taught.
    assert max(each.num_examples for each in (*first.sent, *second.sent)) <= 16


def test_one_who_joins_late_starts_from_the_newest_version(
    running: Running, federate: Callable[..., Any], tmp_path: Path
) -> None:
    made = federate(min_workers=1)
    first = callback(running, made, "one", upload_dtype="bf16")
    trainer(tmp_path / "one", first, max_steps=4).train()
    started: dict[str, torch.Tensor] = {}
    with FederatedClient(running.url, made.id, "look", made.token) as federation:
        newest = federation.newest(wait_s=60)
        assert newest is not None
        published, _ = read_adapter(federation.download(newest, tmp_path / "inbox"))
    late = callback(running, made, "two", upload_dtype="int8")
    training = trainer(tmp_path / "two", late, model=adapted(seed=5), max_steps=4)
    training.add_callback(At(1, lambda: started.update(LiveAdapter(training.model).copied())))
    training.train()
    assert all(torch.equal(started[name], value.float()) for name, value in published.items())
    assert [each.reply.counted for each in late.sent] == [True]


def test_a_loop_of_ones_own_takes_part(running: Running, federate: Callable[..., Any], tmp_path: Path) -> None:
    made = federate(min_workers=1)
    model = adapted()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=5e-3)
    batch = torch.stack([row["input_ids"] for row in rows(5)])
    model.train()
    version, losses = 0, []
    federation = FederatedClient(running.url, made.id, "loop", made.token)
    with federation, RowCounter(model) as counter:
        for step in range(1, 13):
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
            if step % 4 == 0:
                model.save_pretrained(tmp_path / "adapter")
                reply = federation.upload(
                    tmp_path / "adapter", step=step, num_examples=counter.take(), base_version=version
                )
                assert (reply.counted, reply.warning) == (True, None)
                newest = federation.newest(after=version, wait_s=60)
                assert newest is not None
                hot_reload(model, federation.download(newest, tmp_path / "inbox"), optimizer)
                version = newest.version
        detail = federation.federation()
    assert version == 3
    assert detail.member_list[0].num_examples == 60
    # What comes back to the only worker is what it sent: it goes on learning.
    assert losses[11] < losses[8] < losses[4] < losses[0]


def test_workers_of_different_ranks_learn_from_each_other(
    running: Running, client: Client, federate: Callable[..., Any], tmp_path: Path
) -> None:
    made = federate(min_workers=1, mixed_ranks=True, strategy=StrategySpec(name="fedavg_exact"))
    wide = callback(running, made, "wide")
    source = trainer(tmp_path / "wide", wide, model=adapted(r=8, lora_alpha=16), max_steps=4)
    source.train()
    with FederatedClient(running.url, made.id, "look", made.token) as federation:
        assert federation.newest(wait_s=60) is not None
    # So that all look at the same version.
    client.transport.run(pause_federation(made.id))
    probe = torch.stack([row["input_ids"] for row in rows(4)])
    outputs = {}
    for rank in (8, 12, 2):
        worker = callback(running, made, f"rank-{rank}", sync_every_steps=100, final_wait_s=0.0)
        training = trainer(tmp_path / str(rank), worker, model=adapted(seed=3, r=rank, lora_alpha=rank), max_steps=1)

        def look(training: Any = training, rank: int = rank) -> None:
            training.model.eval()
            with torch.no_grad():
                outputs[rank] = training.model(input_ids=probe).logits
            training.model.train()

        training.add_callback(At(1, look))
        training.train()
        assert worker.version == 1
    with torch.no_grad(), source.model.disable_adapter():
        bare = source.model.eval()(input_ids=probe).logits
    with torch.no_grad():
        wanted = source.model(input_ids=probe).logits
    torch.testing.assert_close(outputs[12], outputs[8], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(outputs[8], wanted, rtol=1e-3, atol=1e-4)
    assert (outputs[2] - wanted).norm() < 0.9 * (bare - wanted).norm()


def test_what_the_server_refuses_is_told_in_its_words(
    running: Running, client: Client, federate: Callable[..., Any], tmp_path: Path
) -> None:
    made = federate(min_workers=2, base_model="somebody/else")
    training = trainer(tmp_path, callback(running, made, "one"), max_steps=8)
    with pytest.raises(AdapterRefused, match="somebody/else"):
        training.train()
    assert training.state.global_step == 0, "what the config says is known before anything is trained"
    client.transport.run(cancel_federation(made.id))
    federated = callback(running, made, "one")
    with pytest.raises(GoneError):
        trainer(tmp_path, federated, At(5, lambda: until(arrived(federated))), max_steps=8).train()


def test_the_pull_of_fedprox_comes_from_the_federation(
    running: Running, federate: Callable[..., Any], tmp_path: Path
) -> None:
    made = federate(min_workers=2, strategy=StrategySpec(name="fedprox", mu=0.25))
    federated = callback(running, made, "one")
    trainer(tmp_path, federated, max_steps=2).train()
    assert federated._participation is not None
    assert federated._participation._proximal_term is not None
    assert federated._participation._proximal_term._mu == 0.25
