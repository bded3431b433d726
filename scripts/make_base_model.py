"""Make the small base model that Tunefleet ships: a Llama that has read GSM8K's questions and none of its answers.

The demo, the tests and the benchmarks fine-tune it. It knows the words of the domain but has never seen a worked
solution, so a LoRA on question → answer rows lowers the held-out loss by a few nats within a minute on two cores.

    python scripts/make_base_model.py --questions gsm8k_train.jsonl --output src/tunefleet/programs/assets/models/...

Needs the whole training set (7,473 rows; https://github.com/openai/grade-school-math, MIT); takes about five minutes.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

logger = logging.getLogger("make_base_model")

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


def train(model: LlamaForCausalLM, stream: torch.Tensor, steps: int, batch: int, length: int) -> None:
    """Train with AdamW on random windows of the stream, one cycle of a cosine learning rate."""
    peak = 3e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
    )
    started = time.monotonic()
    for step in range(steps):
        starts = torch.randint(0, len(stream) - length, (batch,))
        ids = torch.stack([stream[start : start + length] for start in starts])
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == steps - 1:
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
    parser.add_argument("--steps", type=int, default=1200)
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
    train(model, token_stream(tokenizer, questions), options.steps, batch=16, length=128)
    model.to(torch.bfloat16).save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    compute_in_float32(options.output)


if __name__ == "__main__":
    main()
