"""Cases in which systems are checked: model, batch size, device memory and routing."""

from dataclasses import dataclass
from typing import Literal

from moebench.harness.run.rules import resolve
from moebench.results.spec import RunSpec
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.models.shape import Precision
from moebench.systems.options import build
from moebench.systems.registry import Variant

#: A device on which most experts of the cases' models fit.
MACHINE = "h200"
WORKLOAD, NEW_TOKENS = "arithmetic", 6
PRECISION: Precision = "bf16"
#: Prompts by batch size: two batches of one, so that state outlives a batch; one batch of three.
PROMPTS = {1: 2, 3: 3}
#: Tokens of the KV cache for each sequence: prompts have fewer than 60.
LONGEST = 100
#: Number of calibration texts.
TEXTS = 4
#: Share of all experts that fit on the device with a ``loose`` budget.
LOOSE = 0.9


@dataclass(frozen=True, slots=True)
class Case:
    """Conditions in which a system is run: model, batch size, device memory and routing.

    Attributes:
        budget: ``tight``: the device holds as many experts as one token uses in all layers;
            ``loose``: most experts.
        replayed: routing is drawn and replayed, and no token is computed.
    """

    model: str
    batch: int
    budget: Literal["tight", "loose"]
    replayed: bool = False

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch}, {self.budget}" + ", replayed" * self.replayed

    @property
    def device_memory_gib(self) -> float:
        """Device memory for non-expert weights, KV cache and the budget's experts, in GiB."""
        shape = model_shape(self.model)
        layers = len(shape.moe_layers)
        experts = layers * shape.top_k
        if self.budget == "loose":
            experts = round(LOOSE * layers * shape.num_experts)
        kv = self.batch * LONGEST * shape.kv_bytes_per_token()
        # Add half an expert, so that rounding does not reduce their number.
        routed = round((experts + 0.5) * shape.expert_bytes(PRECISION))
        return (shape.common_bytes(PRECISION) + kv + routed) / 2**30


def cases(*models: str) -> tuple[Case, ...]:
    """Return the cases of each of these models: batch sizes, budgets and routing."""
    return tuple(
        case
        for model in models
        for case in (
            *(Case(model, batch, budget) for batch in PROMPTS for budget in _BUDGETS),
            Case(model, 3, "tight", replayed=True),
        )
    )


_BUDGETS: tuple[Literal["tight", "loose"], ...] = ("tight", "loose")

#: A fine-grained model with a dense layer and shared experts, and a coarse one without.
CASES = cases("deepseek-moe-16b", "mixtral-8x7b")


def spec_of(name: str, variant: Variant, case: Case, replayed: bool) -> RunSpec:
    """Return a system's run in a case, with few calibration texts and quick training options."""
    policies = build(name, variant=variant).policies
    quick = {f"{d}.{key}": value for d, p in policies.items() for key, value in p.quick.items()}
    return resolve(
        None,
        system=name,
        variant=variant,
        overrides=quick,
        model=case.model,
        machine=MACHINE,
        precision=PRECISION,
        workload=WORKLOAD,
        batch=case.batch,
        prompts=PROMPTS[case.batch],
        new_tokens=NEW_TOKENS,
        device_memory_gib=case.device_memory_gib,
        allow_overcommit=True,  # for systems that keep every expert on the device
        calibrate_texts=TEXTS,
        routing="drawn" if replayed else None,
    )
