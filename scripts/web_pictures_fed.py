"""A federation and a campaign for `scripts.web_pictures`, small and real: what is uploaded, and what is trained."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from tunefleet.client import Client
from tunefleet.client.federation.client import FederatedClient
from tunefleet.errors import AdapterRefused
from tunefleet.schemas.federated import Losses
from tunefleet.spec.documents.campaign_document import CampaignSpec
from tunefleet.spec.options.federation_options import FederationSpec

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S: Final = 900.0
ROUNDS: Final = 7
CYCLES: Final = 4
_LABS: Final = {"kyoto": 120, "lima": 64, "oslo": 200, "paris": 96}
"""Examples of a round, by worker."""
_MODULES: Final = [f"model.layers.{layer}.self_attn.{name}" for layer in range(4) for name in ("q_proj", "v_proj")]
_CONFIG: Final = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "builtin:gsm8k-llama-2m", "r": 4,
    "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none", "target_modules": ["q_proj", "v_proj"],
}  # fmt: skip


def prepare(client: Client, url: str) -> dict[str, str]:
    """Let rounds and cycles happen that can be shown; return page → address."""
    federation, campaign = _federation(client, url), _campaign(client)
    return {
        "federations": "/ui/federations",
        "federation": f"/ui/federations/{federation}?version={ROUNDS - 1}",
        "campaigns": "/ui/campaigns",
        "campaign": f"/ui/campaigns/{campaign}?cycle={CYCLES - 2}",
    }


def _federation(client: Client, url: str) -> str:
    wanted = {"name": "clinics", "strategy": {"name": "fedavg_exact"}, "min_workers": len(_LABS), "rounds": 20}
    made = client.federations.create(FederationSpec.model_validate(wanted))
    dice = np.random.default_rng(1)
    for number in range(1, ROUNDS + 1):
        if number % 3 == 0:
            _refused(url, made.id, made.token, dice, number)
        for lab, (name, rows) in enumerate(_LABS.items()):
            loss = 1.4 + 1.1 * 0.75**number + lab / 20
            with FederatedClient(url, made.id, name, made.token) as worker:
                worker.upload(
                    _adapter(dice), config=_CONFIG, step=8 * number, num_examples=rows, base_version=number - 1,
                    losses=Losses(before=loss + 0.1, after=loss),
                )  # fmt: skip
            time.sleep(dice.uniform(0.1, 0.6))  # as far apart on the time line as people's machines are
        _until(lambda number=number: client.federations.get(made.id).version == number)
    with FederatedClient(url, made.id, "oslo", made.token) as worker:
        worker.upload(_adapter(dice), config=_CONFIG, step=8 * (ROUNDS + 1), num_examples=_LABS["oslo"])
    return made.id


def _refused(url: str, federation: str, token: str, dice: np.random.Generator, number: int) -> None:
    """Send what does not fit the others' model."""
    try:
        with FederatedClient(url, federation, "bergen", token) as worker:
            worker.upload(_adapter(dice, columns=48), config=_CONFIG, step=8 * number, num_examples=10)
    except AdapterRefused as error:
        print(f"refused, as it should be: {error}")


def _adapter(dice: np.random.Generator, columns: int = 32) -> dict[str, Any]:
    found = {}
    for module in _MODULES:
        for factor, shape in (("lora_A", (4, columns)), ("lora_B", (32, 4))):
            values = dice.standard_normal(shape).astype(np.float32)
            found[f"base_model.model.{module}.{factor}.weight"] = values
    return found


def _campaign(client: Client) -> str:
    """Run the example's campaign for some cycles, smaller; it is paused in the next one."""
    spec = yaml.safe_load((ROOT / "examples/campaign/config.yaml").read_text(encoding="utf-8"))["gsm8k"]
    spec["samples_per_training"] = 64
    spec["training"] |= {"max_steps": 12, "max_seq_length": 128}
    spec["evaluate"] = {"max_seq_length": 128, "max_rows": 24}
    spec["budget"] |= {"cost_per_task": 2.0, "max_cost": 40.0}
    (made,) = client.campaigns.apply({"gsm8k": CampaignSpec.model_validate(spec)})

    def enough() -> bool:
        cycle = client.campaigns.get(made.id).cycle
        return cycle is not None and cycle.number >= CYCLES and cycle.step in {"wait", "evaluate"}

    _until(enough)
    client.campaigns.pause(made.id)
    return made.name


def _until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("what is to be shown did not happen")
        time.sleep(0.1)
