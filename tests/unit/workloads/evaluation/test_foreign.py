"""Tasks of lm-eval that come with a document: none of them runs code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.libraries import required
from tunefleet.errors import DataError, InputError, UnreachableError
from tunefleet.workloads.evaluation import custom_tasks

NAMES = custom_tasks.Names({"acc", "bleu"}, {"mean"}, {"take_first"})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("doc_to_target: !function code.label", "it has !function"),
        ("class: !function code.Task", "it has !function"),
        ("metric_list: [{metric: bleu, hf_evaluate: true}]", "it has hf_evaluate: True"),
        ('metric_list: [{metric: bleu, "hf_ev\\u0061luate": true}]', "it has hf_evaluate: True"),
        ("unsafe_code: true", "it has unsafe_code: True"),
        ("group: g\ntask: [{task: humaneval, unsafe_code: false}]", "it has unsafe_code: False"),
        ("metric_list: [{metric: ./mymetric}]", "its metric ./mymetric is not built into lm-eval"),
        ("metric_list: [{metric: mymetric, aggregation: mean}]", "its metric mymetric is not built"),
        ("group: g\ntask: [{task: t, metric_list: [{metric: mymetric}]}]", "its metric mymetric is not built"),
        ("metric_list: [{metric: acc, aggregation: ./mean}]", "its aggregation ./mean is not built"),
        ("filter_list: [{name: n, filter: [{function: ./mine}]}]", "its function ./mine is not built"),
        ("generation_kwargs: {custom_generate: ./mine, trust_remote_code: true}", "it has custom_generate: ./mine"),
        ("dataset_kwargs: {trust_remote_code: true}", "it has trust_remote_code: True"),
        ("dataset_path: ./loader.py", "its dataset_path is ./loader.py"),
        ("x: !!python/object/apply:os.system [id]", "it has !object/apply:os.system"),
    ],
)
def test_code_is_found_wherever_it_hides(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "mine.yaml").write_text(f"task: mine\n{text}\n")
    with pytest.raises(InputError, match=r"The lm-eval task mine\.yaml runs code: ") as caught:
        custom_tasks.check(tmp_path, NAMES)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "dataset_kwargs: {data_files: {test: /srv/rows.jsonl}}",
        "dataset_kwargs: {data_files: [a.jsonl, ../rows.jsonl]}",
        "dataset_kwargs: {data_dir: ~/rows}",
        "dataset_kwargs: {data_files: 'file:///srv/rows.jsonl'}",
        "dataset_kwargs: {data_files: 'local://srv/rows.jsonl'}",
        "dataset_kwargs: {data_files: 'http://10.0.0.1/rows.jsonl'}",
        "dataset_kwargs: {data_files: 'zip://rows.jsonl::/srv/rows.zip'}",
        "dataset_kwargs: {data_files: link/rows.jsonl}",
        "dataset_path: /srv/rows",
        "dataset_path: deep/../../rows",
        "dataset_name: ../rows",
        "use_prompt: /srv/prompts.yaml:*",
        "group: g\ntask: [{task: t, dataset_path: /srv/rows}]",
    ],
)
def test_data_outside_of_the_folder_is_refused(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    (folder / "mine.yaml").write_text(f"task: mine\n{text}\n")
    with pytest.raises(InputError, match=r"The lm-eval task mine\.yaml reads .*, which is outside of its folder"):
        custom_tasks.check(folder, NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "dataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}",
        "dataset_path: EleutherAI/arithmetic\ndataset_name: arithmetic_1dc",
        "dataset_path: parquet\ndataset_kwargs: {data_files: 'hf://datasets/a/b/c.parquet'}",
        "doc_to_text: /no path",
        "generation_kwargs: {until: ['/', '..']}",
    ],
)
def test_data_of_the_folder_and_of_the_hub_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"task: mine\n{text}\n")
    custom_tasks.check(tmp_path, NAMES)


def test_plain_tasks_are_taken(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("include: [deep/base]\ntask: mine\n" + PLAIN)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "base").write_text("include: ../rest.txt\n")
    (tmp_path / "rest.txt").write_text("output_type: multiple_choice\n")
    (tmp_path / "rows.jsonl").write_text('{"a": "!function"}\n')
    custom_tasks.check(tmp_path, NAMES)
    before = custom_tasks.digest(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"a": "b"}\n')
    assert custom_tasks.digest(tmp_path) != before


PLAIN = """
dataset_path: json
metric_list: [{metric: acc, aggregation: mean}]
filter_list: [{name: first, filter: [{function: take_first}]}]
aggregate_metric_list: [{metric: anything, filter_list: [none]}]
"""


@pytest.mark.parametrize("name", ["extra.txt", "extra", "deep/extra.txt", "utf16.txt"])
def test_what_is_included_is_read_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "mine.yaml").write_text("task: mine\ninclude: [between]\n")
    (tmp_path / "between").write_text(f"include: {name}\n")
    encoding = "utf-16" if "16" in name else "utf-8"
    (tmp_path / name).write_text("doc_to_text: !function evil.text\n", encoding=encoding)
    with pytest.raises(InputError, match=rf"The lm-eval task {Path(name).name} runs code: it has !function"):
        custom_tasks.check(tmp_path, NAMES)


@pytest.mark.parametrize("place", ["absolute", "../extra.yaml", "link"])
def test_nothing_from_outside_of_the_folder_is_included(tmp_path: Path, place: str) -> None:
    (tmp_path / "extra.yaml").write_text("doc_to_text: !function evil.text\n")
    own = tmp_path / "own"
    own.mkdir()
    (own / "link").symlink_to(tmp_path / "extra.yaml")
    named = tmp_path / "extra.yaml" if place == "absolute" else place
    (own / "mine.yaml").write_text(f"task: mine\ninclude: {named}\n")
    with pytest.raises(InputError, match=r"mine\.yaml includes .*, which is outside of its folder"):
        custom_tasks.check(own, NAMES)


def test_an_include_that_is_not_there_and_one_that_is_no_yaml_are_said(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("task: mine\ninclude: rest\n")
    with pytest.raises(InputError, match=r"mine\.yaml includes rest, which does not exist"):
        custom_tasks.check(tmp_path, NAMES)
    (tmp_path / "rest").write_text("{")
    with pytest.raises(InputError, match="The lm-eval task rest is not valid YAML"):
        custom_tasks.check(tmp_path, NAMES)


def test_the_second_wall_lets_lm_eval_load_its_own_alone_and_stands_only_as_long(tmp_path: Path) -> None:
    ran: list[Any] = []
    reader = SimpleNamespace(_import_func_in_yml=lambda *what: ran.append(what))
    tasks = SimpleNamespace(get_metric=ran.append)
    registry, metrics = SimpleNamespace(metric_registry={"acc": 1}), SimpleNamespace(load=ran.append)
    own = tmp_path / "lm_eval"
    with custom_tasks.confined(own, reader, tasks, registry, metrics):
        reader._import_func_in_yml("utils.text", own / "tasks" / "squad")
        tasks.get_metric("acc", False)
        assert ran == [("utils.text", own / "tasks" / "squad"), "acc"]
        with pytest.raises(InputError, match=r"!function evil\.text"):
            reader._import_func_in_yml("evil.text", tmp_path / "mine")
        with pytest.raises(InputError, match="its metric mymetric"):
            tasks.get_metric("mymetric", False)
        with pytest.raises(InputError, match="its metric acc"):
            tasks.get_metric("acc", True)
        with pytest.raises(InputError, match="it loads the metric squad_v2"):
            metrics.load("squad_v2")
        assert len(ran) == 2
    metrics.load("squad_v2")
    assert ran[-1] == "squad_v2"


def test_templates_cannot_leave_their_row() -> None:
    jinja2 = pytest.importorskip("jinja2")

    class Harness:
        env = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)

    Harness.env.filters["regex_replace"] = lambda text, *_: text
    custom_tasks.confine_templates(Harness)
    assert Harness.env.from_string("{{a | regex_replace('x')}}\n").render(a="b") == "b\n"
    with pytest.raises(jinja2.exceptions.SecurityError):
        Harness.env.from_string("{{ ''.__class__.__mro__[1].__subclasses__() }}").render()


@pytest.mark.torch
def test_a_hub_that_is_switched_off_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    required("peft")
    from tunefleet.workloads.evaluation import lm_eval

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with (
        pytest.raises(UnreachableError, match=r"task hellaswag cannot be downloaded: HF_HUB_OFFLINE is set"),
        lm_eval._hub_named("hellaswag"),
    ):
        raise RuntimeError("no data") from ConnectionError("offline")
    with pytest.raises(KeyError), lm_eval._hub_named("hellaswag"):
        raise KeyError("another matter")


@pytest.mark.torch
def test_a_task_that_there_is_not_is_said_with_those_that_are_called_alike() -> None:
    required("peft")
    from tunefleet.workloads.evaluation import lm_eval

    manager = SimpleNamespace(all_tasks=["parity", "hellaswag"])
    lm_eval._known(["parity"], manager)
    with pytest.raises(InputError, match=r"lm-eval has no task 'paritty'\. Did you mean parity\?"):
        lm_eval._known(["parity", "paritty"], manager)


def test_the_card_of_a_folder_of_rows_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: /srv/x.jsonl\n---\n"
    )
    (tmp_path / "mine.yaml").write_text("task: mine\ndataset_path: ./rows\n")
    with pytest.raises(DataError, match="leads out of the dataset"):
        custom_tasks.check(tmp_path, NAMES)
