"""The shipped alerts, evaluated by Prometheus itself: they fire when they should, with series that do not exist yet."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

from scripts.check_docs import command_fault
from tunefleet.artifacts import blobs

CASES = Path(__file__).with_name("alerts_cases.yaml")
ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy/prometheus/alerts.yaml"
FETCHED = ROOT / ".promtool/usr/bin/promtool"


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path, missing: Callable[[str], None]) -> None:
    promtool = shutil.which("promtool") or shutil.which(FETCHED)
    if promtool is None:
        missing("promtool (scripts/promtool.sh)")
    assert promtool is not None
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8")) | {"rule_files": [str(RULES)]}
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump(cases), encoding="utf-8")
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_compares_with_growth_that_may_have_no_series() -> None:
    """What has never happened has no series, and what is compared with nothing is never true."""
    rules = [each for group in yaml.safe_load(RULES.read_text())["groups"] for each in group["rules"]]
    asked = {each["alert"]: " ".join(each["expr"].split()) for each in rules}
    assert "(sum(rate(tunefleet_placement_seconds_count[30m])) or vector(0)) == 0" in asked["TunefleetQueueStands"]
    assert asked["TunefleetTasksFail"].endswith('{status="completed"}[30m])) or vector(0))')


def test_the_commands_that_alerts_and_refusals_name_exist() -> None:
    said = RULES.read_text(encoding="utf-8") + Path(blobs.__file__).read_text(encoding="utf-8")
    found = re.findall(r"`tunefleet ([^`]+)`", said)
    assert len(found) > 8
    assert [fault for each in found if (fault := command_fault(each.split()))] == []
