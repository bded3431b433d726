"""Two stages on two machines, and a server whose files live in a real S3 service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.acceptance.test_artifacts_between_stages import QUIET, STAGES, Machine, adapter, run_stages
from tests.integration.s3.gateway import BUCKET, Gateway
from tests.libraries import required
from tunefleet.artifacts import hash_file
from tunefleet.cli.local_cluster.supervisor import LocalFleet

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(600)]


def test_the_second_stage_begins_with_what_the_first_has_left_in_s3(
    tmp_path: Path, s3_server: Gateway, free_port: Callable[[], int]
) -> None:
    required("trl")
    data = tmp_path / "server"
    load = "{type: http, url: '${gsm8k-stage.result.final_lora_archive_url}'}"
    environment = {**QUIET, **s3_server.environment}
    with LocalFleet(data, port=free_port(), workers=0, environment=environment, save_client=False) as fleet:
        output = f"{{destination: {{type: http, url: '{fleet.url}/api/v1/results', method: POST}}}}"
        # The workers know the server alone: they have neither keys nor the address of the service.
        one, two = (Machine(fleet, name, tmp_path / name) for name in ("one", "two"))
        first, second = run_stages(fleet, STAGES.format(output=output, load=load), one, two)
        folder = tmp_path / "one" / first.id
        begun = tmp_path / "two" / second.id / "imported_checkpoint" / "extracted" / "final_lora"
        assert adapter(begun) == adapter(folder / "final_lora"), "the second begins with what the first has trained"
        assert adapter(tmp_path / "two" / second.id / "final_lora") != adapter(begun)
        archive = folder / "final_lora.tar.gz"
        answer = httpx.get(first.result["result"]["final_lora_archive_url"], follow_redirects=True)
        assert answer.content == archive.read_bytes()
        assert str(answer.url).startswith(s3_server.endpoint)
    found = s3_server.client.list_objects_v2(Bucket=BUCKET, Prefix="fleet/blobs/")["Contents"]
    digest = hash_file(archive)[0]
    assert f"fleet/blobs/{digest[:2]}/{digest}" in {entry["Key"] for entry in found}
    assert not (data / "artifacts" / "blobs").exists()
    said = "".join(path.read_text(errors="replace") for path in data.rglob("*.log"))
    assert s3_server.environment["AWS_SECRET_ACCESS_KEY"] not in said
    assert "X-Amz-Signature" not in said
    for machine in (one, two):
        assert "X-Amz-Signature" not in (machine.results / "said.log").read_text(), "a link is a secret"
