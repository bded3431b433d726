"""The chat template of a model as one of Ollama's, for the families that people use; or none, which is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.libraries import required
from tunefleet.workloads import assets

required("transformers")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Source, modelfile
    from tunefleet.workloads.common.base_model import Source
    from tunefleet.workloads.merging import modelfile


CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' "
    "+ message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') "
    "+ '\n' + message['content'] + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + (system if loop.first else '') + message['content'] + '[/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + '</s>' }}{% endif %}{% endfor %}"
)
# Only the newest question is marked: text around a message does not express that.
MARKS_THE_LAST = (
    "{% for message in messages %}{{ ('LAST' if loop.last else message['role']) + message['content'] }}{% endfor %}"
)
LOOP = "{{ $first := true }}{{ range $i, $_ := .Messages }}{{ $last := eq (len (slice $.Messages $i)) 1 }}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The built-in model, whose files may be changed."""
    for file in assets.locate("builtin:gsm8k-llama-2m", "model").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def written(model: Path, template: str | None, **generation: Any) -> str:
    if template is None:
        (model / "chat_template.jinja").unlink()
    else:
        (model / "chat_template.jinja").write_text(template)
    (model / "generation_config.json").write_text(json.dumps(generation))
    return modelfile.compose(model, "model-q8_0.gguf", Source("m", str(model)))


@pytest.mark.parametrize(
    ("template", "start", "user", "answer"),
    [
        (
            CHATML,
            "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n<|im_start|>user\n"
            "{{ else }}<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{{ end }}",
            "{{ .Content }}<|im_end|>\n{{ if $last }}<|im_start|>assistant\n{{ end }}",
            "<|im_start|>assistant\n{{ .Content }}{{ if not $last }}<|im_end|>\n{{ end }}",
        ),
        (
            LLAMA3,
            "{{ if .System }}<|start_header_id|>system<|end_header_id|>\n\n{{ .System }}<|eot_id|>",
            "{{ .Content }}<|eot_id|>{{ if $last }}<|start_header_id|>assistant<|end_header_id|>\n\n{{ end }}",
            "{{ .Content }}{{ if not $last }}<|eot_id|>{{ end }}",
        ),
        (
            GEMMA,
            "<start_of_turn>user\n{{ if .System }}{{ .System }}\n\n{{ end }}",
            "{{ .Content }}<end_of_turn>\n{{ if $last }}<start_of_turn>model\n{{ end }}",
            "<start_of_turn>model\n{{ .Content }}",
        ),
        (
            MISTRAL,
            "{{ if .System }}[INST] {{ .System }}\n\n{{ else }}[INST] {{ end }}",
            "{{ if not $first }}[INST] {{ end }}{{ $first = false }}{{ .Content }}[/INST]",
            " {{ .Content }}{{ if not $last }}</s>{{ end }}",
        ),
    ],
    ids=["chatml", "llama-3", "gemma", "mistral"],
)
def test_the_text_around_the_messages_becomes_ollamas_template(
    model: Path, template: str, start: str, user: str, answer: str
) -> None:
    text = written(model, template, eos_token_id=[2, 0], temperature=0.6, repetition_penalty=1.1)
    assert text.startswith(f'FROM ./model-q8_0.gguf\nTEMPLATE """{start}')
    assert all(part in text for part in (LOOP, user, answer))
    assert "#" not in text
    lines = text.splitlines()
    assert {"PARAMETER temperature 0.6", "PARAMETER repeat_penalty 1.1", "PARAMETER num_ctx 512"} <= set(lines)
    assert sum(line.startswith("PARAMETER stop ") for line in lines) >= 2


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (MARKS_THE_LAST, "cannot be written for Ollama"),
        ("{{ '{{' }}" + LLAMA3, "cannot be written for Ollama"),
        (None, "is missing"),
    ],
    ids=["last", "syntax", "none"],
)
def test_prompts_are_raw_where_ollama_has_no_such_template_and_the_file_says_so(
    model: Path, template: str | None, why: str
) -> None:
    text = written(model, template)
    assert f"# The model's chat template {why}: prompts are passed on as they are." in text
    assert 'TEMPLATE """{{ .Prompt }}"""' in text
