"""Which area of `make proofs` each test file belongs to.

An area is a domain of the code: after a change there, `make proofs AREA=<area>` runs what `make test` leaves out of it.
"""

from __future__ import annotations

from typing import Final

AREAS: Final[dict[str, tuple[str, ...]]] = {
    "agent": ("tests/integration/agent",),
    "api": ("tests/integration/api", "tests/properties/api", "tests/security"),
    "artifacts": (
        "tests/acceptance/test_artifacts_between_stages.py",
        "tests/acceptance/test_artifacts_in_s3.py",
        "tests/contract/artifacts",
        "tests/integration/artifacts",
        "tests/integration/clouds",
        "tests/integration/s3",
        "tests/integration/api/test_direct.py",
        "tests/integration/api/test_s3.py",
        "tests/integration/api/test_stores.py",
    ),
    "campaigns": ("tests/acceptance/test_campaign.py", "tests/integration/campaign", "tests/integration/tracking"),
    "chaos": (
        "tests/acceptance/test_alignment_kills.py",
        "tests/acceptance/test_kill_matrix.py",
        "tests/chaos",
        "tests/fuzz",
    ),
    "cli": ("tests/acceptance/test_faults_as_seen.py", "tests/integration/client", "tests/integration/simulation"),
    "clusters": ("tests/integration/gangs", "tests/integration/ray", "tests/integration/slurm"),
    "db": ("tests/contract/db", "tests/integration/postgres"),
    "docs": ("tests/acceptance/test_notebook.py", "tests/documents", "tests/packaging/test_site.py"),
    "federation": (
        "tests/acceptance/test_federated_kinds.py",
        "tests/acceptance/test_federated_proof.py",
        "tests/acceptance/test_federated_training.py",
        "tests/acceptance/test_upload_guide.py",
        "tests/integration/federation",
        "tests/integration/api/test_federated",
        "tests/integration/api/test_federation",
        "tests/unit/federation",
    ),
    "orchestrator": (
        "tests/acceptance/test_four_ways.py",
        "tests/acceptance/test_other_machine.py",
        "tests/acceptance/test_own_executor.py",
        "tests/acceptance/test_pause_and_resume.py",
        "tests/acceptance/test_pipeline_example.py",
        "tests/acceptance/test_stop_and_go.py",
        "tests/acceptance/test_traces.py",
        "tests/acceptance/test_workflow_examples.py",
        "tests/integration/notify",
        "tests/integration/servers",
        "tests/properties",
        "tests/unit/orchestrator",
    ),
    "packaging": (
        "tests/acceptance/test_page_in_wheel.py",
        "tests/integration/deploy",
        "tests/integration/layout",
        "tests/packaging",
        "tests/unit/house",
    ),
    "page": ("tests/browser",),
    "real-model": ("tests/acceptance/test_real_model.py",),
    "serving": ("tests/integration/serving",),
    "trainer-control": (
        "tests/acceptance/test_printed_guide.py",
        "tests/contract/trainer_control",
        "tests/integration/trainer_control",
        "tests/integration/control",
        "tests/integration/ranks",
    ),
    "sweeps": ("tests/integration/sweeps",),
    "transport": (
        "tests/contract/transport",
        "tests/integration/nat",
        "tests/integration/redis",
        "tests/integration/api/test_tls.py",
    ),
    "worker": ("tests/contract/test_executors.py", "tests/integration/runtime", "tests/integration/worker"),
    "workloads": (
        "tests/acceptance/test_alignments.py",
        "tests/acceptance/test_chains.py",
        "tests/acceptance/test_evaluations.py",
        "tests/acceptance/test_merge_and_export.py",
        "tests/contract/test_merges.py",
        "tests/gpu",
        "tests/integration/engine",
        "tests/integration/kinds",
        "tests/integration/merge",
        "tests/integration/publishing",
        "tests/integration/workloads",
    ),
}
"""Beginnings of paths; the longest one that fits a file decides."""


def area_of(path: str) -> str | None:
    """Return the area of a test file, given by its path from the repository's root; `None` if no area has it."""
    fitting = [(len(start), area) for area, starts in AREAS.items() for start in starts if path.startswith(start)]
    return max(fitting)[1] if fitting else None
