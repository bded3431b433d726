"""Averaging of LoRA adapters: files in, one adapter out, with NumPy.

Works on files and numbers only: no database, no rounds, no torch. Reads safetensors in blocks, computes in float32
(float64 where small matrices are squared), and refuses unsupported variants by name. The server averages with it; a
worker packs its uploads with it. Importing it imports NumPy, so programs with a fast startup import it on first use.

`aggregate` averages with a strategy. The strategies differ in what they average: `linear`, `fedopt` and
`by_factors` the factors A and B elementwise; `exact` and `by_products` the products scale · B · A.
"""

from __future__ import annotations

from tunefleet.federation.adapter import CONFIG, TENSORS, AdapterConfig, AdapterFile, config_of, read_config
from tunefleet.federation.aggregation.averaging_job import LayerReport, Report
from tunefleet.federation.aggregation.by_products import RESIDUAL
from tunefleet.federation.aggregation.sources import Update, update_in
from tunefleet.federation.aggregation.strategy import aggregate, refit
from tunefleet.federation.contract import Checked, Contract, check, check_asked, contract_of
from tunefleet.federation.safetensors_writer import write_tensors

__all__ = [
    "CONFIG",
    "RESIDUAL",
    "TENSORS",
    "AdapterConfig",
    "AdapterFile",
    "Checked",
    "Contract",
    "LayerReport",
    "Report",
    "Update",
    "aggregate",
    "check",
    "check_asked",
    "config_of",
    "contract_of",
    "read_config",
    "refit",
    "update_in",
    "write_tensors",
]
