"""The control callback in each of TRL's trainers: save, pause, resume, abort."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tunefleet.trainer_control.checkpoints.manifest import invalid_reason
from tunefleet.trainer_control.control import discovery


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global At, Dataset, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast
    global TrainerControlCallback, digest, tiny_config, torch, trl
    pytest.importorskip("torch")
    pytest.importorskip("trl")

    import torch
    import trl
    from datasets import Dataset
    from transformers import LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

    from tests.integration.trainer_control.tiny import At, digest, tiny_config
    from tunefleet import TrainerControlCallback


pytestmark = [pytest.mark.torch, pytest.mark.proof]

WORDS = [f"w{n}" for n in range(24)]
PAIRS = [{"prompt": f"w{n}", "chosen": f"w{n} w{n + 1}", "rejected": f"w{n} w{n + 2} w3"} for n in range(16)]
ROWS: dict[str, list[dict[str, Any]]] = {
    "SFT": [{"text": f"w{n} w{n + 1} w{n + 2}"} for n in range(16)],
    "DPO": PAIRS,
    "KTO": [{"prompt": f"w{n}", "completion": f" w{n + 1} w2", "label": n % 2 == 0} for n in range(16)],
    "GRPO": [{"prompt": f"w{n}"} for n in range(16)],
    "RLOO": [{"prompt": f"w{n}"} for n in range(16)],
    "Reward": [{"chosen": pair["chosen"], "rejected": pair["rejected"]} for pair in PAIRS],
}
OWN: dict[str, dict[str, Any]] = {
    "GRPO": {"num_generations": 2, "max_completion_length": 4},
    "RLOO": {"num_generations": 2, "max_completion_length": 4},
}


def trainer_of(kind: str) -> tuple[Any, Any]:
    return getattr(trl, f"{kind}Trainer"), getattr(trl, f"{kind}Config")


def tokenizer() -> PreTrainedTokenizerFast:
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def model_for(kind: str, folder: Path) -> Any:
    """Return a model that lies in a folder: some trainers load a second one from there, to compare with."""
    torch.manual_seed(0)
    config = tiny_config(pad_token_id=0, bos_token_id=1, eos_token_id=2, num_labels=1)
    cls = LlamaForSequenceClassification if kind == "Reward" else LlamaForCausalLM
    cls(config).save_pretrained(folder)
    return cls.from_pretrained(folder)


@pytest.fixture
def build(tmp_path: Path, jobs: Path) -> Iterator[Callable[..., tuple[Any, TrainerControlCallback]]]:
    made: list[TrainerControlCallback] = []

    def make(kind: str, output: str = "out", asks: dict[int, str] | None = None) -> tuple[Any, TrainerControlCallback]:
        end()
        trainer, config = trainer_of(kind)
        control = TrainerControlCallback(job_id=kind)
        made.append(control)
        args = config(
            output_dir=str(tmp_path / output),
            per_device_train_batch_size=2,
            max_steps=4,
            save_strategy="no",
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            **OWN.get(kind, {}),
        )
        rewards = {"reward_funcs": lambda completions, **_: [float(len(text)) for text in completions]}
        built = trainer(
            model=model_for(kind, tmp_path / "model"),
            args=args,
            train_dataset=Dataset.from_list(ROWS[kind]),
            processing_class=tokenizer(),
            callbacks=[control],
            **(rewards if kind in OWN else {}),
        )
        for step, command in (asks or {}).items():
            act = _asking(control, command)
            built.add_callback(At(step, act))
        return built, control

    def end() -> None:
        for control in made:
            if control._job is not None:
                control._job.on_exit()
        discovery._release()

    yield make
    end()


def _asking(control: TrainerControlCallback, command: str) -> Callable[[], Any]:
    def act() -> None:
        assert control._job is not None
        control._job.board.submit(command, None, command)

    return act


def outcome(control: TrainerControlCallback, command: str) -> tuple[str, int | None, str | None]:
    assert control._job is not None
    item = control._job.board.state(command)
    assert item is not None
    return item.state, item.step, item.checkpoint


@pytest.mark.parametrize(
    "kind",
    ["SFT", *(pytest.param(kind) for kind in ("DPO", "GRPO", "KTO", "RLOO", "Reward"))],
)
@pytest.mark.filterwarnings("ignore")
def test_save_pause_resume_abort(kind: str, build: Callable[..., Any], tmp_path: Path) -> None:
    first, control = build(kind, asks={1: "save_checkpoint", 2: "pause"})
    with pytest.raises(SystemExit):
        first.train()
    assert outcome(control, "save_checkpoint") == ("durable", 1, "checkpoint-1")
    assert outcome(control, "pause") == ("durable", 2, "checkpoint-2")
    assert invalid_reason(tmp_path / "out/checkpoint-2") is None
    second, control = build(kind, asks={3: "abort"})
    with pytest.raises(SystemExit):
        second.train(resume_from_checkpoint=True)
    assert outcome(control, "abort") == ("applied", 3, None)
    assert control._job is not None
    assert control._job.status.fields["state"] == "aborted"
    assert sorted(path.name for path in (tmp_path / "out").glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    third, control = build(kind)
    third.train(resume_from_checkpoint=True)
    straight, _ = build(kind, output="straight")
    straight.train()
    assert third.state.global_step == straight.state.global_step == 4
    assert digest(third.model) == digest(straight.model)
