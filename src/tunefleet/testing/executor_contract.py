"""The executor contract, as test classes that a package subclasses.

    class TestWordCount(JobContract):
        executor = WordCountExecutor
        spec = {"data": {"type": "list", "items": ["one two"]}}
        bad_spec = {"data": {"type": "list", "items": [""]}}

pytest finds the tests of the class; each runs the real executor, a job in its own process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tunefleet.errors import InputError
from tunefleet.executors import registry
from tunefleet.executors.base import Executor, JobExecutor, LightExecutor
from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.job_folder import MergeChild
from tunefleet.testing.job_runner import Runner, offer_of

# Requested in this order; the worker ends a job that does not support an abort.
_ASKED = (ControlCommand.SAVE_CHECKPOINT, ControlCommand.PAUSE)
_OWN = frozenset({"usage", "task_id"})
_TEXT: tuple[str, ...] = (".json", ".jsonl", ".txt", ".csv", ".log", ".md")


class ExecutorContract:
    """Rules for every executor. Subclass `JobContract` or `LightContract`."""

    executor: ClassVar[type[Executor]]
    """The executor."""
    spec: ClassVar[Mapping[str, Any]]
    """A spec that works, without `taskType`."""
    bad_spec: ClassVar[Mapping[str, Any] | None] = None
    """A spec that is invalid; None if every spec is valid."""
    installed: ClassVar[bool] = True
    """Whether the executor is installed under its entry point."""

    def test_is_found_by_its_kind(self) -> None:
        """A worker finds the executor, and knows whether it is available."""
        if not self.installed:
            return
        found = registry.installed()
        mine = found.find(self.executor.kind)
        assert mine is not None, (
            f"No installed package registers {self.executor.kind} in the entry point group {registry.GROUP}."
        )
        assert type(mine) is self.executor, f"{self.executor.kind} is {type(mine)}: two packages register the kind."
        offer = next(each for each in found.offers() if each.kind == self.executor.kind)
        assert (offer.slot_class, offer.merges) == (self.executor.slot_class, self.executor.merges)
        # An executor may only support commands that the protocol has.
        unknown = set(offer.heeds or ()) - set(ControlCommand)
        assert not unknown, f"{self.executor.kind} supports {sorted(unknown)}, which are not commands."

    def test_says_in_a_sentence_why_it_cannot_run_here(self) -> None:
        """An unavailable executor gives its reason as a sentence for the user."""
        reason = self.executor().unavailable_reason()
        if reason is not None:
            assert reason.strip() == reason
            assert reason[:1].isupper(), f"{reason!r} is not a sentence."
            assert len(reason.split()) > 2, f"{reason!r} is not a sentence."

    def same(self, result: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Return whether two runs of one spec have the same result; by default except `usage` and the task id."""
        # Timings differ between two runs.
        plain = [{key: value for key, value in each.items() if key not in _OWN} for each in (result, other)]
        return plain[0] == plain[1]


class LightContract(ExecutorContract):
    """Rules for a kind that runs inside the worker."""

    executor: ClassVar[type[LightExecutor]]

    def test_gives_a_result_that_is_json_and_the_same_again(self) -> None:
        """The result is sent as JSON; the executor keeps no state between tasks."""
        one, other = (self.executor().run(offer_of(self.executor.kind, self.spec)) for _ in range(2))
        check_json(one)
        assert self.same(one, other), f"{one} is not {other}."

    def test_what_cannot_work_is_said_in_a_sentence(self) -> None:
        """An invalid spec raises InputError: the task is not retried."""
        if self.bad_spec is None:
            return
        try:
            self.executor().run(offer_of(self.executor.kind, self.bad_spec))
        except InputError as error:
            check_sentence(str(error))
            return
        raise AssertionError("The invalid spec did not fail.")


class JobContract(ExecutorContract):
    """Rules for a kind that runs in its own process."""

    executor: ClassVar[type[JobExecutor]]
    inputs: ClassVar[Mapping[str, str]] = {}
    """Pointers into the spec → local paths that replace them."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Environment variables of the job."""
    long_spec: ClassVar[Mapping[str, Any] | None] = None
    """A spec that keeps the job busy for some seconds once it takes commands; by default `spec`."""
    children: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Specs of tasks that run together with `spec`, required for a kind that merges; they differ in their `data`."""
    warm: ClassVar[bool] = False
    """Fork the jobs from a process that has imported the training libraries, as a worker does."""
    timeout_s: ClassVar[float] = 300.0
    """Timeout of a launch."""

    def time_to_kill(self, folder: Path) -> bool:
        """Return whether the job is in the middle of its work; by default as soon as it has started."""
        return (folder / "status.json").exists()

    def inputs_of(self, tmp_path: Path) -> Mapping[str, str]:
        """Return the inputs; override it to create them."""
        del tmp_path  # for overrides
        return self.inputs

    def test_goes_on_after_a_kill_and_leaves_what_it_says(self, tmp_path: Path) -> None:
        """A killed job completes when it is launched again in its folder; a third launch changes nothing."""
        runner, inputs = self._runner(tmp_path), self.inputs_of(tmp_path)
        first = runner.launch(self.spec, inputs=inputs)
        assert runner.kill(first, self.time_to_kill), (
            "The job had ended before it could be killed: override time_to_kill, or give it more to do."
        )
        found = self._ended_well(runner, self.spec, inputs)
        outputs = self.executor().outputs(runner.folder)
        names = [output.name for output in outputs]
        assert len(set(names)) == len(names), f"Two outputs have one name: {names}."
        for output in outputs:
            assert output.path.exists(), f"The output {output.name} is not at {output.path}."
            assert output.path.is_relative_to(runner.folder.root), f"{output.path} is not in the job folder."
        assert self.same(found, self._ended_well(runner, self.spec, inputs)), "A third launch has changed the result."

    def test_heeds_what_it_says(self, tmp_path: Path) -> None:
        """A save and a pause in `supported_commands` are carried out, and a launch after the pause completes."""
        asked = [name for name in _ASKED if name in self.executor.supported_commands]
        if not asked:
            return
        runner, inputs = self._runner(tmp_path), self.inputs_of(tmp_path)
        spec = self.spec if self.long_spec is None else self.long_spec
        handle = runner.launch(spec, inputs=inputs)
        took = runner.ask(handle, *asked)
        end = runner.end(handle)
        assert took, (
            f"The job ended ({end.reason}) before it took {', '.join(asked)}: give it more work with long_spec, or "
            f"remove them from supported_commands.\n{runner.log(handle)}"
        )
        for name in asked:
            state = handle.command_state(name)
            assert state.state == "durable", (
                f"{name} is {state.state}: {state.message}. Give it more work with long_spec, or leave {name} "
                "out of supported_commands."
            )
        if ControlCommand.PAUSE in asked:
            assert end.outcome == "paused", f"After a pause it is {end.outcome} ({end.reason}): {end.error}"
            self._ended_well(runner, spec, inputs)

    def test_what_cannot_work_is_said_in_a_sentence(self, tmp_path: Path) -> None:
        """An invalid spec fails the job with bad input: it is not retried."""
        if self.bad_spec is None:
            return
        runner = self._runner(tmp_path)
        end = runner.end(runner.launch(self.bad_spec, inputs=self.inputs_of(tmp_path)))
        assert (end.outcome, end.reason) == ("failed", TaskReason.BAD_INPUT), (
            f"{end.outcome}, {end.reason}: {end.error}"
        )
        check_sentence(str(end.error))

    def test_each_task_of_a_shared_run_gets_its_own(self, tmp_path: Path) -> None:
        """`merge_children`: each task gets its own result, as if it had run alone, and never one of another task."""
        if not self.executor.merges:
            assert not self.children, f"{self.executor.kind} does not merge."
            return
        assert self.children, (
            f"{self.executor.kind} merges: set children, one with a different text; an equal task alone shows little."
        )
        runner, inputs = self._runner(tmp_path), self.inputs_of(tmp_path)
        # The first child has the same spec as the task itself.
        specs = {f"task-child-{number}": spec for number, spec in enumerate((self.spec, *self.children))}
        kind = self.executor.kind
        children = [
            MergeChild(task_id=task_id, spec={"taskType": kind, **spec}, inputs=dict(inputs))
            for task_id, spec in specs.items()
        ]
        own = self._ended_well(runner, self.spec, inputs, children)
        root = runner.folder.root
        results = own.pop("children", {})
        assert set(results) == set(specs), f"There are results for {sorted(results)}, not for {sorted(specs)}."
        equal = results["task-child-0"]
        # Figures of the whole run may be in the result of the task itself only.
        assert equal.keys() - _OWN, "An equal task got nothing but figures."
        mine = {key: own.get(key) for key in equal}
        assert self.same(equal, mine), f"An equal task got another result than the task itself: {equal}, not {mine}."
        for task_id, spec in specs.items():
            check_json(results[task_id])
            others_texts = {text for other in (self.spec, *specs.values()) for text in texts_of(other)} - texts_of(spec)
            content = json.dumps(results[task_id], ensure_ascii=False) + _left(root / "children" / task_id)
            leaked = [text for text in others_texts if text in content]
            assert not leaked, f"{task_id} got texts of other tasks: {leaked}."

    def _runner(self, tmp_path: Path) -> Runner:
        folder = tmp_path / "jobs"
        folder.mkdir(exist_ok=True)
        return Runner(self.executor(), folder, environment=self.environment, timeout_s=self.timeout_s, warm=self.warm)

    def _ended_well(
        self,
        runner: Runner,
        spec: Mapping[str, Any],
        inputs: Mapping[str, str],
        children: Sequence[MergeChild] = (),
    ) -> dict[str, Any]:
        handle = runner.launch(spec, inputs=inputs, children=children)
        end = runner.end(handle)
        assert end.outcome == "completed", f"{end.reason}: {end.error}\n{runner.log(handle)}"
        result = self.executor().result(runner.folder)
        check_json(result)
        return result


def check_json(result: object) -> None:
    """Fail unless a result is a mapping that JSON can hold."""
    assert isinstance(result, dict), f"The result is a {type(result).__name__}, not a mapping."
    text = json.dumps(result, allow_nan=False)
    assert json.loads(text) == result, "The result changes on its way through JSON."


def check_sentence(text: str) -> None:
    """Fail unless a message is a sentence for the user."""
    assert text.strip(), "There is no message."
    assert "Traceback" not in text, f"{text!r} is not a sentence for the user."
    assert len(text.split()) > 2, f"{text!r} is not a sentence."


def texts_of(spec: Mapping[str, Any]) -> set[str]:
    """Return the input texts of a spec: its items, or its query."""
    data = spec.get("data")
    items = data.get("items", ()) if isinstance(data, Mapping) else ()
    found = {item for item in items if isinstance(item, str)}
    return found | ({spec["query"]} if isinstance(spec.get("query"), str) else set())


def _left(folder: Path) -> str:
    files = (path for path in sorted(folder.rglob("*")) if path.suffix in _TEXT) if folder.is_dir() else ()
    return "".join(path.read_text(errors="replace") for path in files)
