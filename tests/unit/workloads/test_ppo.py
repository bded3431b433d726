"""The parts of a PPO training that need no trainer: its plan, its answers, its arithmetic, its judge, its prompts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.errors import DataError, InputError, ModelError, SpecError
from tunefleet.executors.alignment import PpoExecutor
from tunefleet.spec import PpoSpec, RewardModelSpec, load_task_spec, parse_workflow
from tunefleet.workloads import assets


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Encoder, RewardModel, Sick, Source, rollout, collect, pad_left, labels_of, load_tokenizer
    global load_reward_model
    global open_prompts, plan, torch
    pytest.importorskip("torch")

    import torch

    from tunefleet.workloads.common.base_model import Source, load_tokenizer
    from tunefleet.workloads.data.tokenization import Encoder
    from tunefleet.workloads.ppo import rollout
    from tunefleet.workloads.ppo.reward_model import RewardModel, labels_of, load_reward_model
    from tunefleet.workloads.ppo.rollout import collect, pad_left
    from tunefleet.workloads.ppo.setup import open_prompts, plan

    class Sick(torch.nn.Module):
        config = SimpleNamespace(
            get_text_config=lambda: SimpleNamespace(max_position_embeddings=64), id2label={0: "LABEL_0"}
        )

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return SimpleNamespace(logits=torch.tensor([[1.0]] * (len(input_ids) - 1) + [[float("inf")]]))


pytestmark = pytest.mark.torch
BUILTIN = "builtin:gsm8k-llama-2m"


def spec(**blocks: Any) -> PpoSpec:
    found = load_task_spec(
        {
            "taskType": "ppo",
            "model": {"source": {"identifier": BUILTIN}},
            "data": {"prompts": ["a", "b", "c"]},
            "reward_model": {"identifier": "judge"},
            **blocks,
        }
    )
    assert isinstance(found, PpoSpec)
    return found


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(Source(BUILTIN, str(assets.locate(BUILTIN, "model"))))


def test_each_pass_over_the_prompts_has_each_of_them_once_on_whatever_ranks_and_in_every_launch() -> None:
    training = {"batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 4}
    ranks = [plan(spec(training=training), 10, rank=rank, world=2) for rank in (0, 1)]
    assert ranks[0].steps == 5  # 40 answers, 8 a step
    assert ranks[0].epochs == 4
    taken = [row for step in range(5) for each in ranks for row in each.rows_of(step)]
    passes = [taken[start : start + 10] for start in range(0, 40, 10)]
    assert [sorted(each) for each in passes] == [list(range(10))] * 4
    assert passes[0] != passes[1]
    assert ranks[1].rows_of(3) == plan(spec(training=training), 10, rank=1, world=2).rows_of(3)


@pytest.mark.parametrize(
    ("training", "steps", "parts", "forward_rows"),
    [
        ({"batch_size": 4, "steps": 6}, 6, 1, 4),
        ({"batch_size": 4, "gradient_accumulation_steps": 4, "mini_batch_size": 1, "steps": 50}, 13, 16, 1),
        ({"per_device_train_batch_size": 4, "num_mini_batches": 2, "max_steps": 7}, 7, 2, 2),
        ({"batch_size": 2, "gradient_accumulation_steps": 4, "num_mini_batches": 2, "num_train_epochs": 8}, 3, 2, 2),
    ],
    ids=["plain", "example", "parts", "epochs"],
)
def test_steps_and_parts_of_a_batch(training: dict[str, Any], steps: int, parts: int, forward_rows: int) -> None:
    wanted = spec(training=training)
    made = plan(wanted, 3, rank=0, world=1)
    assert (made.steps, wanted.training.parts, made.forward_rows) == (steps, parts, forward_rows)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"batch_size": 4, "mini_batch_size": 3}, "mini_batch_size: does not divide the 4 prompts of a step"),
        ({"batch_size": 4, "num_mini_batches": 3}, "num_mini_batches: does not divide the 4 prompts of a step"),
        ({"batch_size": 4, "mini_batch_size": 2, "num_mini_batches": 4}, "contradicts mini_batch_size"),
    ],
    ids=["rows", "parts", "both"],
)
def test_a_batch_that_cannot_be_divided_is_refused_at_the_submit(training: dict[str, Any], said: str) -> None:
    blocks = {"data": {"prompts": ["a"]}, "reward_model": {"identifier": "judge"}, "training": training}
    document = {"taskType": "ppo", "model": {"source": {"identifier": BUILTIN}}, **blocks}
    with pytest.raises(SpecError, match=said):
        parse_workflow(json.dumps({"apiVersion": "tunefleet/v1", "metadata": {"name": "n"}, "spec": document}))


def test_an_answer_ends_with_its_end_though_that_is_the_padding_or_where_a_stop_stands(tokenizer: Any) -> None:
    stub = SimpleNamespace(pad_token_id=0, decode=lambda ids, **_: "".join(chr(96 + token) for token in ids if token))
    prompts, seen = pad_left([[5, 6], [7]], 0, torch.device("cpu"))
    assert prompts.tolist() == [[5, 6], [0, 7]]
    drawn = [torch.tensor([[1, 2, 0, 0]]), torch.tensor([[3, 4, 9]])]
    made = collect(prompts, seen, drawn, stub, {0}, ["di"])  # type: ignore[arg-type]
    assert made.texts == ["ab", "c"]
    assert made.lengths.tolist() == [3, 3]  # the end counts, and so does what the stop was written with
    assert made.ended == [True, True]
    assert made.seen.tolist() == [[1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 0]]
    unended = collect(prompts[:1], seen[:1], [torch.tensor([[1, 2]])], stub, {0}, [])  # type: ignore[arg-type]
    assert (unended.ended, unended.lengths.tolist()) == ([False], [2])


def test_the_score_comes_with_the_last_token_and_each_token_pays_for_its_divergence() -> None:
    args = SimpleNamespace(kl_coef=0.5, kl_estimator="k1", gamma=1.0, lam=1.0, cliprange=0.2, cliprange_value=0.2)
    args.vf_coef = 1.0
    answered = torch.tensor([[True, True, False], [True, True, True]])
    logprobs = torch.tensor([[-1.0, -2.0, 9.0], [-1.0, -1.0, -1.0]])
    reference = torch.tensor([[-2.0, -2.0, 0.0], [-1.0, -1.0, -1.0]])
    scores = torch.tensor([3.0, -1.0])
    known = rollout.rollout_values(args, answered, logprobs, reference, torch.zeros(2, 3), scores)
    assert known.kl.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert known.returns.tolist() == [[2.5, 3.0, 0.0], [-1.0, -1.0, -1.0]]
    counted = known.advantages[answered]
    assert counted.mean().item() == pytest.approx(0, abs=1e-6)
    assert counted.std().item() == pytest.approx(1, abs=1e-4)
    assert known.advantages[0, 2] == 0
    # Seen as they were drawn, nothing is clipped, and what the policy loses is what it gains: the mean advantage.
    total, sums = rollout.clipped_loss(args, known, slice(None), answered, logprobs, torch.zeros(2, 3))
    assert sums["policy_loss"].item() == pytest.approx(0, abs=1e-5)
    assert sums["clipped"].item() == sums["drift"].item() == 0
    assert total.item() == pytest.approx(0.5 * (2.5**2 + 3**2 + 3), rel=1e-5)


@pytest.mark.parametrize(
    ("wanted", "labels", "found"),
    [
        ({}, ["LABEL_0"], (0, None)),
        ({}, ["negative", "Positive"], (1, None)),
        ({"type": "sentiment"}, ["NEGATIVE", "neutral", "POSITIVE"], (2, 0)),
        ({"positive_label": "joy"}, ["joy", "anger"], (0, None)),
        ({"type": "sentiment", "positive_label": "joy", "negative_label": "ANGER"}, ["joy", "anger"], (0, 1)),
        ({}, ["LABEL_0", "LABEL_1"], "The positive label .* is ambiguous"),
        ({"type": "sentiment"}, ["score"], "The positive label .* is ambiguous"),
        ({"type": "sentiment", "positive_label": "joy"}, ["joy", "anger"], "The negative label .* is ambiguous"),
        ({"positive_label": "glee"}, ["joy", "anger"], "is 'glee', which is not a label of the reward model"),
    ],
    ids=["score", "named", "sentiment", "given", "both-given", "unclear", "no-sentiment", "half", "unknown"],
)
def test_labels_are_found_by_name_or_given_and_never_guessed(wanted: Any, labels: list[str], found: Any) -> None:
    asked = RewardModelSpec(identifier="judge", **wanted)
    if isinstance(found, str):
        with pytest.raises(ModelError, match=found):
            labels_of(asked, dict(enumerate(labels)))
    else:
        assert labels_of(asked, dict(enumerate(labels))) == found


def test_a_model_without_a_head_is_no_judge(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"not a usable sequence classifier: its weights lack score\.weight"):
        load_reward_model(RewardModelSpec(identifier=BUILTIN), {}, tmp_path, torch.device("cpu"))


def test_prompts_come_from_the_named_field_with_the_answer_behind_and_are_cut(tmp_path: Path, tokenizer: Any) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"ask": "one two three four five six seven", "said": " eight"}\n{"ask": "x", "said": " y"}\n')

    def read(**jsonl: Any) -> Any:
        wanted = spec(data={"jsonl": {"path": str(rows), **jsonl}})
        return open_prompts(wanted, {"data.jsonl.path": str(rows)}, tmp_path, Encoder(tokenizer), 6)

    found = read(query_field="ask", response_field="said")
    assert [prompt.text for prompt in found.train] == [" four five six seven eight", "x y"], "the end counts"
    assert found.cut == 1
    assert [tokenizer.decode(prompt.ids) for prompt in found.train] == [prompt.text for prompt in found.train]
    assert max(len(prompt.ids) for prompt in found.train) == 6
    with pytest.raises(DataError, match=r"Row 1 of .*: it has no column 'query', but ask, said"):
        read()


def test_the_separator_stands_between_a_text_and_its_answer_and_never_behind_a_chat(
    tmp_path: Path, tokenizer: Any
) -> None:
    def texts(separator: str | None, **data: Any) -> list[str]:
        wanted = spec(data={**data, **({} if separator is None else {"separator": separator})})
        return [each.text for each in open_prompts(wanted, {}, tmp_path, Encoder(tokenizer), 60).train]

    assert texts(None, prompts=["a"]) == ["a"], "as it was before there was one"
    assert texts("\n", prompts=["a"]) == ["a\n"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "said": "b"}\n')
    assert texts("\n", path=str(rows)) == ["a\n"]
    assert texts("\n", jsonl={"path": str(rows), "query_field": "prompt", "response_field": "said"}) == ["a\nb"]
    rows.write_text('{"prompt": [{"role": "user", "content": "a"}]}\n')
    assert texts("\n", path=str(rows)) == texts("", path=str(rows))


def test_a_judge_whose_reward_is_no_number_is_an_error_that_quotes_the_answer(tokenizer: Any) -> None:
    judge = RewardModel(RewardModelSpec(identifier="sick"), Sick(), tokenizer, torch.device("cpu"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="The reward model sick returned inf for 'the second'"):
        judge.scores(["the first", "the second"], 2)


def test_without_its_environment_the_kind_is_not_offered_and_says_how_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFLEET_ENVS_DIR", str(tmp_path))
    assert PpoExecutor().unavailable_reason() == "Environment 'ppo' is missing: tunefleet env create ppo."
