"""What the adapter asks of Ray's Jobs API, and what it makes of the answers; the API is a double."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from tests.fakes.ray_jobs import TOKEN, Jobs, ray_jobs
from tunefleet.errors import ConflictError, InputError, UnreachableError
from tunefleet.integrations.clusters import ClusterJobState, NodeRequest
from tunefleet.integrations.clusters.ray import Ray
from tunefleet.integrations.clusters.ray_order import ENDED, HOPELESS, RUNNING, WAITING, OrderError, pack, unpack

ASK = NodeRequest("t-1", 2, 3, ("tunefleet", "worker", "--once", "it's"), {"KEY": "secret"}, gpu_count=1, grace_s=30.5)


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    with ray_jobs() as jobs:
        yield jobs


@pytest.fixture
def ray(jobs: Jobs) -> Iterator[Ray]:
    with closing(Ray(jobs.url, TOKEN, python="/a folder/python")) as ray:
        yield ray


def _said(
    jobs: Jobs, ray: Ray, status: str, message: str = "", code: int | None = None, log: str = ""
) -> ClusterJobState:
    jobs.jobs["t-1"] = {"status": status, "message": message, "driver_exit_code": code}
    jobs.logs["t-1"] = log
    return ray.look(["t-1"])["t-1"]


def test_the_order_lies_in_a_package_and_the_job_shows_nothing_of_it(jobs: Jobs, ray: Ray) -> None:
    assert ray.submit(ASK) == "t-1"
    (package,) = jobs.packages
    assert unpack(jobs.packages[package]) == ASK
    assert jobs.pinned == [package], "Ray is told to throw it away in time"
    job = jobs.jobs["t-1"]
    assert job["entrypoint"] == f"exec '/a folder/python' -m tunefleet.workloads.ray_nodes gcs://{package}"
    assert job["runtime_env"] == {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "51"}}, "Ray kills after the grace"
    assert "secret" not in str(job)


def test_any_type_of_gpu_goes_to_the_cluster_which_knows_what_it_has(jobs: Jobs, ray: Ray) -> None:
    ray.submit(replace(ASK, gpu_type="RTX 4090"))
    (package,) = jobs.packages
    assert unpack(jobs.packages[package]).gpu_type == "RTX 4090"


def test_a_job_that_lives_is_not_made_anew_and_one_that_is_over_is(jobs: Jobs, ray: Ray) -> None:
    ray.submit(ASK)
    for status, made in (("PENDING", 1), ("RUNNING", 1), ("FAILED", 2), ("STOPPED", 3), ("SUCCEEDED", 4)):
        jobs.jobs["t-1"]["status"] = status
        assert ray.submit(ASK) == "t-1"
        assert len(jobs.packages) == made
    jobs.between, jobs.jobs = True, {}
    assert ray.submit(ASK) == "t-1", "another server was faster"


def test_it_waits_until_the_program_has_its_nodes_and_the_log_is_not_read_again(jobs: Jobs, ray: Ray) -> None:
    assert _said(jobs, ray, "PENDING", "not started yet") == ClusterJobState("t-1", "waiting", "not started yet")
    assert _said(jobs, ray, "RUNNING") == ClusterJobState("t-1", "waiting", "Ray is starting the job.")
    log = f"Running entrypoint\n{WAITING}2 nodes wanted\n{WAITING}1 node wanted\n(Node) {RUNNING}not it\n"
    assert _said(jobs, ray, "RUNNING", log=log) == ClusterJobState("t-1", "waiting", "1 node wanted")
    assert _said(jobs, ray, "RUNNING", log=f"{log}{ENDED}none\n").stage == "waiting"
    assert _said(jobs, ray, "RUNNING", log=f"{log}{RUNNING}a, b\n") == ClusterJobState("t-1", "running")
    jobs.asked.clear()
    assert ray.look(["t-1", "nobody"]) == {"t-1": ClusterJobState("t-1", "running")}
    assert jobs.asked == ["GET /api/jobs/t-1", "GET /api/jobs/nobody"]


def test_of_the_log_of_days_no_more_is_fetched_than_tells_that_it_runs(jobs: Jobs, ray: Ray) -> None:
    later = "(Node) one step more\n" * 3_000_000
    log = f"Running entrypoint\nsaid \\n{RUNNING}not it\n{WAITING}1 node wanted\n{RUNNING}a, b\n{later}"
    assert _said(jobs, ray, "RUNNING", log=log) == ClusterJobState("t-1", "running")
    assert jobs.cut.wait(10.0)
    assert ray.look(["nobody"]) == {}, "the connection that was cut is used no more"


def test_an_end_is_told_in_the_words_of_the_program(jobs: Jobs, ray: Ray) -> None:
    tail = "failed with exit code 1, last available logs:\n(Node) error: x\n"
    assert _said(jobs, ray, "SUCCEEDED") == ClusterJobState("t-1", "ended")
    assert _said(jobs, ray, "STOPPED").withdrawn
    lost = _said(jobs, ray, "FAILED", f"{tail}{ENDED}Ray node b was lost.\n", 1)
    assert lost == ClusterJobState("t-1", "ended", "Ray node b was lost.")
    never = _said(jobs, ray, "FAILED", f"{tail}{ENDED}No node has 1 GPU.\n", HOPELESS)
    assert never == ClusterJobState("t-1", "ended", "No node has 1 GPU.", hopeless=True)
    assert _said(jobs, ray, "FAILED", "Job supervisor actor died: x\n") == ClusterJobState(
        "t-1", "ended", "Job supervisor actor died: x"
    )
    assert "reports no reason" in _said(jobs, ray, "FAILED").reason


def test_an_environment_without_what_is_needed_is_hopeless(jobs: Jobs, ray: Ray) -> None:
    package = _said(jobs, ray, "FAILED", "ModuleNotFoundError: No module named 'tunefleet')\n", 1)
    assert package.hopeless
    assert "Tunefleet is not installed in the Ray cluster's /a folder/python" in package.reason
    program = _said(jobs, ray, "FAILED", "sh: 1: exec: not found\n", 127)
    assert program.hopeless
    assert "no program '/a folder/python'" in program.reason


def test_a_cancel_stops_the_job_and_one_that_is_not_there_is_no_error(jobs: Jobs, ray: Ray) -> None:
    ray.submit(ASK)
    ray.cancel("t-1")
    ray.cancel("nobody")
    assert ray.look(["t-1", "nobody"]) == {
        "t-1": ClusterJobState("t-1", "ended", "The job was stopped on the Ray cluster.", withdrawn=True)
    }


def test_refusals_and_faults_are_told_apart(jobs: Jobs, ray: Ray) -> None:
    jobs.refusal = (500, "Traceback\n  File x\nRuntimeError: no agent\n")
    with pytest.raises(UnreachableError, match=r"failed: RuntimeError: no agent$"):
        ray.submit(ASK)
    jobs.refusal = (400, "Traceback\nTypeError: runtime_env\n")
    with pytest.raises(ConflictError, match=r"rejected the request: TypeError: runtime_env$"):
        ray.submit(ASK)
    for answer in ((200, "<html>something else</html>"), (404, "<html>nothing here</html>")):
        jobs.refusal = answer
        with pytest.raises(ConflictError, match=r"is not a Ray cluster.*TUNEFLEET_RAY_ADDRESS"):
            ray.look(["t-1"])
    jobs.refusal = None
    with pytest.raises(ConflictError, match=r"unknown status"):
        _said(jobs, ray, "NEW")


@pytest.mark.parametrize(("token", "said"), [(None, "requires a token"), ("wrong", "rejects the token")])
def test_the_setting_of_the_token_is_named(jobs: Jobs, token: str | None, said: str) -> None:
    with closing(Ray(jobs.url, token)) as ray, pytest.raises(ConflictError, match=f"{said}.*TUNEFLEET_RAY_TOKEN"):
        ray.look(["t-1"])


def test_an_address_of_ray_s_own_protocol_is_refused() -> None:
    with pytest.raises(InputError, match=r"http://head:8265"):
        Ray("ray://head:10001", None)


def test_an_order_of_another_release_is_named() -> None:
    assert unpack(pack(ASK)) == ASK
    for text in (b"no json", b"{}", pack(ASK).replace(b'"format": 2', b'"format": 1'), b'{"format": 2, "x": 2}', b"[]"):
        with pytest.raises(OrderError):
            unpack(text)
