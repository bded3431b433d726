"""Writes the `Modelfile` with which Ollama runs a GGUF file: chat template, stop words and parameters.

Ollama has a template language of its own. The model's template is rendered to find the text around the messages, from
which Ollama's is composed, provided that it gives the same prompts for conversations of several turns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateError
from transformers import AutoTokenizer

from tunefleet.workloads.common.base_model import Source

_TEXTS: Final = {"system": "«system»", "user": "«user»", "assistant": "«assistant»"}
_SYSTEM, _USER, _ANSWER = _TEXTS.values()
_PROBES: Final = (("user", "assistant", "user", "assistant", "user"), ("user", "assistant"))
# Ollama's default; a model with less has to say so.
_OLLAMA_CONTEXT: Final = 4096
# Of the generation config → of Ollama.
_PARAMETERS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
}


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The text around the messages of a conversation.

    Args:
        start: Before the first user message, without a system message.
        system: Before and after a system message, up to the first user message; None if the template has none.
        user: Before and after a user message; what comes before the first one is in `start` or `system`.
        answer: Before and after an answer.
        prompt: What the model continues, after the last user message.
    """

    start: str
    system: tuple[str, str] | None
    user: tuple[str, str]
    answer: tuple[str, str]
    prompt: str

    def render(self, roles: Sequence[str]) -> str:
        """Return the prompt for messages with these roles."""
        text, first = self.start, True
        for role in roles:
            if role == "system" and self.system is not None:
                text = f"{self.system[0]}{_SYSTEM}{self.system[1]}"
            elif role == "user":
                text += f"{'' if first else self.user[0]}{_USER}{self.user[1]}"
                first = False
            else:
                text += f"{self.answer[0]}{_ANSWER}{self.answer[1]}"
        return text + self.prompt if roles[-1] == "user" else text

    def for_ollama(self) -> str | None:
        """Return Ollama's template; None if its syntax is in the text."""
        pieces = (self.start, *(self.system or ()), *self.user, *self.answer, self.prompt)
        if any(mark in piece for piece in pieces for mark in ("{{", "}}", '"""')):
            return None
        if self.system is None:
            start = f"{self.start}{{{{ if .System }}}}{{{{ .System }}}}\n\n{{{{ end }}}}"
        else:
            before, after = self.system
            start = f"{{{{ if .System }}}}{before}{{{{ .System }}}}{after}{{{{ else }}}}{self.start}{{{{ end }}}}"
        return (
            f"{start}{{{{ $first := true }}}}{{{{ range $i, $_ := .Messages }}}}"
            "{{ $last := eq (len (slice $.Messages $i)) 1 }}"
            f'{{{{ if eq .Role "user" }}}}{{{{ if not $first }}}}{self.user[0]}{{{{ end }}}}{{{{ $first = false }}}}'
            f"{{{{ .Content }}}}{self.user[1]}{{{{ if $last }}}}{self.prompt}{{{{ end }}}}"
            f'{{{{ else if eq .Role "assistant" }}}}{self.answer[0]}{{{{ .Content }}}}'
            f"{{{{ if not $last }}}}{self.answer[1]}{{{{ end }}}}{{{{ end }}}}{{{{ end }}}}"
        )


def compose(model: Path, file: str, source: Source) -> str:
    """Return the Modelfile of a GGUF file.

    Args:
        model: The folder of the model that it was made from.
        file: Name of the GGUF file, which is next to the Modelfile.
        source: The base model; custom code of a tokenizer is only run if its owner allows that.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(str(model), trust_remote_code=source.trust_remote_code)
    config, generation = _json(model / "config.json"), _json(model / "generation_config.json")
    form = chat_format(tokenizer)
    template = None if form is None else form.for_ollama()
    lines = [f"FROM ./{file}"]
    if template is None:
        what = "cannot be written for Ollama" if tokenizer.chat_template else "is missing"
        lines.append(f"# The model's chat template {what}: prompts are passed on as they are.")
    lines.append(f'TEMPLATE """{template or "{{ .Prompt }}"}"""')
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    lines += [f"PARAMETER stop {json.dumps(word, ensure_ascii=False)}" for word in _stops(tokenizer, ends, form)]
    lines += [
        f"PARAMETER {name} {generation[key]}" for key, name in _PARAMETERS.items() if generation.get(key) is not None
    ]
    context = config.get("max_position_embeddings")
    if isinstance(context, int) and context < _OLLAMA_CONTEXT:
        lines.append(f"PARAMETER num_ctx {context}")
    return "\n".join(lines) + "\n"


def chat_format(tokenizer: Any) -> ChatFormat | None:
    """Return the text around the messages; None if a tokenizer's template does more than that, or there is none."""
    if not tokenizer.chat_template:
        return None
    try:
        start, after_user = _rendered(tokenizer, "user").split(_USER)
        prompt = _rendered(tokenizer, "user", prompted=True).removeprefix(start + _USER + after_user)
        before_answer, after_answer = _rendered(tokenizer, "user", "assistant").split(_USER)[1].split(_ANSWER)
        before_user = _rendered(tokenizer, "user", "assistant", "user").split(_ANSWER)[1].split(_USER)[0]
    except (TemplateError, ValueError):
        return None
    form = ChatFormat(
        start,
        _system(tokenizer),
        (before_user.removeprefix(after_answer), after_user),
        (before_answer.removeprefix(after_user), after_answer),
        prompt,
    )
    probes = [*_PROBES, *(("system", *roles) for roles in _PROBES if form.system)]
    same = all(_rendered(tokenizer, *roles, prompted=roles[-1] == "user") == form.render(roles) for roles in probes)
    return form if same else None


def _system(tokenizer: Any) -> tuple[str, str] | None:
    try:
        before, after = _rendered(tokenizer, "system", "user").split(_SYSTEM)
    except (TemplateError, ValueError):
        return None  # not every template has system messages
    return before, after.split(_USER)[0]


def _rendered(tokenizer: Any, *roles: str, prompted: bool = False) -> str:
    messages = [{"role": role, "content": _TEXTS[role]} for role in roles]
    text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompted))
    # llama.cpp adds it where the tokenizer does.
    adds = tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]
    return text.removeprefix(tokenizer.bos_token) if adds else text


def _stops(tokenizer: Any, ends: Any, form: ChatFormat | None) -> list[str]:
    numbers = ends if isinstance(ends, list) else [] if ends is None else [ends]
    turn = form.answer[1].strip() if form is not None else ""
    # A template may end its turns with a token that the configs do not name.
    named = [turn] if turn in tokenizer.get_added_vocab() else []
    return list(dict.fromkeys(filter(None, (*tokenizer.convert_ids_to_tokens(numbers), tokenizer.eos_token, *named))))


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found
