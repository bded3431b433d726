"""Options of a federation: how updates are aggregated into one adapter, and when a round closes.

The options of each strategy are listed here once; an option that the strategy does not use is rejected rather than
ignored. The aggregation itself is in `tunefleet.federation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tunefleet.spec.base import Block, NotBool, PositiveFloat, PositiveInt, Text, wrong
from tunefleet.spec.options.model import LoraSpec

StrategyName = Literal[
    "fedavg",
    "fedavg_exact",
    "fedprox",
    "fedadam",
    "fedyogi",
    "diloco",
    "median",
    "trimmed_mean",
    "krum",
    "multi_krum",
]
# By the number of examples that each worker trained on since the last version, or equal for all workers.
Weighting = Literal["examples", "equal"]
# What an exact average of products becomes: the best adapter of one rank; all factors concatenated, whose rank is the
# sum; or the best adapter of one rank plus a second adapter with the residual, to be merged into the base model.
ProductOutput = Literal["rank", "stack", "residual"]

_WEIGHTED: Final = {"weighting": "examples", "max_examples": None, "clip_norm": None}
_SERVER: Final = {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
# The options of each strategy with their defaults.
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "fedavg": _WEIGHTED,
    "fedavg_exact": {**_WEIGHTED, "output": "rank", "rank": None},
    "fedprox": {**_WEIGHTED, "mu": 0.01},
    "fedadam": {**_WEIGHTED, **_SERVER, "server_lr": 0.01},
    "fedyogi": {**_WEIGHTED, **_SERVER, "server_lr": 0.01},
    "diloco": {**_WEIGHTED, "server_lr": 0.7, "momentum": 0.9},
    "median": {"clip_norm": None},
    "trimmed_mean": {"clip_norm": None, "trim": 0.2},
    "krum": {"byzantine": 1},
    "multi_krum": {
        "weighting": "equal",
        "max_examples": None,
        "byzantine": 1,
        "keep": None,
        "output": "rank",
        "rank": None,
    },
}
# The strategies that compare or average products, so that ranks and alphas may differ.
# FedAvg on factors requires equal shapes; products of factors have the shape of the base weight.
_MIXED: Final = frozenset({"fedavg_exact", "krum", "multi_krum"})
Momentum = Annotated[float, Field(ge=0, lt=1), NotBool]
# Upper limit without `max_workers`: anyone who has the federation's token can join under new names.
MAX_WORKERS: Final = 10_000
_DAY_S: Final = 86_400.0
# Strategies that are robust to a minority of faulty or malicious workers.
ROBUST: Final = frozenset({"median", "trimmed_mean", "krum", "multi_krum"})


class StrategySpec(Block):
    """How the updates of a round are aggregated into the next version of the global adapter.

    Options that the strategy does not use are rejected; unset options get the strategy's defaults.
    """

    name: StrategyName = "fedavg"
    """`fedavg` averages the LoRA factors, `fedavg_exact` their products; `fedprox` is `fedavg` with a proximal term in
    each worker's loss; `fedadam`, `fedyogi` and `diloco` treat the average change as a pseudo-gradient; `median`,
    `trimmed_mean`, `krum` and `multi_krum` are robust to faulty or malicious workers."""
    weighting: Weighting | None = None
    """Weight of an update: its number of `examples`, or `equal` for all."""
    max_examples: PositiveInt | None = None
    """Cap on the number of examples by which an update is weighted."""
    clip_norm: PositiveFloat | None = None
    """Maximum norm of the change that one update makes to the global adapter: the Frobenius norm over all layers of the
    change of scale · B · A; larger changes are scaled down."""
    output: ProductOutput | None = None
    """Form of an exact average: `rank`, `stack` or `residual`."""
    rank: PositiveInt | None = None
    """Rank of the resulting adapter; default: the largest rank among the updates."""
    mu: PositiveFloat | None = None
    """Strength of the proximal term towards the global adapter in each worker's loss (FedProx)."""
    server_lr: PositiveFloat | None = None
    """Learning rate of the server's optimizer."""
    beta1: Momentum | None = None
    """Decay rate of the first moment (FedAdam, FedYogi)."""
    beta2: Momentum | None = None
    """Decay rate of the second moment (FedAdam, FedYogi)."""
    tau: PositiveFloat | None = None
    """Term added to the root of the second moment; controls the degree of adaptivity (FedAdam, FedYogi)."""
    momentum: Momentum | None = None
    """Nesterov momentum of the outer step (DiLoCo)."""
    trim: Annotated[float, Field(gt=0, lt=0.5), NotBool] | None = None
    """Fraction of updates to discard at each end of each coordinate; at least one update."""
    byzantine: PositiveInt | None = None
    """Number of faulty updates to tolerate, f; Krum needs at least 2f + 3 updates."""
    keep: PositiveInt | None = None
    """Number of updates that `multi_krum` averages; default: all but `byzantine`."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = {"name": data}
        if not isinstance(data, Mapping):
            return data
        name = data.get("name") or "fedavg"
        options = _OPTIONS.get(name) if isinstance(name, str) else None
        if options is None:
            return data
        given = {key: value for key, value in data.items() if value is not None}
        strange = next((key for key in given if key in cls.model_fields and key != "name" and key not in options), None)
        if strange is not None:
            raise wrong(
                f"has no effect with the strategy {name}", f"options of {name}: {', '.join(options)}", at=strange
            )
        # Defaults are filled in before validation, so that the stored spec is explicit.
        return {**{key: value for key, value in options.items() if value is not None}, **given}

    @model_validator(mode="after")
    def _consistent(self) -> StrategySpec:
        if self.max_examples is not None and self.weighting == "equal":
            raise wrong("has no effect with weighting: equal", "remove one of them", at="max_examples")
        if self.rank is not None and self.output == "stack":
            raise wrong("has no effect with output: stack", "the rank is the sum of the updates' ranks", at="rank")
        return self

    @property
    def min_updates(self) -> int:
        """Minimum number of updates that the strategy needs."""
        match self.name:
            case "median" | "trimmed_mean":
                # With fewer updates, discarding the extremes would leave nothing.
                return 3
            case "krum" | "multi_krum":
                # Krum's requirement n ≥ 2f + 3, for its score over n − f − 2 neighbors.
                return max(2 * (self.byzantine or 0) + 3, self.keep or 0)
            case _:
                return 1

    @property
    def takes_mixed_ranks(self) -> bool:
        """Whether ranks and alphas may differ between updates."""
        return self.name in _MIXED

    @property
    def keeps_state(self) -> bool:
        """Whether the server's optimizer keeps state between rounds."""
        return self.name in {"fedadam", "fedyogi", "diloco"}


class _OrName:
    """Allows the name alone in the JSON Schema of a strategy, as the validator does."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": list(get_args(StrategyName))}, handler(core_schema)]}


# A block, or only the name of the strategy.
Strategy = Annotated[StrategySpec, _OrName()]


class FederationSpec(Block):
    """A federation: many workers train one shared adapter, each on its own data."""

    model_config = ConfigDict(defer_build=False)  # the body of a route, which FastAPI inspects at import

    name: Text | None = None
    """Display name; the id is generated."""
    base_model: Text | None = None
    """Base model of the adapter, as in `base_model_name_or_path` of the updates; default: that of the first update."""
    lora: LoraSpec | None = None
    """Rank, alpha and target modules that every update must have; default: those of the first update."""
    strategy: Strategy = Field(default_factory=StrategySpec)
    """Aggregation strategy."""
    min_workers: Annotated[int, Field(ge=1, le=MAX_WORKERS), NotBool] = 2
    """Minimum number of updates in a round."""
    max_workers: Annotated[int, Field(ge=1, le=MAX_WORKERS), NotBool] | None = None
    """Maximum number of workers in a round. With more `participants`, this many are sampled for each round; without
    `participants`, further workers cannot join."""
    participants: tuple[Text, ...] | None = None
    """Names of the participating workers; a round closes when all of them, or all that were sampled, have uploaded.
    Default: anyone with the federation's token can participate, and a round closes at `min_workers`."""
    own_tokens: bool = False
    """Require a separate token for each worker (`tunefleet federation token ID --for NAME`). Otherwise anyone with the
    federation's token can upload under any name, or several, which no robust strategy withstands."""
    deadline_s: Annotated[float, Field(gt=0, le=7 * _DAY_S), NotBool] = 600.0
    """Seconds from a round's first update until the round closes, if it has at least `min_workers` updates."""
    rounds: PositiveInt | None = None
    """Number of rounds; default: unlimited, until you stop the federation."""
    sync_every_steps: PositiveInt = 100
    """Optimizer steps between uploads of a worker."""
    mixed_ranks: bool = False
    """Allow updates with different ranks and alphas; only for strategies that work on products."""
    max_update_bytes: Annotated[int, Field(ge=1, le=1 << 40), NotBool] = 2 << 30
    """Maximum size of an upload, in bytes."""
    max_num_examples: Annotated[int, Field(ge=1, le=1 << 53), NotBool] = 1_000_000_000
    """Maximum number of examples that an update may report; updates with more are rejected."""
    dataset: Text | None = None
    """Pushed dataset (JSONL, CSV or TSV) that workers claim in chunks of JSONL."""
    chunk_size: PositiveInt = 1000
    """Rows per chunk."""
    callback_secret: Text | None = Field(default=None, repr=False, exclude=True)
    """Secret that signs requests to the workers' callback URLs; write-only."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Warnings about options that are valid but probably unintended."""
        if self.strategy.name not in ROBUST or self.own_tokens:
            return ()
        return (
            f"With one shared token, a worker can upload under several names and form a majority, which "
            f"{self.strategy.name} does not withstand. Set own_tokens (--own-tokens) to authenticate each worker.",
        )

    @model_validator(mode="after")
    def _consistent(self) -> FederationSpec:
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise wrong(f"is less than min_workers, which is {self.min_workers}", "raise it", at="max_workers")
        if self.participants is not None:
            self._check_participants(self.participants)
        if self.mixed_ranks and not self.strategy.takes_mixed_ranks:
            raise wrong(
                f"cannot be used with the strategy {self.strategy.name}, which needs factors of equal shape",
                f"use one of {', '.join(sorted(_MIXED))}",
                at="mixed_ranks",
            )
        # Otherwise a round could close with too few updates for the strategy.
        if self.min_workers < self.strategy.min_updates:
            raise wrong(
                f"is too small for {self.strategy.name}, which needs {self.strategy.min_updates} updates",
                f"set min_workers: {self.strategy.min_updates}",
                at="min_workers",
            )
        return self

    def _check_participants(self, names: tuple[str, ...]) -> None:
        if len(set(names)) != len(names):
            raise wrong("lists a worker twice", "list each worker once", at="participants")
        if len(names) < self.min_workers:
            raise wrong(
                f"has {len(names)} names, but min_workers is {self.min_workers}", "add names", at="participants"
            )
