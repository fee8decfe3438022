"""``moebench calibrate`` and ``moebench validate``, once their options are parsed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.arguments import (
    find_data_dir,
    parse_overrides,
    require_file,
    require_writable,
)
from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.files import write_text
from moebench.substrate.models.catalogue import scale_names, scale_path

#: What is compared where nothing else is asked for.
SYSTEMS = "moe-ondemand,smoe,daop,duoserve,flashmoe,hybrimoe,llamacpp"


@dataclass(frozen=True, slots=True)
class Place:
    """What is measured: a checkpoint, or a model's scale model, and what lies below the device."""

    weights: Path | None
    model: str | None
    link_gb_s: float | None

    def checkpoint(self) -> Path:
        """The checkpoint's folder.

        Raises:
            UsageError: none was given, or two.
        """
        if (self.weights is None) == (self.model is None):
            raise UsageError("give --weights DIR, or --model NAME, whose scale model is meant")
        if self.weights is not None:
            return self.weights
        if self.model not in scale_names():
            raise UsageError(
                f"--model {self.model}: no scale model of it ships; allowed: "
                f"{', '.join(scale_names())}"
            )
        return scale_path(str(self.model))


def calibrate_command(place: Place, out: Path, store: Path, as_json: bool) -> None:
    """Measure, write the profile, show what was found."""
    weights = place.checkpoint()
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InputError(f"--out {out}: give a file in a folder that exists, for example here.yaml")
    if out.suffix != ".yaml":
        raise InputError(f"--out {out}: a profile's name ends in .yaml, for example here.yaml")
    require_file("--out", out)
    require_writable(store)
    from moebench.harness.machines.calibrate import calibrate
    from moebench.harness.machines.profile import write_profile

    profile = calibrate(weights, place.link_gb_s, store)
    write_profile(profile, out)
    if as_json:
        print(json.dumps(profile, sort_keys=True, default=str))
        return
    measured, title = profile["measured"], profile["description"]
    rows = [
        [
            side,
            kind,
            f"{p['rows']}",
            f"{p['pairs'] or ''}",
            f"{p['ns'] / 1e6:.4g}",
            f"{p['spread']:.0%}",
        ]
        for side in ("device", "host")
        for kind, points in measured[side].items()
        for p in points
    ]
    console.table(title, ["side", "operation", "rows", "pairs", "ms", "middle half"], rows)
    parts = [
        [name.removesuffix("_ns").replace("_", " "), f"{measured[name] / 1e6:.4g}"]
        for name in measured
        if name.endswith("_ns")
    ]
    console.table("", ["part", "ms"], parts)
    console.stderr().print(
        f"{profile['calibration']['error']['source']}; profile in {out}: use it with "
        f"--machine {out} --model {weights}/config.json --precision fp32"
    )


def validate_command(
    place: Place,
    profile: Path,
    systems: str,
    overrides: list[str],
    repeats: int,
    given: dict[str, Any],
    data_dir: Path | None,
    store: Path,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run both ways, store the table, show it."""
    weights = place.checkpoint()
    if out is not None:
        require_file("--out", out)
    require_writable(store)
    from moebench.harness.machines.validate import Request, validate
    from moebench.substrate.machines.profile import load_profile
    from moebench.systems.registry import system_class

    load_profile(str(profile))  # before anything runs
    options: dict[str, dict[str, str]] = {}
    for name in systems.split(","):
        system_class(name)
        options[name] = {}
    for key, value in parse_overrides(overrides).items():
        name, dot, option = key.partition(".")
        if not dot or name not in options:
            raise UsageError(
                f"--set {key}={value}: name the system, for example daop.place=by-id; systems "
                f"here: {', '.join(options)}"
            )
        options[name][option] = value
    request = Request(
        profile, weights, place.link_gb_s, options, repeats, given, find_data_dir(data_dir)
    )
    document = validate(request, store, lambda text: console.stderr().print(text))
    if out is not None:
        write_text(out, json.dumps(document, indent=1, sort_keys=True) + "\n")
    if as_json:
        print(json.dumps(document, sort_keys=True))
    else:
        show(document)


def show(document: dict[str, Any]) -> None:
    """The table of errors, and the line below it."""
    rows = []
    for row in document["rows"]:
        cells = [row["system"] + (" (noisy)" if row["noisy"] else "")]
        for figure in ("tpot_ms", "ttft_ms"):
            one = row[figure]
            cells += [f"{one['measured']:.4g}", f"{one['simulated']:.4g}", f"{one['error']:+.1%}"]
        for figure in ("bytes", "hits"):
            one = row[figure]
            scale = 1e9 if figure == "bytes" else 1
            real, guess = one["measured"] / scale, one["simulated"] / scale
            cells.append(f"{real:.4g}" if real == guess else f"{real:.4g} / {guess:.4g}")
        resident = " ".join(f"{one:+.0%}" for one in row["resident"])
        rows.append([*cells, f"{row['spread']:.0%}", resident])
    headers = [
        "system", "TPOT ms", "simulated", "error", "TTFT ms", "simulated", "error", "GB moved",
        "hits", "spread", "resident",
    ]  # fmt: skip
    console.table(f"{document['profile']}: {document['model']}", headers, rows)
    console.stderr().print(
        "resident: the error of a token of the resident model, right before and after the system's "
        "runs: so much the computer itself has moved since it was calibrated"
    )
    s = document["summary"]
    verdict = "met" if all(s["met"].values()) else "not met"
    console.stderr().print(
        f"TPOT off by {s['tpot_mean']:.1%} in the mean and {s['tpot_worst']:.1%} at worst, TTFT by "
        f"{s['ttft_worst']:.1%} at worst; rank correlation {s['rank_correlation']}; targets 5 %, "
        f"10 % and 10 %: {verdict}"
    )
