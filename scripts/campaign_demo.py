"""Three cycles of `examples/campaign` on this machine: a table of what each has brought, and a plot of it.

make campaign-demo ARGS="--out campaign-demo.png"
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunefleet.cli.campaigns.views import log_line
from tunefleet.cli.console import say, table
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.lifecycle.cycle import Stage
from tunefleet.schemas.campaign import ModelVersionView
from tunefleet.spec.documents.campaign_file import parse_campaigns

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "campaign" / "config.yaml"
LOOK_S = 0.5
WORKERS_S = 120.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=EXAMPLE)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("campaign-demo.png"))
    parser.add_argument("--port", type=int, default=8017)
    given = parser.parse_args(arguments)
    campaigns = parse_campaigns(given.config.read_text(), filename=str(given.config))
    (name,) = campaigns
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="campaign-demo-") as folder,
        LocalFleet(Path(folder), port=given.port, save_client=False) as fleet,
    ):
        fleet.await_workers(WORKERS_S)
        with Client(fleet.url, fleet.key, patience_s=30) as client:
            client.campaigns.send(campaigns, given.config.parent, start=True)
            follow(client, name, given.cycles)
            client.campaigns.pause(name)
            found = [each for each in client.models.list(name=name).items if each.cycle < given.cycles]
    versions = sorted(found, key=lambda each: each.cycle)
    show(versions)
    draw(versions, given.out)
    say(f"{given.cycles} cycles took {time.monotonic() - began:.0f} s; the plot is {given.out}.")


def follow(client: Client, name: str, cycles: int) -> None:
    """Print the log until so many cycles are over."""
    after = 0
    while True:
        found = client.campaigns.log(name, after=after, limit=500)
        for line in found.lines:
            say(log_line(line), style="dim")
        after = found.next_id
        state = client.campaigns.get(name)
        if state.cycles > cycles:
            return
        if state.status != "active":
            raise SystemExit(f"{name} is {state.status.value}: {state.reason}")
        time.sleep(LOOK_S)


def show(versions: Sequence[ModelVersionView]) -> None:
    """Print a row for each cycle."""
    made = table("CYCLE", "ROWS", "BEGAN WITH", "HELD-OUT LOSS", "AGAINST BASE", "AGAINST PROMOTED", "STAGE")
    for each in versions:
        chunk, base = each.lineage["chunk"], each.lineage["base"]
        gains = each.evaluation["gate"]["against"]
        made.add_row(
            str(each.cycle),
            f"{chunk['start']:,}–{chunk['stop']:,}",
            "base" if base["version"] is None else f"version {base['version']}",
            f"{loss(each.evaluation['candidates'][0]):.3f}",
            gain(gains["base"]),
            gain(gains["promoted"]) if "promoted" in gains else "–",
            stage(each),
        )
    say(made)


def stage(version: ModelVersionView) -> str:
    """Return what has become of a version, in words."""
    if not version.evaluation["gate"]["passed"]:
        return "refused"
    if version.stage is Stage.ARCHIVED and version.promoted_at is not None:
        return "promoted, then succeeded"
    return version.stage.value


def loss(measured: dict[str, Any]) -> float:
    """Return a held-out loss, in nats per token."""
    return float(measured["loss"])


def gain(found: dict[str, Any]) -> str:
    """Return a gain with its interval."""
    return f"{found['value']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"


def draw(versions: Sequence[ModelVersionView], out: Path) -> None:
    """Draw the held-out loss of the base and of each cycle's model, with its interval."""
    from matplotlib.figure import Figure  # only who draws needs it

    measured = [versions[0].evaluation["base"], *(each.evaluation["candidates"][0] for each in versions)]
    metrics = [each["metrics"]["loss"] for each in measured]
    values = [each["value"] for each in metrics]
    errors = [[v - m["low"] for v, m in zip(values, metrics, strict=True)],
              [m["high"] - v for v, m in zip(values, metrics, strict=True)]]  # fmt: skip
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    places = list(range(len(values)))
    axes.errorbar(places, values, yerr=errors, fmt="o-", capsize=4, color="#2b6cb0")
    texts = [f"{values[0]:.2f}"]
    for each, value in zip(versions, values[1:], strict=True):
        texts.append(f"{value:.2f}, {'promoted' if each.evaluation['gate']['passed'] else 'refused'}")
    for place, text in zip(places, texts, strict=True):
        # Where the line does not come from, and on white: it may lead on through a text.
        end, aside = ("high", 8) if place == 0 else ("low", -8)
        below = {"xy": (place, metrics[place][end]), "xytext": (0, aside), "textcoords": "offset points"}
        white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.annotate(text, **below, ha="center", va="bottom" if place == 0 else "top", fontsize=9, bbox=white)
    axes.set_xticks(places, ["base", *(f"cycle {each.cycle}" for each in versions)])
    axes.set_ylabel("held-out loss (nats per token)")
    axes.set_title(f"{versions[0].name}: {versions[0].lineage['test']['rows']} rows that no training has seen")
    axes.margins(x=0.15, y=0.15)
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main()
