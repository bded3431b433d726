"""`grpo` and `rloo`: training on several sampled answers per prompt, whose rewards are compared within the group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import datasets
import torch
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from tunefleet.analysis.dataset.notes import Notes
from tunefleet.analysis.memory import Load
from tunefleet.errors import DataError, InputError
from tunefleet.spec import GrpoSpec, RlooSpec
from tunefleet.spec.tasks.preference_tasks import RewardedTaskSpec
from tunefleet.workloads.data.chat_template import ChatRenderer, PromptTokenizer
from tunefleet.workloads.data.formats import Content, Shape
from tunefleet.workloads.data.readers import Rows
from tunefleet.workloads.data.sources import LoadedRows
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.ppo.reward_model import RewardModel, load_reward_model
from tunefleet.workloads.preference import preference_rows
from tunefleet.workloads.preference.method import ExactEvalTrainer, Method, Parts, SpecT, TrainingData, require_rows
from tunefleet.workloads.preference.preference_rows import Counts
from tunefleet.workloads.preference.reward_functions import Completions, Rule, by_rule

Scored = Callable[..., list[float]]
_REFERENCE = "reference"


class GroupMethod(Method[SpecT]):
    """Base class of both methods."""

    measures: ClassVar = {
        "reward": "reward",
        "reward_std": "reward_std",
        "answer_tokens": "completions/mean_length",
        "cut_answers": "completions/clipped_ratio",
    }

    @property
    def _wanted(self) -> RewardedTaskSpec:
        assert isinstance(self.spec, RewardedTaskSpec)
        return self.spec

    @property
    def load(self) -> Load:
        """One sequence per answer; a reference model if there is a KL term and no adapter to disable."""
        beta = float(getattr(self.spec.training, "beta", 0.0))
        return Load(1, reference=beta > 0 and self.spec.adapter is None)

    def tokenize(self, found: LoadedRows, encoder: Encoder, max_length: int) -> TrainingData:
        """Keep the prompts that are not too long; the trainer tokenizes them."""
        counts = Counts()
        shape = self.shape(found.train, found.origin, Notes())
        train = self._prompts(found.train, shape, encoder, max_length, counts)
        require_rows(counts, found.origin, max_length)
        self._require_full_step(len(train), found.origin)
        held_out = None
        if found.held_out is not None:
            others = Counts()
            other = self.shape(found.held_out, found.held_out_origin, shape.notes)
            held_out = self._prompts(found.held_out, other, encoder, max_length, others)
            require_rows(others, found.held_out_origin, max_length)
        # A sequence is a prompt with its answer.
        longest = max_length + self._wanted.generation.max_new_tokens
        return TrainingData(train, held_out, counts, found.origin, longest, shape.notes.sentences)

    def _require_full_step(self, prompts: int, origin: str) -> None:
        """Refuse fewer prompts than a step needs: the trainer only makes full steps."""
        training = self._wanted.training
        answers = training.batch_size * training.gradient_accumulation_steps * ranks.count()
        needed = -(-answers // training.num_generations)
        how = "batch_size × gradient_accumulation_steps × processes ÷ num_generations"
        if prompts < needed:
            raise DataError(
                f"A step needs {needed} prompts ({how}), but {origin} has {prompts} usable prompts.",
                hint="Add prompts, lower `training.batch_size` or `training.gradient_accumulation_steps`, or "
                "raise `training.num_generations`.",
            )
        if left := prompts % needed:
            text = f"A step needs {needed} prompts ({how}): each epoch skips {left} of {prompts}, chosen at random."
            self.launch.journal.event("data.incomplete_step", text, "warning", {"prompts": prompts, "left_out": left})

    def _prompts(self, read: Rows, shape: Shape, encoder: Encoder, limit: int, counts: Counts) -> datasets.Dataset:
        kept: list[dict[str, Any]] = []
        for row in preference_rows.prompts(read, shape):
            length = len(encoder.ask(row.prompt, None, row.place)[1])
            if length > limit:
                counts.dropped += 1
                continue
            counts.rows += 1
            counts.tokens += length
            kept.append({"prompt": row.prompt, _REFERENCE: row.reference})
        return datasets.Dataset.from_list(kept)

    def arguments(self, parts: Parts) -> dict[str, Any]:
        """Return the arguments common to TRL's GRPO and RLOO trainers."""
        training, generation = self._wanted.training, self._wanted.generation
        size = training.num_generations
        # Answers to a prompt must be in one batch, so the eval batch size is a multiple of the group size.
        parts.arguments["per_device_eval_batch_size"] = -(-parts.arguments["per_device_eval_batch_size"] // size) * size
        # The loss does not measure the quality of the answers.
        best = {"metric_for_best_model": "eval_reward", "greater_is_better": True}
        better = {} if training.eval_strategy == "no" else best
        source = parts.base.source
        return {
            **parts.arguments,
            **better,
            # TRL loads the reference model itself, from the same source as the trained model.
            "model_init_kwargs": None if source.revision is None else {"revision": source.revision},
            "trust_remote_code": source.trust_remote_code,
            "num_generations": size,
            "num_iterations": training.num_iterations,
            "epsilon": training.epsilon,
            "mask_truncated_completions": training.mask_truncated_completions,
            "max_completion_length": generation.max_new_tokens,
            "temperature": generation.temperature,
            "top_p": generation.top_p,
            "top_k": max(generation.top_k, 0),
            "min_p": generation.min_p,
            "repetition_penalty": generation.repetition_penalty,
            "reward_weights": [one.weight for one in self._wanted.rewards]
            + ([1.0] if self._wanted.reward_model is not None else []),
        }

    def rewards(self, parts: Parts) -> list[Scored]:
        """Return the reward functions, named as in the metrics.

        Raises:
            InputError: If a function or model cannot be used.
        """
        found: list[Scored] = []
        kinds = [one.type for one in self._wanted.rewards]
        for number, one in enumerate(self._wanted.rewards, start=1):
            name = one.type if kinds.count(one.type) == 1 else f"{one.type}_{number}"
            found.append(_named(name, by_rule(one)))
        if self._wanted.reward_model is not None:
            # The trainer, which would know its device, does not exist yet.
            device = self._device(parts)
            model = load_reward_model(self._wanted.reward_model, self.launch.job.inputs, self.launch.workspace, device)
            found.append(_by_model(model, self._wanted.training.batch_size, parts.tokenizer))
        return found

    def _device(self, parts: Parts) -> torch.device:
        kind = parts.hardware_setup.machine.device
        return torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


class _SamplingTrainer(ExactEvalTrainer):
    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        if isinstance(prompts[0], str):
            return PromptTokenizer(self.processing_class).prompts(prompts, rendered=False), None, {}
        return super()._tokenize_prompts(prompts)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        # With the compute dtype of training, whatever the dtype of the weights.
        with self.accelerator.autocast():
            return super()._generate(*args, **kwargs)


class _Grpo(_SamplingTrainer, GRPOTrainer):
    pass


class _Rloo(_SamplingTrainer, RLOOTrainer):
    pass


class GrpoMethod(GroupMethod[GrpoSpec]):
    """Group relative policy optimization (Shao et al. 2024, arXiv 2402.03300)."""

    def trainer(self, parts: Parts) -> ExactEvalTrainer:
        """Build TRL's trainer."""
        training = self.spec.training
        args = GRPOConfig(
            **self.arguments(parts),
            beta=training.beta,
            loss_type=training.loss_type,
            scale_rewards=training.scale_rewards,
            epsilon_high=training.epsilon_high,
        )
        return _Grpo(args=args, reward_funcs=self.rewards(parts), **parts.common)


class RlooMethod(GroupMethod[RlooSpec]):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740)."""

    def trainer(self, parts: Parts) -> ExactEvalTrainer:
        """Build TRL's trainer."""
        training = self.spec.training
        args = RLOOConfig(
            **self.arguments(parts), beta=training.beta, normalize_advantages=training.normalize_advantages
        )
        return _Rloo(args=args, reward_funcs=self.rewards(parts), **parts.common)


def _named(name: str, rule: Rule) -> Scored:
    def score(*, prompts: list[Content], completions: list[Any], completion_ids: Any, **columns: Any) -> list[float]:
        references: Sequence[str | None] = columns.get(_REFERENCE) or [None] * len(prompts)
        return rule(Completions(prompts, [_text(one) for one in completions], references, completion_ids))

    score.__name__ = name
    return score


def _by_model(model: RewardModel, batch: int, tokenizer: PreTrainedTokenizerBase) -> Scored:
    def text(prompt: Content, completion: Any) -> str:
        if isinstance(prompt, str):
            return prompt + _text(completion)
        # Rendered with the chat template of the trained model, as when the answer was sampled.
        return ChatRenderer(tokenizer).render([*prompt, *completion])

    def reward_model(*, prompts: list[Content], completions: list[Any], **columns: Any) -> list[float]:
        del columns
        texts = [text(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        scores: list[float] = model.scores(texts, batch).tolist()
        return scores

    return reward_model


def _text(completion: Any) -> str:
    """Return the model's answer as text, from a text or a chat completion."""
    if isinstance(completion, str):
        return completion
    if not completion:
        raise InputError("The trainer sampled no answer to a prompt.")
    return "".join(str(message.get("content") or "") for message in completion)
