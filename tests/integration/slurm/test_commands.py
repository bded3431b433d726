"""The adapter runs Slurm's commands, which are stand-ins here, and bash reads its script."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.slurm import StandIns
from tests.machine import machine_environment
from tests.unit.clusters.test_slurm import ASK
from tunefleet.errors import ConflictError, MachineError, UnreachableError
from tunefleet.integrations.clusters import ClusterJobState
from tunefleet.integrations.clusters.slurm import Slurm, script_of
from tunefleet.orchestrator.fleet import engines as providers
from tunefleet.settings import ServerSettings


@pytest.fixture
def commands(tmp_path: Path) -> StandIns:
    return StandIns(tmp_path / "bin")


ODD = ("a b/tunefleet", "it's", "$HOME", "`id`", "a;b", "ü", "")


def test_the_script_is_one_that_bash_reads_and_odd_words_stay_words(tmp_path: Path) -> None:
    script = script_of((str(tmp_path / "show me"), *ODD), "module() { :; }\nmodule load cuda")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    show = tmp_path / "show me"
    show.write_text('#!/bin/bash\necho "$TUNEFLEET_NODE"\nprintf \'<%s>\\n\' "$@"\n')
    show.chmod(0o755)
    told = _run(script, tmp_path, SLURM_NODEID="3")
    assert told.stdout.splitlines() == ["3", *(f"<{word}>" for word in ODD)]


@pytest.mark.parametrize(
    ("code", "state", "requeued"),
    [(75, "RUNNING", True), (75, "COMPLETING", False), (0, "RUNNING", False), (1, "RUNNING", False)],
)
def test_a_job_that_has_made_way_is_requeued_unless_somebody_has_cancelled_it(
    tmp_path: Path, code: int, state: str, requeued: bool
) -> None:
    told = _run(script_of(("sh", "-c", f"exit {code}")), tmp_path, SLURM_JOB_ID="17", STATE=state)
    assert told.returncode == code
    assert (tmp_path / "requeued").exists() is requeued
    if requeued:
        assert (tmp_path / "requeued").read_text() == "requeue 17\n"


def test_a_prelude_that_ends_at_the_first_error_keeps_no_job_from_its_requeue(tmp_path: Path) -> None:
    script = script_of(("sh", "-c", "exit 75"), "set -euo pipefail")
    told = _run(script, tmp_path, SLURM_JOB_ID="17", STATE="RUNNING")
    assert (told.returncode, (tmp_path / "requeued").read_text()) == (75, "requeue 17\n")


def _run(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a batch script with an srun that starts the command here."""
    programs = {
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done\n"$@"\n',
        "squeue": 'echo "$STATE"\n',
        "scontrol": f'echo "$@" > {folder}/requeued\n',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    environment = machine_environment(PATH=path, **{"SLURM_NODEID": "0", "LC_ALL": "C.UTF-8", **variables})
    return subprocess.run(["bash"], input=script, text=True, capture_output=True, check=False, env=environment)


def test_a_job_has_what_it_is_given_and_nothing_of_the_server(commands: StandIns) -> None:
    commands.answers("sbatch", "17;cluster\n")
    slurm = commands.slurm(prelude="module load cuda", extra=("--partition=all", "--comment=a b"))
    assert slurm.submit(replace(ASK, options={"partition": "gpu"})) == "17"
    squeue, sbatch = commands.said()
    assert "--name=tunefleet-task_a-1" in squeue
    # Of an option that is given twice Slurm takes the later one.
    assert sbatch.index("--partition=all") < sbatch.index("--partition=gpu")
    assert "--comment=a b" in sbatch
    assert "geheim" not in json.dumps(commands.said())
    script, variables = commands.given("sbatch")
    assert script.startswith("#!/bin/bash\nmodule load cuda\ncode=0\nsrun ")
    assert "geheim" not in script
    assert variables["TUNEFLEET_WORKER_KEY"] == "geheim"
    assert "SECRET_OF_THE_SERVER" not in variables
    assert variables["HOME"] == os.environ["HOME"]


def test_a_job_that_lives_is_not_submitted_again(commands: StandIns) -> None:
    commands.answers("squeue", f"{ASK.name}|17|PENDING|Priority\n")
    assert commands.slurm().submit(ASK) == "17"
    commands.answers("squeue", f"{ASK.name}|17|FAILED|NonZeroExitCode\n")
    commands.answers("sbatch", "18\n")
    assert commands.slurm().submit(ASK) == "18"


@pytest.mark.parametrize(
    ("state", "reason", "seen"),
    [
        ("PENDING", "Priority", ClusterJobState("17", "waiting", "pending (Priority)")),
        ("PENDING", "None", ClusterJobState("17", "waiting", "pending")),
        ("PENDING", "BeginTime", ClusterJobState("17", "waiting", "pending (BeginTime)")),
        ("PENDING", "PartitionTimeLimit",
         ClusterJobState("17", "waiting", "pending (PartitionTimeLimit)", hopeless=True)),
        ("PENDING", "ReqNodeNotAvail, UnavailableNodes:n[1-2]",
         ClusterJobState("17", "waiting", "pending (ReqNodeNotAvail, UnavailableNodes:n[1-2])")),
        ("CONFIGURING", "None", ClusterJobState("17", "waiting", "configuring")),
        ("REQUEUED", "None", ClusterJobState("17", "waiting", "requeued")),
        ("RUNNING", "None", ClusterJobState("17", "running")),
        ("COMPLETING", "None", ClusterJobState("17", "running", ending=True)),
        ("SUSPENDED", "None", ClusterJobState("17", "waiting", "suspended")),
        ("STOPPED", "None", ClusterJobState("17", "waiting", "stopped")),
        ("COMPLETED", "None", ClusterJobState("17", "ended", "completed")),
        ("CANCELLED", "None", ClusterJobState("17", "ended", "cancelled", withdrawn=True)),
        ("FAILED", "NonZeroExitCode", ClusterJobState("17", "ended", "failed (NonZeroExitCode)")),
        ("TIMEOUT", "TimeLimit", ClusterJobState("17", "ended", "timeout (TimeLimit)")),
        ("PREEMPTED", "None", ClusterJobState("17", "ended", "preempted")),
        ("OUT_OF_MEMORY", "OutOfMemory", ClusterJobState("17", "ended", "out of memory (OutOfMemory)")),
        ("NODE_FAIL", "NodeDown", ClusterJobState("17", "ended", "node fail (NodeDown)")),
        ("BOOT_FAIL", "a|b", ClusterJobState("17", "ended", "boot fail (a|b)")),
    ],
)  # fmt: skip
def test_states_of_slurm_are_stages_of_a_job(
    commands: StandIns, state: str, reason: str, seen: ClusterJobState
) -> None:
    commands.answers("squeue", f"{ASK.name}|17|{state}|{reason}\n")
    assert commands.slurm().look([ASK.name]) == {ASK.name: seen}


def test_of_jobs_with_one_name_the_one_that_lives_counts(commands: StandIns) -> None:
    lines = ["a|17|FAILED|NonZeroExitCode", "a|18|RUNNING|None", "a|19|CANCELLED|None", "b|20|PENDING|Priority"]
    commands.answers("squeue", "\n".join(lines) + "\n")
    found = commands.slurm().look(["a", "b", "c"])
    assert {name: each.job_id for name, each in found.items()} == {"a": "18", "b": "20"}
    assert "--name=a,b,c" in commands.said()[0]


def test_nobody_is_asked_about_no_job(commands: StandIns) -> None:
    assert commands.slurm().look([]) == {}
    assert not (commands.folder / "said").exists()


def test_a_job_that_failed_names_its_log(commands: StandIns) -> None:
    slurm = commands.slurm()
    log = slurm.log_of(ASK.name)
    log.parent.mkdir()
    log.write_text("tunefleet: command not found\n")
    commands.answers("squeue", f"{ASK.name}|17|FAILED|NonZeroExitCode\n")
    assert slurm.look([ASK.name])[ASK.name].reason == f"failed (NonZeroExitCode); its log is {log}"
    commands.answers("scontrol", "JobId=17 Requeue=1 DerivedExitCode=9:0 ExitCode=127:0 RunTime=00:00:00\n")
    assert slurm.look([ASK.name])[ASK.name].reason == f"failed (exit code 127); its log is {log}"
    commands.answers("scontrol", "slurm_load_jobs error: Invalid job id specified\n", error=True)
    assert slurm.look([ASK.name])[ASK.name].reason == f"failed (NonZeroExitCode); its log is {log}"
    commands.answers("squeue", f"{ASK.name}|17|COMPLETED|None\n")
    assert slurm.look([ASK.name])[ASK.name].reason == "completed"


@pytest.mark.parametrize(
    ("stderr", "error", "words"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n",
            ConflictError,
            "Slurm rejected the request: Batch job submission failed: Invalid account or account/partition "
            "combination specified.",
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect)\n",
            UnreachableError,
            "Slurm is temporarily unavailable: Batch job submission failed: Unable to contact slurm controller "
            "(connect).",
        ),
        # The user has as many jobs as they may: that passes.
        (
            "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates "
            "accounting/QOS policy (job submit limit, user's size and/or time limits)\n",
            UnreachableError,
            "Slurm is temporarily unavailable: QOSMaxSubmitJobPerUserLimit; Batch job submission failed: Job violates "
            "accounting/QOS policy (job submit limit, user's size and/or time limits).",
        ),
        ("", ConflictError, "Slurm rejected the request: sbatch ended with 1."),
    ],
)
def test_what_slurm_says_is_told_as_it_says_it(
    commands: StandIns, stderr: str, error: type[Exception], words: str
) -> None:
    commands.answers("sbatch", stderr, error=True)
    with pytest.raises(error) as caught:
        commands.slurm().submit(ASK)
    assert str(caught.value) == words


def test_an_answer_that_cannot_be_understood_is_not_passed_over(commands: StandIns) -> None:
    commands.answers("squeue", "Welcome to the cluster!\n")
    with pytest.raises(ConflictError, match="Welcome to the cluster"):
        commands.slurm().look(["a"])


def test_a_machine_without_a_command_is_told_which(commands: StandIns) -> None:
    (commands.folder / "scontrol").unlink()
    environment = {"PATH": str(commands.folder)}
    with pytest.raises(MachineError, match="Command scontrol is not installed"):
        Slurm(commands.folder.parent, environment=environment)


def test_cancelling_names_the_job_and_its_user(commands: StandIns) -> None:
    commands.slurm().cancel(ASK.name)
    (said,) = commands.said()
    assert said[0] == "scancel"
    assert "--name=tunefleet-task_a-1" in said
    assert any(option.startswith("--user=") for option in said)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    made = StandIns(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    return made


def test_the_settings_of_slurm_stand_in_its_jobs(installed: StandIns, tmp_path: Path) -> None:
    prelude = tmp_path / "prelude.sh"
    prelude.write_text("module load cuda\n")
    settings = ServerSettings(
        slurm=True, slurm_options="--account=lab --comment='a b'", slurm_prelude=prelude, nodes_dir=tmp_path / "nodes"
    )
    found = providers.engines_of(settings)
    assert set(found.absent) == {"ray"}
    installed.answers("sbatch", "17\n")
    assert found.clusters["slurm"].submit(ASK) == "17"
    sbatch = installed.said()[-1]
    assert {"--account=lab", "--comment=a b", f"--output={tmp_path}/nodes/{ASK.name}.log"} < set(sbatch)
    assert "module load cuda" in installed.given("sbatch")[0].splitlines()
