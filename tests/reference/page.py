"""The calculation of docs/timing.md: one decoded token of three systems, layer by layer.

    python -m tests.reference.page        # prints the tables of the page

Each layer's time follows from its numbers of loads and host experts alone, because it waits for its
own work (``hf-eager``), and nothing is prefetched.
"""

from collections import Counter
from pathlib import Path

from tests.reference.cases import CATALOGUE, SETTINGS, SYSTEMS
from tests.reference.inputs import Shape, Trace, numbers
from tests.reference.prices import Prices
from tests.reference.simulator import Simulator

TRACE = CATALOGUE / "traces" / "qwen2-57b-a14b__arithmetic"
PAGE = Path(__file__).parents[2] / "docs" / "timing.md"

#: The systems of the page, slots of S3, prompts, and tokens of each.
SHOWN, SLOTS, PROMPTS, NEW_TOKENS = (
    ("everything resident", "on demand", "SMoE at α = 0"), 516, 3, 16,
)  # fmt: skip

#: Tokens of context: what the KV cache of the shown tokens takes is far below what they launch.
CONTEXT = 50


class Layer:
    """The times of a layer on S3, in seconds, by the rules of the page."""

    def __init__(self) -> None:
        machine = CATALOGUE / "machines" / f"{SETTINGS['S3'].machine}.yaml"
        self.of = numbers(machine, CATALOGUE / "software" / "hf-eager.yaml")
        self.prices = Prices(Shape.of(CATALOGUE / "models" / "qwen2-57b-a14b.json"), self.of)

    def takes(self, hits: int, loads: int, on_host: int) -> float:
        """Return the time from a layer's first launch to the end of its wait."""
        of, prices, model = self.of, self.prices, self.prices.model
        launch, sync, submit = (of[f"software.{one}"] for one in ("launch", "sync", "copy_submit"))
        python, two = of["software.expert"], 2 * launch
        decided = of["software.layer"] - two + sync + of["software.decision"]
        # Needed loads and host experts are submitted, then resident and shared experts launched.
        loading = decided + loads * submit
        hosting = loading + on_host * (2 * submit + python - prices.launches("expert"))
        shared = max(hosting + hits * python, hosting + launch) + launch
        resident = shared + prices.product(model.shared, 1)
        # Each loaded expert is launched once it is there.
        arrived = decided + submit + loads * prices.load() + python if loads else 0.0
        launched = max(hosting + hits * python + prices.launches("shared"), arrived) + two
        computed = max(resident, arrived)
        host_end = loading + submit + on_host * prices.on_host(1) + prices.output(1)
        total = max(computed, host_end if on_host else 0.0) + prices.total(1)
        return max(total, launched) + sync

    def head(self) -> float:
        """Return the time of the output layer and of reading the token back."""
        work = self.prices.product(self.prices.model.head, 1)
        return self.of["software.launch"] + work + self.of["software.sync"]


def layers(system: str) -> Counter[tuple[int, int, int]]:
    """Return how often a system decodes a layer with some hits, loads and host experts."""
    simulator = Simulator(Layer().prices, Trace(TRACE), SYSTEMS[system][2], SLOTS)
    simulator.run(range(PROMPTS), NEW_TOKENS)
    return Counter(simulator.decoded)


def tpot_ms(system: str) -> float:
    """Return the mean time of a decoded token, by the calculation of the page."""
    layer, tokens = Layer(), PROMPTS * (NEW_TOKENS - 1)
    took = sum(count * layer.takes(*kind) for kind, count in layers(system).items())
    return 1e3 * (took / tokens + layer.head())


def tables() -> str:
    """Return the tables of the page."""
    layer, said = Layer(), []
    for system in SHOWN:
        rows = [
            f"| {hits} | {loads} | {host} | {count} | {1e6 * layer.takes(hits, loads, host):.1f} |"
            for (hits, loads, host), count in sorted(layers(system).items(), reverse=True)
        ]
        said += [
            f"**{system[0].upper()}{system[1:]}**: {tpot_ms(system):.3f} ms a token, of which the "
            f"head takes {1e3 * layer.head():.3f}.", "",
            "| hits | loads | on the host | layers | µs a layer |",
            "| --- | --- | --- | --- | --- |",
            *rows, "",
        ]  # fmt: skip
    return "\n".join(said).rstrip() + "\n"


if __name__ == "__main__":
    print(tables(), end="")
