"""What is uploaded may name files inside itself only: libraries follow such names anywhere on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import DataError, ModelError, TunefleetError


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global HubSet, Place, base_model, containment, datasets, hub_files, reward_model, read_path
    import datasets

    from tunefleet.workloads.common import base_model, containment, hub_files
    from tunefleet.workloads.data.dataset_source import HubSet, Place
    from tunefleet.workloads.data.readers import read_path
    from tunefleet.workloads.ppo import reward_model


OUT = ("../other/model.safetensors", "/etc/passwd", "sub/../../other/x", "link/x")


def model_folder(folder: Path, shard: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "link").symlink_to(folder.parent)
    index = {"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def saved(folder: Path, change: dict[str, Any], *, split: bool = False) -> Path:
    datasets.Dataset.from_list([{"text": "a"}]).save_to_disk(str(folder / "train" if split else folder))
    if split:
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", *change["splits"]]}))
        return folder
    (folder / "link").symlink_to(folder.parent)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, **change}))
    return folder


@pytest.mark.parametrize("name", OUT)
def test_a_list_of_files_that_leads_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="leads out of the folder"):
        base_model.locate("./m", str(model_folder(tmp_path / "m", name)))
    with pytest.raises(DataError, match="is outside of the folder"):
        read_path(saved(tmp_path / "d", {"_data_files": [{"filename": name}]}), "train")
    if name != "link/x":
        with pytest.raises(DataError, match="is outside of the folder"):
            read_path(saved(tmp_path / "dd", {"splits": [name]}, split=True), "train")


@pytest.mark.parametrize("broken", [{}, {"weight_map": []}, {"weight_map": {"a": 3}}, None])
def test_a_list_of_files_that_cannot_be_read_is_a_users_mistake(tmp_path: Path, broken: Any) -> None:
    folder = model_folder(tmp_path / "m", "model-2.safetensors")
    (folder / "model.safetensors.index.json").write_text("{" if broken is None else json.dumps(broken))
    with pytest.raises(ModelError):
        base_model.locate("./m", str(folder))


def test_whole_folders_are_read(tmp_path: Path) -> None:
    assert base_model.locate("./m", str(model_folder(tmp_path / "m", "model-2.safetensors"))).path
    assert len(read_path(saved(tmp_path / "d", {}), "train")) == 1
    assert len(read_path(saved(tmp_path / "dd", {"splits": []}, split=True), "train")) == 1


@pytest.mark.parametrize("base", ["/srv/models/secret", "../secret", "~/secret", "here"])
def test_a_model_whose_base_is_a_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    with pytest.raises(ModelError, match="leads out of the folder"):
        reward_model._load_adapter(base_model.Source("a", str(tmp_path / "a")))
    (tmp_path / "a" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="leads out of the folder"):
        base_model.locate("./a", str(tmp_path / "a"))
    containment.check_adapter(tmp_path / "a")  # its base is given by the task


LEADING_OUT = [
    ("tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "vocab": "SECRET"}),
    ("tokenizer_config.json", {"init_inputs": ["SECRET"]}),
    ("tokenizer_config.json", {"sp_model_kwargs": {"model_file": "SECRET"}}),
    ("tokenizer_config.json", {"merges": "~/secret.txt"}),
    ("tokenizer_config.json", {"merges": "a/../../secret.txt"}),
    ("tokenizer_config.json", {"vocab": "file:///etc/passwd"}),
    ("tokenizer_config.json", {"vocab": "secret.jsonl"}),  # relative to where the job runs
    ("config.json", {"text_config": {"backbone": "SECRET"}}),
    ("special_tokens_map.json", {"vocab_file": "SECRET"}),
    ("special_tokens_map.json", {"vocab": "C:\\secret"}),
    ("0_Transformer/tokenizer_config.json", {"vocab": "SECRET"}),
    ("parts/0_Transformer/special_tokens_map.json", {"vocab_file": "SECRET"}),
    ("sentence_bert_config.json", {"processor_kwargs": {"vocab_file": "SECRET"}}),
    ("0_Transformer/sentence_xlm-roberta_config.json", {"tokenizer_args": {"vocab_file": "SECRET"}}),
    ("sentence_bert_config.json", {"tokenizer_name_or_path": "SECRET"}),
    ("router_config.json", {"structure": {"query": ["../../other"]}}),
    ("config.json", {"structure": {"query": ["SECRET"]}}),
    ("a/whitespacetokenizer_config.json", {"vocab": "a\n/../../secret"}),
    ("tokenizer_config.json", {"vocab": "/dev/zero"}),
    ("adapter_config.json", {"corda_config": {"cache_file": "SECRET"}}),
    ("modules.json", [{"idx": 0, "path": "../other", "type": "x"}]),
]


@pytest.mark.parametrize(("name", "content"), LEADING_OUT)
def test_a_model_that_names_a_file_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: Any
) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"text": "of another project"}')
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / name).parent.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text(json.dumps(content).replace("SECRET", str(secret)))
    name = Path(name).name
    with pytest.raises(ModelError, match=f"{name} of m names .* leads out of the folder"):
        base_model.locate("./m", str(folder))
    if name != "config.json":
        with pytest.raises(ModelError, match="leads out of the folder"):
            containment.check_adapter(folder)


def test_notes_and_tokens_that_look_like_paths_are_no_paths(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text('{"_name_or_path": "/models/llama", "model_type": "opt"}')
    (folder / "tokenizer_config.json").write_text(
        json.dumps({
            "tokenizer_file": "/root/.cache/tokenizer.json", "vocab_file": "/models/vocab.txt",
            "name_or_path": "../llama", "eos_token": "//",
            "chat_template": "/nothink", "added_tokens_decoder": {"1": {"content": "/think"}},
            "special_tokens_map_file": "/content/special_tokens_map.json", "extra_special_tokens": ["/x"],
        })
    )  # fmt: skip
    (folder / "adapter_config.json").write_text('{"target_modules": "/.*q_proj", "base_model_name_or_path": "org/m"}')
    (folder / "preprocessor_config.json").touch()
    (folder / "generation_config.json").write_text('{"stop_strings": ["/*", ".."]}')
    (folder / "config.json").write_text(
        '{"_name_or_path": "/models/llama", "model_type": "opt", "id2label": {"0": "/m/09x0r"}, "prompt": "/doc "}'
    )
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"/usr/lib": 0, "../": 1}}}')
    assert base_model.locate("./m", str(folder)).path


@pytest.mark.parametrize("name", ["etc/secret", "secret"])
def test_a_name_of_the_hub_is_no_folder_of_where_a_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A job of a warm process runs in `/`, where `etc/ssl` is the name of a folder and of a repository."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / name / "train.jsonl").write_text('{"text": "secret"}\n')
    place = Place(name, None, tmp_path / "work", HubSet())
    assert not place.on_disk
    for read in (lambda: base_model.locate(name, None), lambda: place.read("train", None)):
        with pytest.raises(TunefleetError, match="working directory of the job also has"):
            read()
    with pytest.raises(ModelError, match=f"Write ./{name} if you mean the folder"):
        hub_files.resolve(name, "model")


@pytest.mark.parametrize(
    "files",
    [
        "/srv/rows.jsonl",
        "../rows.jsonl",
        "[{split: train, path: [a.jsonl, /srv/rows.jsonl]}]",
        "file:///srv/rows.jsonl",
        '"/srv/rows.json[l\\n]"',
        '"\\n/../../rows.jsonl"',
        "'zip://a.jsonl::/srv/a.zip'",
        "'https://10.0.0.1/rows.jsonl'",
    ],
)
@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
def test_a_card_that_names_data_elsewhere_is_refused(tmp_path: Path, name: str, files: str) -> None:
    text = f"license: mit\nconfigs:\n- config_name: default\n  data_files: {files}\n"
    (tmp_path / name).write_text(text if name.endswith(".yaml") else f"---\n{text}---\n# Rows\n")
    with pytest.raises(DataError, match=f"{name} names .* under '(data_files|path)', which leads out of the dataset"):
        containment.check_dataset(tmp_path)


def test_a_card_is_read_as_the_hubs_library_reads_it(tmp_path: Path) -> None:
    """A lone carriage return ends a line of the head there, whatever a reader of lines makes of it."""
    rest = "configs:\n- config_name: default\n  data_files: /srv/rows.jsonl\n---\n"
    (tmp_path / "README.md").write_bytes(f"---\n#c\n---\r{rest}".encode())
    with pytest.raises(DataError, match="leads out of the dataset"):
        containment.check_dataset(tmp_path)
    (tmp_path / "README.md").write_bytes(f"---\x85\n{rest}".encode())
    containment.check_dataset(tmp_path)  # no head at all


def test_what_a_card_says_beside_its_data_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: a\n  description: 'see https://host/x'\n  sep: '::'\n"
        "  data_files: 'zip://a.csv::data.zip'\n---\n"
    )
    containment.check_dataset(tmp_path)
    (tmp_path / "README.md").write_text("---\na: !tag b: c\n---\n")
    containment.check_dataset(tmp_path)


def test_a_card_with_data_of_its_own_is_taken(tmp_path: Path) -> None:
    containment.check_dataset(tmp_path)
    (tmp_path / "README.md").write_text("# Rows\n\n---\nconfigs: /srv\n---\n")
    containment.check_dataset(tmp_path)
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: x\n  data_files: data/*.jsonl\n- data_dir: sub\n---\n"
    )
    containment.check_dataset(tmp_path)
