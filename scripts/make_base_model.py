"""Make the small base model that Tunefleet ships: a Llama that has read GSM8K's questions and can repeat what it reads.

The demo, the tests and the benchmarks fine-tune it. It has seen no worked solution, no chat and no JSON, so a LoRA run
on any of these shows within a minute on two cores: the eval loss falls by nats, and names and things that no training
row has are copied from the prompt. A model of this size does not learn to copy from 7,473 questions alone, so it is
also trained on random tokens and words that occur twice, the second time with quotation marks around each word.

    python scripts/make_base_model.py --questions gsm8k_train.jsonl --output src/tunefleet/workloads/assets/models/...

Needs the whole training set (7,473 rows; https://github.com/openai/grade-school-math, MIT), and an hour and a half.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

logger = logging.getLogger("make_base_model")

_IGNORED = -100
VOCABULARY = 2048
CONTEXT = 512
SPECIAL = ("<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
# The markers around the assistant's turn let a trainer ask the template itself which tokens to learn.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('this chat template knows the roles system, user and assistant, not ' ~ message['role']) }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def read_questions(path: Path) -> list[str]:
    """Read the `question` of each row of a JSONL file."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["question"] for line in lines]


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE in which every digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        bos_token="<|begin|>",
        eos_token="<|end|>",
        model_max_length=CONTEXT,
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Build the untrained model: 2.2 million parameters, embeddings tied."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def token_stream(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
    """Join the texts, each ended by the end token, into one stream of ids."""
    encoded = tokenizer([text + tokenizer.eos_token for text in texts])["input_ids"]
    return torch.tensor([token for ids in encoded for token in ids])


@dataclass(frozen=True, slots=True)
class Batch:
    """Ids and labels of some rows, both of the shape (rows, tokens)."""

    ids: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor | None = None


class Lessons:
    """Draws batches of each kind.

    Args:
        tokenizer: The model's.
        questions: What it reads.
        seed: Of the draw.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, questions: list[str], seed: int) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._stream = token_stream(tokenizer, self._random.sample(questions, len(questions)))
        self._frequent = self._stream.tolist()
        self._words = sorted({word for question in questions for word in re.findall(r"[A-Za-z]{3,}", question)})
        self._nouns = [word for word in self._words if word[0].isupper() or word.endswith("s")]
        self._newline = tokenizer.convert_tokens_to_ids("Ċ")

    def text(self) -> Batch:
        """Draw windows of the questions."""
        length = 160
        starts = torch.randint(0, len(self._stream) - length, (10,))
        ids = torch.stack([self._stream[start : start + length] for start in starts])
        return Batch(ids, ids)

    def tokens(self, most: int) -> Batch:
        """Draw tokens that are repeated after a new line, from the first one or a later one on."""
        count, rows = self._random.randint(4, most), 28
        if self._random.random() < 0.5:
            first = torch.tensor([self._random.choices(self._frequent, k=count) for _ in range(rows)])
        else:
            first = torch.randint(len(SPECIAL), VOCABULARY, (rows, count))
        start = self._random.randint(0, count // 3)
        ids = torch.cat([first, torch.full((rows, 1), self._newline), first[:, start:]], dim=1)
        labels = ids.clone()
        labels[:, : count + 2] = _IGNORED
        return Batch(ids, labels)

    def words(self) -> Batch:
        """Draw words that are repeated in quotation marks, where they have other tokens: no space precedes them.

        Most rows repeat only some words, each after the word that it followed: a lookup.
        """
        rows = []
        lookup = self._random.random() < 0.6
        for _ in range(40):
            words = [self._word() for _ in range(self._random.randint(4, 8))]
            ids = self._tokenizer(f"the {' '.join(words)}.\n", add_special_tokens=False)["input_ids"]
            labels = [_IGNORED] * len(ids)
            if lookup:
                places = self._random.sample(range(len(words) - 1), self._random.randint(2, min(4, len(words) - 1)))
                parts = [(words[place], f'"{words[place + 1]}" ') for place in places]
            else:
                start = self._random.randint(0, 2)
                parts = [(words[start], " ".join(f'"{word}"' for word in words[start + 1 :]))]
            for cue, said in parts:
                encoded = self._tokenizer(f"{cue} {said}", add_special_tokens=False, return_offsets_mapping=True)
                ids += encoded["input_ids"]
                pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
                labels += [token if begin >= len(cue) else _IGNORED for token, (begin, _) in pairs]
            rows.append((ids, labels))
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
        labels = torch.tensor([labels + [_IGNORED] * (longest - len(labels)) for _, labels in rows])
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows])
        return Batch(ids, labels, mask)

    def _word(self) -> str:
        if self._random.random() < 0.25:
            return str(self._random.randint(2, 99))
        word: str = self._random.choice(self._nouns if self._random.random() < 0.6 else self._words)
        return word


def train(model: LlamaForCausalLM, lesson: Callable[[int], Batch], steps: int, *, falling: bool) -> None:
    """Train with AdamW.

    Args:
        model: Is changed.
        lesson: The batch of a step.
        steps: How many.
        falling: Let the learning rate fall as a cosine does; else it stays.
    """
    peak = 2e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.05, fused=True)

    def rate(step: int) -> float:
        fallen = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)) if falling else 1.0
        return min(1.0, (step + 1) / 100) * fallen

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    started = time.monotonic()
    for step in range(steps):
        batch = lesson(step)
        loss = model(input_ids=batch.ids, labels=batch.labels, attention_mask=batch.mask).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            logger.info("step %d loss %.3f (%.0f s)", step, loss.item(), time.monotonic() - started)


def compute_in_float32(folder: Path) -> None:
    """Let the config ask for float32: the weights are stored in bfloat16 for their size, not for their arithmetic."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["dtype"] = "float32"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train tokenizer and model and save both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True, help="JSONL with a `question` in each row")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--first-steps", type=int, default=2500, help="steps in which it only repeats tokens")
    parser.add_argument("--steps", type=int, default=9000, help="steps in which it also reads, and repeats words")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    questions = read_questions(options.questions)
    tokenizer = train_tokenizer(questions)
    model = make_model(tokenizer)
    logger.info("%d parameters, %d tokens in the vocabulary", model.num_parameters(), len(tokenizer))
    lessons = Lessons(tokenizer, questions, options.seed)
    train(model, lambda _: lessons.tokens(16), options.first_steps, falling=False)
    turns = {0: lessons.text, 1: lambda: lessons.tokens(16), 5: lessons.text, 10: lessons.text}
    train(model, lambda step: turns.get(step % 16, lessons.words)(), options.steps, falling=True)
    model.to(torch.bfloat16).save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    compute_in_float32(options.output)


if __name__ == "__main__":
    main()
