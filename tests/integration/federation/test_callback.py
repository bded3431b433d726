"""`FederatedCallback` in a real Trainer, with the shipped model, against a double of the server over real HTTP."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.federation import Double
from tunefleet.errors import AdapterRefused, AuthError, GoneError, ModelError


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global At, Crash, FederatedCallback, FederationWarning, LIMIT_S, LiveAdapter, TrainerCallback, Unhurried, Watch
    global adapted, arrived, crash, digest, load, losses, read_adapter, rows, save, sent, torch, trainer, until
    pytest.importorskip("peft")

    import torch
    from safetensors.torch import load, save
    from transformers import TrainerCallback

    from tests.integration.federation.training import (
        LIMIT_S,
        At,
        Crash,
        Unhurried,
        Watch,
        adapted,
        arrived,
        crash,
        digest,
        losses,
        rows,
        sent,
        trainer,
        until,
    )
    from tunefleet import FederatedCallback
    from tunefleet.workloads.federated import FederationWarning
    from tunefleet.workloads.federated.live_adapter import LiveAdapter, read_adapter


# PEFT asks Transformers by a name that will go.
pytestmark = [pytest.mark.torch, pytest.mark.proof, pytest.mark.filterwarnings("ignore::FutureWarning")]

Make = Callable[..., Any]


def weights(double: Double, update: dict[str, Any]) -> dict[str, torch.Tensor]:
    return dict(load(double.file_of(update)))


def publish_shifted(double: Double, update: dict[str, Any]) -> None:
    """Publish, once, what an average with somebody else would be: near the update, and not equal to it."""
    if not double.versions:
        generator = torch.Generator().manual_seed(5)
        values = {
            name: tensor + 0.01 * torch.randn(tensor.shape, generator=generator)
            for name, tensor in weights(double, update).items()
        }
        double.publish(save(values), update["config"])


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (22, {"max_steps": -1, "num_train_epochs": 2}),
        (22, {"max_steps": -1, "num_train_epochs": 2, "gradient_accumulation_steps": 4}),
        (21, {"max_steps": 5, "gradient_accumulation_steps": 2}),
    ],
    ids=["partial batches", "accumulation", "stopped in an epoch"],
)
def test_the_rows_of_all_updates_are_those_that_were_trained_on(
    federated: Make, double: Double, tmp_path: Path, count: int, options: dict[str, Any]
) -> None:
    seen: list[int] = []

    def collate(batch: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {key: torch.stack([row[key] for row in batch]) for key in batch[0]}

    class Seen(TrainerCallback):
        """Counts by another way: the batches that the Trainer's own step is given."""

    callback = federated(sync_every_steps=2)
    made = trainer(tmp_path, callback, Seen(), data=rows(count), **options)
    step = made.training_step

    def counted(model: Any, inputs: Any, *more: Any) -> Any:
        seen.append(len(inputs["input_ids"]))
        return step(model, inputs, *more)

    made.training_step = counted  # type: ignore[method-assign]
    made.data_collator = collate  # type: ignore[assignment]
    made.train()
    assert sum(seen) == sum(examples for _, examples in double.examples)
    assert sum(seen) == (44 if options["max_steps"] < 0 else 37)
    assert double.updates[-1]["step"] == made.state.global_step
    # The last update is what the training has come to.
    live = LiveAdapter(made.model)
    assert all(torch.equal(live.tensors[name], value) for name, value in weights(double, double.updates[-1]).items())


def test_training_goes_on_from_a_version_and_what_is_uploaded_next_was_trained_from_it(
    federated: Make, double: Double, tmp_path: Path
) -> None:
    double.on_update = publish_shifted
    callback = federated()
    watch = Watch(callback)
    waits = At(5, lambda: until(arrived(callback)))
    made = trainer(tmp_path, callback, watch, Unhurried(callback), waits, max_steps=24)
    made.train()
    took = min(step for step, version in watch.versions.items() if version == 1)
    assert took == 5
    published = dict(load(double.versions[0][0]))
    assert all(torch.equal(watch.values[took][name], value) for name, value in published.items())
    # The same parameters, in the same optimizer, learn on.
    assert watch.objects() == watch.held()
    assert not any(torch.equal(watch.values[took + 1][name], value) for name, value in published.items())
    after = losses(made)
    assert sorted(after) == list(range(1, 25))
    assert sum(after[step] for step in (21, 22, 23, 24)) < sum(after[step] for step in (6, 7, 8, 9))
    following = next(update for update in double.updates if update["step"] == 8)
    uploaded = weights(double, following)
    assert all(torch.equal(uploaded[name], value) for name, value in watch.values[8].items())
    assert not any(torch.equal(uploaded[name], value) for name, value in published.items())
    assert [update["base_version"] for update in double.updates] == [0, 1, 1, 1, 1, 1]
    assert following["losses"] == {
        "before": pytest.approx(after[6], abs=1e-3),
        "after": pytest.approx(after[7], abs=1e-3),
    }
    assert made.state.global_step == 24


def test_training_does_not_wait_for_an_upload(federated: Make, double: Double, tmp_path: Path) -> None:
    reached = threading.Event()
    double.on_update = lambda double, update: reached.wait(LIMIT_S) and None
    callback = federated()
    known: list[int] = []

    def look() -> None:
        known.append(len(callback.sent))
        reached.set()

    made = trainer(tmp_path, callback, At(11, look), max_steps=12)
    made.train()
    assert known == [0]
    assert sum(examples for _, examples in double.examples) == 48


def test_what_a_version_replaced_before_it_was_sent_does_not_weigh(
    federated: Make, double: Double, tmp_path: Path
) -> None:
    reached = threading.Event()
    double.on_update = lambda double, update: reached.wait(LIMIT_S) and None
    callback = federated()

    def publish() -> None:
        until(lambda: bool(double.updates))
        double.publish(double.file_of(double.updates[0]), double.updates[0]["config"])
        until(arrived(callback))

    # The update of step 4 is on its way, that of step 8 waits, and step 9 ends with the version.
    trainer(tmp_path, callback, At(9, publish), At(13, reached.set), max_steps=16).train()
    assert double.examples[0] == (4, 16)
    assert 8 not in {step for step, _ in double.examples}
    assert sum(examples for _, examples in double.examples) == 4 * (4 + 7)


def test_rounds_may_go_in_step_and_then_nothing_is_trained_in_vain(
    federated: Make, double: Double, tmp_path: Path
) -> None:
    def publish(double: Double, update: dict[str, Any]) -> None:
        double.publish(save({name: 0.9 * each for name, each in weights(double, update).items()}), update["config"])

    double.on_update = publish
    callback = federated(wait_s=LIMIT_S)
    watch = Watch(callback)
    trainer(tmp_path, callback, watch, max_steps=8).train()
    assert [watch.versions[step] for step in (3, 4, 7, 8)] == [0, 1, 1, 2]
    for number, step in ((1, 4), (2, 8)):
        uploaded = weights(double, double.updates[number - 1])
        assert all(torch.equal(0.9 * uploaded[name], value) for name, value in watch.values[step].items())
    assert [update["base_version"] for update in double.updates] == [0, 1]
    double.on_update = None
    callback = federated(wait_s=0.01)
    trainer(tmp_path, callback, max_steps=8).train()
    assert callback.version == 2


@pytest.mark.parametrize(("policy", "step"), [("keep", 6), ("reset", 1), ("scale(0.5)", 6)])
def test_the_optimizers_state_follows_the_policy(
    federated: Make, double: Double, tmp_path: Path, policy: str, step: int
) -> None:
    double.on_update = publish_shifted
    callback = federated(optimizer_state=policy, reload="mix(0.5)")
    watch = Watch(callback)
    made = trainer(tmp_path, callback, watch, At(5, lambda: until(arrived(callback))), max_steps=6)
    made.train()
    state = watch.optimizer.state
    assert {int(state[each]["step"]) for each in watch.live.trained.values()} == {step}
    published = dict(load(double.versions[0][0]))
    assert watch.versions[5] == 1
    assert not any(torch.equal(watch.values[5][name], value) for name, value in published.items())


def test_who_joins_late_starts_from_the_newest_version(federated: Make, double: Double, tmp_path: Path) -> None:
    other = adapted(seed=9)
    values = {name: torch.full_like(tensor, 0.01) for name, tensor in LiveAdapter(other).tensors.items()}
    double.publish(save({name: torch.zeros_like(value) for name, value in values.items()}), {})
    double.publish(save(values), LiveAdapter(other).described())
    callback = federated(reload="mix(0.5)")
    watch = Watch(callback)
    started: dict[str, torch.Tensor] = {}
    made = trainer(tmp_path, callback, watch, max_steps=4)
    made.add_callback(At(1, lambda: started.update(LiveAdapter(made.model).copied())))
    made.train()
    # Who has not trained has nothing to mix in.
    assert all(torch.equal(started[name], value) for name, value in values.items())
    assert watch.versions[1] == 2
    assert double.updates[0]["base_version"] == 2
    assert "lab" in double.members


def test_who_loses_the_network_trains_on_and_catches_up(
    federated: Make, double: Double, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = federated(sync_every_steps=2)

    def lose() -> None:
        with double.changed:
            double.away = True
            double.changed.notify_all()

    def back() -> None:
        assert sent(callback, 1)()
        assert not sent(callback, 2)()
        until(lambda: "Training continues" in caplog.text)
        double.away = False
        double.publish(
            save({k: 0.5 * v for k, v in LiveAdapter(made.model).copied().items()}), double.updates[0]["config"]
        )
        until(sent(callback, 2))
        until(arrived(callback))

    watch = Watch(callback)
    steps = [At(3, lambda: until(sent(callback, 1))), At(4, lose), At(14, back)]
    made = trainer(tmp_path, callback, watch, *steps, max_steps=16)
    with caplog.at_level(logging.INFO, "tunefleet.federation"):
        made.train()
    # Nothing of the time without the network is lost, and nothing is sent that nobody needs any more.
    assert double.examples[0] == (2, 8)
    assert {6, 8, 10}.isdisjoint(step for step, _ in double.examples)
    # Of what version 1 has replaced, the two steps before it count only if they were sent before the next update.
    counted = sum(examples for _, examples in double.examples)
    assert counted == 64 or (counted == 56 and 14 not in dict(double.examples))
    assert (watch.versions[13], watch.versions[14]) == (0, 1)
    assert sorted(losses(made)) == list(range(1, 17))
    assert caplog.text.count("Training continues and will sync") == 1
    assert caplog.text.count("answers again") == 1


def test_a_server_that_is_away_at_the_beginning_is_met_later(federated: Make, double: Double, tmp_path: Path) -> None:
    double.spec = {"strategy": {"name": "fedprox", "mu": 0.5}}
    double.away = True
    callback = federated()
    part: list[Any] = []

    def back() -> None:
        part.append(callback._participation._proximal_term if callback._participation is not None else None)
        double.away = False
        until(arrived(callback))

    made = trainer(tmp_path, callback, At(3, back), max_steps=8)
    made.train()
    assert part == [None]
    assert callback._participation is not None
    assert callback._participation._proximal_term is not None
    assert list(double.members) == ["lab"]
    assert sum(examples for _, examples in double.examples) == 32


def test_who_hears_late_what_counts_already_waits_for_no_version_of_it(
    federated: Make, double: Double, tmp_path: Path
) -> None:
    double.on_update = lambda double, update: double.publish(double.file_of(update), update["config"])
    double.away, double.rows_taken = True, 16
    callback = federated(attempt=2, wait_s=LIMIT_S)

    def back() -> None:
        double.away = False
        until(arrived(callback))

    trainer(tmp_path, callback, At(3, back), max_steps=8).train()
    assert double.examples == [(8, 16)], "an earlier launch has sent the rows of step 4"
    assert callback.version == 1


def test_fedprox_stays_nearer_to_the_global_adapter(federated: Make, double: Double, tmp_path: Path) -> None:
    def far(mu: float | None) -> float:
        double.versions.clear()
        double.updates.clear()
        start: dict[str, torch.Tensor] = {}
        made = trainer(tmp_path, federated(mu=mu), max_steps=12, optim="sgd", learning_rate=0.5)
        made.add_callback(At(1, lambda: start.update(LiveAdapter(made.model).copied())))
        made.train()
        live = LiveAdapter(made.model).tensors
        return float(sum(((live[name].detach() - value) ** 2).sum() for name, value in start.items()) ** 0.5)

    free, pulled = far(None), far(1.5)
    double.spec = {"strategy": {"name": "fedprox", "mu": 1.5}}
    assert 0 < pulled < free
    assert far(None) == pytest.approx(pulled, rel=1e-5)
    assert far(0.0) == pytest.approx(free, rel=1e-5)


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        ((422, "adapter_refused", "The tensor lora_B has the rank 4; this federation asks for 8."), AdapterRefused),
        ((410, "gone", "The federation was cancelled."), GoneError),
    ],
    ids=["422", "410"],
)
def test_a_refused_update_ends_the_training_with_the_reason_or_warns_once(
    federated: Make,
    double: Double,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    refusal: tuple[int, str, str],
    error: type[Exception],
) -> None:
    double.refuse_updates = refusal
    callback = federated()
    with pytest.raises(error, match=refusal[2]):
        trainer(tmp_path, callback, At(5, lambda: until(arrived(callback))), max_steps=12).train()
    callback = federated(on_refused="warn")
    made = trainer(tmp_path, callback, At(5, lambda: until(arrived(callback))), max_steps=12)
    caplog.clear()
    with pytest.warns(FederationWarning, match=refusal[2]) as told:
        made.train()
    assert made.state.global_step == 12
    assert len([each for each in told if issubclass(each.category, FederationWarning)]) == 1
    assert caplog.text.count(refusal[2]) == 1
    assert double.updates == []


def test_a_wrong_token_is_told_before_anything_is_trained(federated: Make, double: Double, tmp_path: Path) -> None:
    callback = federated(token="fed-000000000001.wrong")
    made = trainer(tmp_path, callback, max_steps=4)
    with pytest.raises(AuthError, match="token is wrong"):
        made.train()
    assert made.state.global_step == 0
    with pytest.warns(FederationWarning, match="token is wrong"):
        trainer(tmp_path, federated(token="fed-000000000001.wrong", on_refused="warn"), max_steps=4).train()
    assert double.updates == []


def test_a_federation_that_has_had_all_its_rounds_is_no_fault(federated: Make, double: Double, tmp_path: Path) -> None:
    def complete(double: Double, update: dict[str, Any]) -> None:
        double.status = "completed"
        double.refuse_updates = (410, "gone", "The federation is completed.")

    double.on_update = complete
    made = trainer(tmp_path, federated(), max_steps=12)
    with pytest.warns(FederationWarning, match="has completed all rounds"):
        made.train()
    assert made.state.global_step == 12
    assert len(double.updates) == 1


def test_a_model_without_an_adapter_is_refused_when_the_trainer_is_made(federated: Make, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="LlamaForCausalLM has none"):
        trainer(tmp_path, federated(), model=adapted().get_base_model().__class__(adapted().config))


@pytest.mark.parametrize(("lora", "named"), [({"use_dora": True}, "DoRA"), ({"bias": "all"}, "bias")])
def test_an_adapter_that_no_federation_takes_is_refused_before_the_first_step(
    federated: Make, double: Double, tmp_path: Path, lora: dict[str, Any], named: str
) -> None:
    made = trainer(tmp_path, federated(on_refused="warn"), model=adapted(**lora), max_steps=4)
    with pytest.raises(AdapterRefused, match=named):
        made.train()
    assert made.state.global_step == 0
    assert double.updates == []


def test_the_end_waits_for_the_last_update_but_not_for_ever(
    federated: Make, double: Double, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = federated(sync_every_steps=100)
    trainer(tmp_path, callback, max_steps=3).train()
    assert double.examples == [(3, 12)]
    double.away = True
    with caplog.at_level(logging.WARNING, "tunefleet.federation"):
        trainer(tmp_path, federated(sync_every_steps=100, final_wait_s=0.1), max_steps=3).train()
    assert "with 12 rows, could not be sent" in caplog.text
    assert len(double.updates) == 1


def test_without_versions_the_training_is_the_one_without_the_callback(
    federated: Make, double: Double, tmp_path: Path
) -> None:
    bare = trainer(tmp_path / "bare", max_steps=8)
    bare.train()
    made = trainer(tmp_path / "ours", federated(same_start=False, upload_dtype="int8"), max_steps=8)
    made.train()
    assert digest(made.model) == digest(bare.model)
    assert len(double.updates) == 2


def test_workers_of_one_federation_begin_alike(federated: Make, double: Double, tmp_path: Path) -> None:
    starts = []
    for seed in (1, 2):
        made = trainer(tmp_path, federated(worker_id=f"lab-{seed}"), model=adapted(seed), max_steps=1)
        made.add_callback(At(1, lambda made=made: starts.append(digest(made.model))))  # type: ignore[misc]
        made.train()
    assert starts[0] == starts[1]
    assert digest(adapted(1)) != digest(adapted(2))


def test_a_frozen_copy_is_kept_saved_and_not_uploaded(federated: Make, double: Double, tmp_path: Path) -> None:
    double.on_update = publish_shifted
    options = {"max_steps": 12, "save_strategy": "steps", "save_steps": 4}
    callback = federated(keep_as="global")
    watch = Watch(callback)

    def die() -> None:
        until(sent(callback, 2))
        crash()

    with pytest.raises(Crash):
        trainer(tmp_path, callback, watch, At(5, lambda: until(arrived(callback))), At(10, die), **options).train()
    published = dict(load(double.versions[0][0]))
    kept, _ = read_adapter(tmp_path / "checkpoint-8/global")
    assert all(torch.equal(kept[name], value) for name, value in published.items())
    again = federated(keep_as="global")
    watch = Watch(again)
    made = trainer(tmp_path, again, watch, Unhurried(again), **options)
    made.train(resume_from_checkpoint=True)
    assert made.model.active_adapters == ["default"]
    assert watch.objects() == watch.held()
    beside = LiveAdapter(made.model, "global").tensors
    assert all(torch.equal(beside[name], value) for name, value in published.items())
    assert not any(tensor.requires_grad for tensor in beside.values())
    assert [update["step"] for update in double.updates] == [4, 8, 12]
    assert all(weights(double, update).keys() == published.keys() for update in double.updates)


def test_the_best_checkpoint_does_not_take_the_place_of_the_last_values(
    federated: Make, double: Double, tmp_path: Path
) -> None:
    callback = federated(sync_every_steps=100)
    watch = Watch(callback)
    made = trainer(
        tmp_path,
        callback,
        watch,
        max_steps=6,
        held_out=rows(4),
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        greater_is_better=True,
        metric_for_best_model="loss",
    )
    made.train()
    assert made.state.best_global_step == 2
    (update,) = double.updates
    assert update["step"] == 6
    assert all(torch.equal(watch.values[6][name], value) for name, value in weights(double, update).items())
