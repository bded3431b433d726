"""Compares a GGUF file with the model it was made from: the same tokens of a prompt, and the same greedy answers.

The file is run by llama.cpp's server, over a Unix socket.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tunefleet.errors import ModelError
from tunefleet.workloads.common.base_model import Source

PROMPTS: Final = ("What is 12 plus 30?", "Write a sentence about the sea.", "Name three colors.")
_TOKENS: Final = 16
_CONTEXT: Final = 512
# Of `llama-server`: variables, because older versions reject unknown options. It must not use a GPU or the network.
_OPTIONS: Final = {
    "LLAMA_ARG_DEVICE": "none",
    "LLAMA_ARG_FIT": "off",
    "LLAMA_ARG_N_PARALLEL": "1",
    "LLAMA_ARG_WARMUP": "0",
    "LLAMA_ARG_OFFLINE": "1",
}
_LOAD_S: Final = 900.0
_ANSWER_S: Final = 600.0
_POLL_S: Final = 0.1
_TAIL_LINES: Final = 5


def compare(model: Path, file: Path, server: Sequence[str], source: Source) -> dict[str, Any]:
    """Compare the greedy answers of a model, in float32, with those of its GGUF file.

    Returns:
        The outcome in a sentence; how many answers are the same, and how many tokens up to the first difference of
        each; whether llama.cpp splits the prompts into the same tokens; and the answers that differ.

    Raises:
        ModelError: If llama.cpp cannot run the file.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(str(model), trust_remote_code=source.trust_remote_code)
    texts = [_rendered(tokenizer, prompt) for prompt in PROMPTS]
    asked = [list(tokenizer(text, add_special_tokens=False).input_ids) for text in texts]
    wanted = _answers(model, asked, source)
    with _served(file, server) as client:
        split = [_post(client, "/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]
                 for text in texts]  # fmt: skip
        found = [_completion(client, tokens, answer.stops) for tokens, answer in zip(asked, wanted, strict=True)]
    pairs = list(zip(PROMPTS, wanted, found, strict=True))
    checked = {
        "prompts": len(asked),
        "same_prompts": sum(one.tokens == other for _, one, other in pairs),
        "tokens": sum(len(one.tokens) for one in wanted),
        "same_tokens": sum(_common(one.tokens, other) for _, one, other in pairs),
        "same_tokenization": split == asked,
        "differences": [_difference(tokenizer, *pair) for pair in pairs if pair[1].tokens != pair[2]],
    }
    return {"summary": _summary(checked), **checked}


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer of the model.

    Args:
        tokens: Without the token that ends it.
        logits: One row for each token and one for the end, (at most 17, vocabulary).
        stops: The tokens that end an answer.
    """

    tokens: list[int]
    logits: list[torch.Tensor]
    stops: frozenset[int]


def _difference(tokenizer: Any, prompt: str, one: Answer, other: list[int]) -> dict[str, Any]:
    at = _common(one.tokens, other)
    chances = one.logits[min(at, len(one.logits) - 1)].softmax(-1)
    return {
        "prompt": prompt,
        "model": tokenizer.decode(one.tokens),
        "gguf": tokenizer.decode(other),
        # Almost equal: rounding decides.
        "model_probability": round(float(chances.max()), 4),
        "gguf_probability": round(float(chances[other[at]] if at < len(other) else chances[list(one.stops)].max()), 4),
    }


def _summary(checked: dict[str, Any]) -> str:
    split = "" if checked["same_tokenization"] else ", and llama.cpp splits the prompts into other tokens"
    return (
        f"The GGUF file gives the model's answer to {checked['same_prompts']} of {checked['prompts']} prompts "
        f"({checked['same_tokens']} of {checked['tokens']} tokens up to the first difference){split}."
    )


def _rendered(tokenizer: Any, prompt: str) -> str:
    if not tokenizer.chat_template:
        return prompt
    messages = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


@torch.no_grad()
def _answers(folder: Path, prompts: Sequence[list[int]], source: Source) -> list[Answer]:
    model: Any = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, trust_remote_code=source.trust_remote_code
    )
    model.eval()
    ends = model.generation_config.eos_token_id
    stops = frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])
    return [_answer(model, prompt, stops) for prompt in prompts]


def _answer(model: Any, prompt: list[int], stops: frozenset[int]) -> Answer:
    tokens: list[int] = []
    rows: list[torch.Tensor] = []
    # Not `generate`: it would apply the penalties of the model's generation config.
    while len(tokens) < _TOKENS:
        rows.append(model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, -1])
        token = int(rows[-1].argmax())
        if token in stops:
            break
        tokens.append(token)
    return Answer(tokens, rows, stops)


@contextmanager
def _served(file: Path, server: Sequence[str]) -> Iterator[httpx.Client]:
    with tempfile.TemporaryDirectory(prefix="tunefleet-gguf-") as folder:
        socket, log = Path(folder, "s.sock"), Path(folder, "log")
        command = [*server, "--model", str(file), "--host", str(socket), "--ctx-size", str(_CONTEXT)]
        # More threads than processors wait without sleeping.
        command += ["--threads", str(torch.get_num_threads())]
        with (
            log.open("wb") as output,
            # Its standard input is closed when this process dies.
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, env={**os.environ, **_OPTIONS}
            ) as process,
        ):
            try:
                with httpx.Client(
                    transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://llama", timeout=_ANSWER_S
                ) as client:
                    _await(client, process, log)
                    yield client
            finally:
                process.kill()


def _await(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _LOAD_S
    while time.monotonic() < until:
        if process.poll() is not None:
            lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise ModelError(
                "llama.cpp cannot load the GGUF file.",
                hint="Its version may not support this model; see the detail, or set merge.verify: false.",
                detail="\n".join(lines[-_TAIL_LINES:]),
            )
        try:
            # Until the file is loaded: 503, or no answer.
            if client.get("/health").status_code != httpx.codes.SERVICE_UNAVAILABLE:
                return
        except httpx.TransportError:
            pass  # it is not listening yet
        time.sleep(_POLL_S)
    raise ModelError(f"llama.cpp did not load the GGUF file within {_LOAD_S:g} s.", hint="Set merge.verify: false.")


def _completion(client: httpx.Client, tokens: list[int], stops: frozenset[int]) -> list[int]:
    body = {"prompt": tokens, "n_predict": _TOKENS, "temperature": 0, "return_tokens": True}
    found = list(_post(client, "/completion", body)["tokens"])
    return found[:-1] if found and found[-1] in stops else found


def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        reply = client.post(path, json=body)
        reply.raise_for_status()
    except httpx.HTTPError as error:
        raise ModelError(f"llama.cpp cannot run the GGUF file: {error}.") from error
    found: dict[str, Any] = reply.json()
    return found


def _common(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
