"""Columns that a campaign names are looked for in its local files, and ids are held to the rules of the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunefleet.analysis.dataset import file_reader
from tunefleet.client.call import Work
from tunefleet.client.campaign_files import column_errors, file_errors, send
from tunefleet.errors import SpecError
from tunefleet.spec.documents.campaign_data import CampaignDatasetSpec
from tunefleet.spec.documents.campaign_document import CampaignSpec

ROW = {"question": "q", "context": "c", "answer": "a"}
NAMES = {"field_instruction": "question", "field_output": "answer"}


def write(folder: Path, name: str, rows: list[Any]) -> Path:
    file = folder / name
    if name.endswith(".parquet"):
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif name.endswith(".csv"):
        file.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n")
    elif name.endswith(".json"):
        file.write_text(json.dumps(rows))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def errors(file: Path, *, chat: bool = False, **fields: str) -> list[tuple[str, str, str | None]]:
    return list(column_errors(CampaignDatasetSpec(path=file.name, **fields), file, chat=chat))


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.csv", "a.parquet"])
@pytest.mark.parametrize(
    ("fields", "key", "missing", "hint"),
    [
        ({"field_instruction": "question", "field_input": "context", "field_output": "answer"}, None, "", ""),
        ({**NAMES, "field_output": "anser"}, "field_output", "anser", "did you mean answer?"),
        ({**NAMES, "field_input": "Contxt"}, "field_input", "Contxt", "did you mean context?"),
        ({**NAMES, "field_instruction": "prompt"}, "field_instruction", "prompt", "name an existing column"),
    ],
)
def test_a_column_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, name: str, fields: dict[str, str], key: str | None, missing: str, hint: str
) -> None:
    message = f"column {missing!r} not found in {name} (columns: question, context, answer)"
    expected = [] if key is None else [(key, message, hint)]
    assert errors(write(tmp_path, name, [ROW, ROW]), **fields) == expected


CHAT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
SHAREGPT = {"chat_role_field": "from", "chat_content_field": "value"}


@pytest.mark.parametrize(
    ("row", "fields", "key", "said"),
    [
        ({"conversations": CHAT}, SHAREGPT, None, ""),
        (
            {"conversations": CHAT},
            {**SHAREGPT, "chat_user_reference": "human", "chat_assistant_reference": "gpt"},
            None,
            "",
        ),
        ({"turns": CHAT}, SHAREGPT, "chat_column", "column 'conversations' not found in a.jsonl (columns: turns)"),
        (
            {"conversations": "hi"},
            SHAREGPT,
            "chat_column",
            "column 'conversations' of a.jsonl holds a text, not a list",
        ),
        (
            {"conversations": CHAT},
            {"chat_content_field": "value"},
            "chat_role_field",
            "field 'role' not found in the messages",
        ),
        (
            {"conversations": CHAT},
            {"chat_role_field": "from"},
            "chat_content_field",
            "messages of a.jsonl (fields: from, value)",
        ),
        (
            {"conversations": CHAT},
            {**SHAREGPT, "chat_user_reference": "humn"},
            "chat_user_reference",
            "(roles: human, gpt)",
        ),
        (
            {"conversations": [{"from": "Agent", "value": "x"}, {"from": "human", "value": "y"}]},
            SHAREGPT,
            "chat_assistant_reference",
            "role 'assistant' not found in field 'from'",
        ),
    ],
)
def test_the_fields_of_a_chat_are_looked_for_in_its_messages(
    tmp_path: Path, row: dict[str, Any], fields: dict[str, str], key: str | None, said: str
) -> None:
    found = errors(write(tmp_path, "a.jsonl", [row]), chat=True, **fields)
    assert [each[0] for each in found] == ([] if key is None else [key])
    assert all(said in each[1] for each in found)


def test_a_column_that_only_some_rows_have_is_there(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "a"}, ROW]
    assert errors(write(tmp_path, "a.jsonl", rows), **NAMES, field_input="context") == []


def test_many_columns_are_not_all_listed(tmp_path: Path) -> None:
    ((_, message, _),) = errors(write(tmp_path, "a.jsonl", [{f"c{n}": "" for n in range(30)} | ROW]),
                                field_instruction="question", field_output="reply")  # fmt: skip
    assert message.endswith(", c19 and 13 more)")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "a.jsonl has no rows."),
        (b"{nope\n", "Line 1 of a.jsonl is not valid JSON"),
        (b'{nope\n{"question": "q", "answer": "a"}\n', None),
    ],
)
def test_a_file_without_a_row_is_refused_and_a_bad_row_is_left_to_the_worker(
    tmp_path: Path, content: bytes, said: str | None
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(content)
    found = errors(file, **NAMES)
    assert [(key, message.startswith(said or "")) for key, message, _ in found] == (
        [] if said is None else [("path", True)]
    )


@pytest.mark.parametrize("name", ["rows", "rows.tar.gz", "large.json"])
def test_what_only_a_worker_can_read_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(file_reader, "MAX_AT_ONCE", 4)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows.tar.gz").write_bytes(b"x")
    write(tmp_path, "large.json", [ROW])
    assert errors(tmp_path / name, **NAMES) == []


def spec(**more: Any) -> CampaignSpec:
    return CampaignSpec.model_validate({"model_repo": "org/model", "datasets": [{"name": "org/rows", **NAMES}], **more})


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("org/model", None),
        ("gpt2", None),
        ("meta-llama/Llama-3.1-8B_v2", None),
        ("builtin:gsm8k-llama-2m", None),
        ("base", None),
        ("a b/model", "contains ' '"),
        ("org/model@main", "contains '@'"),
        ("org/modèle", "contains 'è'"),
        ("org/team/model", "has more than one slash"),
        ("org/", "has nothing after the slash"),
        ("org/../model", "has more than one slash"),
        ("org/mo..del", "contains '..'"),
        ("org/mo--del", "contains '--'"),
        ("org/-model", "begins or ends with '-' or '.'"),
        ("org/model.", "begins or ends with '-' or '.'"),
        ("org/model.git", "ends with .git"),
        ("https://huggingface.co/org/model", "is a URL"),
        ("hf://org/model", "is a URL"),
        ("C:/models/base", "is a Windows path"),
        ("models\\base", "is a Windows path"),
        ("o" * 97 + "/model", "has a part of more than 96 characters"),
        ("org/" + "m" * 96, None),
        ("org/" + "m" * 97, "has a part of more than 96 characters"),
        ("/gone/model", "there is no folder"),
        ("./gone", "there is no folder"),
    ],
)
@pytest.mark.parametrize("key", ["model_repo", "tokenizer_id"])
def test_an_id_that_the_hub_cannot_have_is_refused(tmp_path: Path, key: str, named: str, said: str | None) -> None:
    (tmp_path / "base").mkdir()
    found = list(file_errors(spec(**{key: named}), tmp_path))
    assert [each[0] for each in found] == ([] if said is None else [key])
    assert all((said or "") in message for _, message, _ in found)


@pytest.mark.parametrize(
    ("named", "said", "hint"),
    [
        ("org/rows", None, None),
        ("squad", None, None),
        ("builtin:gsm8k", None, None),
        ("org/more/rows", "has more than one slash", "name a dataset as ORG/NAME, or a file with path"),
        ("./gone.jsonl", "is a path", "name a dataset as ORG/NAME, or a file with path"),
        ("./rows.jsonl", "is a path", "set path: ./rows.jsonl"),
    ],
)
def test_a_name_is_that_of_a_dataset_of_the_hub(tmp_path: Path, named: str, said: str | None, hint: str | None) -> None:
    write(tmp_path, "rows.jsonl", [ROW])
    found = list(file_errors(spec(datasets=[{"name": named, **NAMES}]), tmp_path))
    assert [(key, the_hint) for key, _, the_hint in found] == ([] if said is None else [("datasets.0.name", hint)])
    assert all((said or "") in message for _, message, _ in found)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model_repo": "a b"}, "daily.model_repo"),
        ({"datasets": [{"path": "rows.jsonl", **NAMES, "field_output": "anser"}]}, "daily.datasets.0.field_output"),
    ],
)
def test_nothing_is_sent_of_a_campaign_whose_files_do_not_fit(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    write(tmp_path, "rows.jsonl", [ROW])
    step = next(send({"daily": spec(**more)}, tmp_path))
    assert isinstance(step, Work)
    with pytest.raises(SpecError, match=said):
        step.run()
