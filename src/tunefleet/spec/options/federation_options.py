"""What a user writes of a federation: how updates become one adapter, and when a round closes.

Which options belong to which strategy is written here once; one that the named strategy does not use is refused, so
that no option is silently without effect. The arithmetic itself is in `tunefleet.federation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tunefleet.spec.base import Block, NotBool, PositiveFloat, PositiveInt, Text, wrong
from tunefleet.spec.options.adapter import LoraSpec

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
Weighting = Literal["examples", "equal"]
"""By the examples that each worker trained on since the last version, or each worker alike."""
# What an exact average of products becomes: the best adapter of one rank; all factors side by side, whose rank is the
# sum; or the best adapter of one rank and a second one, to be merged into the base, with all that it leaves out.
ProductOutput = Literal["rank", "stack", "residual"]

_WEIGHTED: Final = {"weighting": "examples", "max_examples": None, "clip_norm": None}
_SERVER: Final = {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
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
"""The options of each strategy with their defaults."""
# The strategies that compare or average products, so that ranks and alphas may differ.
_MIXED: Final = frozenset({"fedavg_exact", "krum", "multi_krum"})
Momentum = Annotated[float, Field(ge=0, lt=1), NotBool]
MAX_WORKERS: Final = 10_000
"""Most workers of a federation that names no fewer: whoever has its token can make up names."""
_DAY_S: Final = 86_400.0


class StrategySpec(Block):
    """How the updates of a round become the next version of the global adapter.

    Options that the named strategy does not use are refused; the others get that strategy's defaults.
    """

    name: StrategyName = "fedavg"
    """`fedavg` averages the factors, `fedavg_exact` their products; `fedprox` is `fedavg` with a pull at the worker;
    `fedadam`, `fedyogi` and `diloco` treat the average's change as a gradient; `median`, `trimmed_mean`, `krum` and
    `multi_krum` withstand workers that send nonsense."""
    weighting: Weighting | None = None
    """What an update weighs: its `examples`, or all `equal`."""
    max_examples: PositiveInt | None = None
    """No update counts for more examples than this, whatever it says."""
    clip_norm: PositiveFloat | None = None
    """Longest change that one update may make to the global adapter: Frobenius norm over all layers of the change of
    scale · B · A; a longer one is shortened."""
    output: ProductOutput | None = None
    """What an exact average becomes: `rank`, `stack` or `residual`."""
    rank: PositiveInt | None = None
    """Rank of the outcome; by default the largest among the updates."""
    mu: PositiveFloat | None = None
    """Strength of the pull towards the global adapter in each worker's loss (FedProx)."""
    server_lr: PositiveFloat | None = None
    """Step of the server's optimiser."""
    beta1: Momentum | None = None
    """How much of the last direction stays (FedAdam, FedYogi)."""
    beta2: Momentum | None = None
    """How much of the last squares stays (FedAdam, FedYogi)."""
    tau: PositiveFloat | None = None
    """What is added to the root of the squares: the smaller, the more every coordinate moves alike."""
    momentum: Momentum | None = None
    """Nesterov momentum of the outer step (DiLoCo)."""
    trim: Annotated[float, Field(gt=0, lt=0.5), NotBool] | None = None
    """Part of the updates that is left out at each end of each coordinate; at least one is."""
    byzantine: PositiveInt | None = None
    """How many updates may be nonsense; Krum needs twice as many, and three, to choose among."""
    keep: PositiveInt | None = None
    """How many updates `multi_krum` averages; by default all but `byzantine`."""

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
            raise wrong(f"has no effect with the strategy {name}", f"{name} takes: {', '.join(options)}", at=strange)
        return {**{key: value for key, value in options.items() if value is not None}, **given}

    @model_validator(mode="after")
    def _consistent(self) -> StrategySpec:
        if self.max_examples is not None and self.weighting == "equal":
            raise wrong("has no effect with weighting: equal", "leave one of them out", at="max_examples")
        if self.rank is not None and self.output == "stack":
            raise wrong("has no effect with output: stack", "the rank is the sum of the updates' ranks", at="rank")
        return self

    @property
    def min_updates(self) -> int:
        """The smallest number of updates that the strategy can make something of."""
        match self.name:
            case "median" | "trimmed_mean":
                return 3
            case "krum" | "multi_krum":
                return max(2 * (self.byzantine or 0) + 3, self.keep or 0)
            case _:
                return 1

    @property
    def takes_mixed_ranks(self) -> bool:
        """Whether ranks and alphas may differ between updates."""
        return self.name in _MIXED

    @property
    def keeps_state(self) -> bool:
        """Whether the server's optimiser has a state that goes from round to round."""
        return self.name in {"fedadam", "fedyogi", "diloco"}


# Strategies that withstand workers that send nonsense, as long as those are few.
ROBUST: Final = frozenset({"median", "trimmed_mean", "krum", "multi_krum"})


class _OrName:
    """Lets the JSON Schema of a strategy take its name alone, as the validator does."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": list(get_args(StrategyName))}, handler(core_schema)]}


# A block, or the name of the strategy alone.
Strategy = Annotated[StrategySpec, _OrName()]


class FederationSpec(Block):
    """A federation: many workers train one adapter, each on its own data."""

    model_config = ConfigDict(defer_build=False)  # a body of a route, which FastAPI looks into

    name: Text | None = None
    """For people; a federation has an id of its own."""
    base_model: Text | None = None
    """The model below the adapter, as `base_model_name_or_path` of the adapters says it; by default that of the first
    update."""
    lora: LoraSpec | None = None
    """Rank, alpha and target modules that every update must have; by default those of the first update."""
    strategy: Strategy = Field(default_factory=StrategySpec)
    """How updates become the next version."""
    min_workers: Annotated[int, Field(ge=1, le=MAX_WORKERS), NotBool] = 2
    """Fewest updates that make a round."""
    max_workers: Annotated[int, Field(ge=1, le=MAX_WORKERS), NotBool] | None = None
    """Most workers that take part in a round: of more `participants` so many are drawn for each round, and without
    `participants` no others may join."""
    participants: tuple[Text, ...] | None = None
    """Names of the workers that take part: a round closes when all of them, or of those drawn for it, have uploaded. By
    default anybody with the federation's token may, and a round closes at `min_workers`."""
    own_tokens: bool = False
    """Whether each worker needs a token of its own (`tunefleet federation token ID --for NAME`). Without it anyone
    who has the federation's token can use any name, and several: no robust strategy withstands that."""
    deadline_s: Annotated[float, Field(gt=0, le=7 * _DAY_S), NotBool] = 600.0
    """Seconds from a round's first update until it closes with those that are there, `min_workers` at least."""
    rounds: PositiveInt | None = None
    """Rounds after which the federation is complete; by default it goes on until somebody ends it."""
    sync_every_steps: PositiveInt = 100
    """Optimizer steps between two uploads of a worker."""
    mixed_ranks: bool = False
    """Whether updates may differ in rank and alpha; only with strategies that work on products."""
    max_update_bytes: Annotated[int, Field(ge=1, le=1 << 40), NotBool] = 2 << 30
    """Largest upload."""
    max_num_examples: Annotated[int, Field(ge=1, le=1 << 53), NotBool] = 1_000_000_000
    """Most examples that an update may claim; one that claims more is refused."""
    dataset: Text | None = None
    """Pushed data that workers claim in chunks of JSON lines: JSON lines, CSV or TSV."""
    chunk_size: PositiveInt = 1000
    """Rows of one chunk."""
    callback_secret: Text | None = Field(default=None, repr=False, exclude=True)
    """Signs what is posted to the workers' callback addresses; never read back."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is valid and probably not what is meant, in sentences."""
        if self.strategy.name not in ROBUST or self.own_tokens:
            return ()
        return (
            f"With one token for all, one worker may send under several names and be the majority, which "
            f"{self.strategy.name} does not withstand: own_tokens (--own-tokens) proves who sends.",
        )

    @model_validator(mode="after")
    def _consistent(self) -> FederationSpec:
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise wrong(f"is less than min_workers, which is {self.min_workers}", "raise it", at="max_workers")
        if self.participants is not None:
            self._check_participants(self.participants)
        if self.mixed_ranks and not self.strategy.takes_mixed_ranks:
            raise wrong(
                f"cannot be used with the strategy {self.strategy.name}, which needs factors of one shape",
                f"take one of {', '.join(sorted(_MIXED))}",
                at="mixed_ranks",
            )
        if self.min_workers < self.strategy.min_updates:
            raise wrong(
                f"is too small for {self.strategy.name}, which needs {self.strategy.min_updates} updates",
                f"write min_workers: {self.strategy.min_updates}",
                at="min_workers",
            )
        return self

    def _check_participants(self, names: tuple[str, ...]) -> None:
        if len(set(names)) != len(names):
            raise wrong("names a worker twice", "name each of them once", at="participants")
        if len(names) < self.min_workers:
            raise wrong(
                f"has {len(names)} names, and min_workers is {self.min_workers}", "name more", at="participants"
            )
