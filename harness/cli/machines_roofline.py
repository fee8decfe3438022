"""``moebench machines roofline``: MoE-Lightning's roofline model of a machine, and its policies."""

from dataclasses import replace
from math import ceil, floor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from moebench.harness import console
from moebench.harness.cli.parameters import JSON, option
from moebench.substrate.errors import UsageError

if TYPE_CHECKING:
    from moebench.substrate.analysis.roofline import Policy
    from moebench.substrate.analysis.roofline_search import Case, Found

Side = Literal["device", "host"]

#: Largest number of tokens or requests that is understood.
MOST = 10**9


class Asked(NamedTuple):
    """The parts of a policy that were given; None leaves a part to the search."""

    batch: int | None
    micro_batch: int | None
    attention: Side
    experts: Side
    resident: float | None
    cached: float


def roofline(
    model: Annotated[str, option("Model's name, or a file of its shape.")],
    machine: Annotated[str, option("Profile's name, a .yaml file, or parts.")],
    prompt: Annotated[int, option("Tokens of each prompt.", min=1, max=MOST)] = 418,
    tokens: Annotated[int, option("New tokens of each request.", min=2, max=MOST)] = 128,
    batch: Annotated[
        int | None, option("Requests in a batch, N [searched].", min=1, max=MOST)
    ] = None,
    micro_batch: Annotated[
        int | None,
        option("Requests in a micro-batch, μ; it divides N [searched].", min=1, max=MOST),
    ] = None,
    attention: Annotated[Side, option("Where attention is computed.", show_default=True)] = "host",
    experts: Annotated[Side, option("Where experts are computed.", show_default=True)] = "device",
    resident: Annotated[
        float | None,
        option("Share of each layer's experts on the device [the best].", min=0, max=1),
    ] = None,
    cached: Annotated[float, option("Share of the KV cache on the device.", min=0, max=1)] = 0.0,
    svg: Annotated[Path | None, option("File to draw the roofs in, .svg.")] = None,
    json_: JSON = False,
) -> None:
    """Show turning points, a layer's time by lanes and the best policy (MoE-Lightning's HRM)."""
    from moebench.substrate.analysis.roofline import Texts
    from moebench.substrate.analysis.roofline_inputs import roofs_of, sizes_of
    from moebench.substrate.analysis.roofline_search import Case
    from moebench.substrate.machines.profile import load_profile
    from moebench.substrate.models.catalogue import model_shape

    if svg is not None:
        _require_figure(svg)
    asked = Asked(batch, micro_batch, attention, experts, resident, cached)
    sizes = sizes_of(model_shape(model), model)
    case = Case(sizes, roofs_of(load_profile(machine)), Texts(prompt=prompt, new=tokens))
    found = _found(case, asked, f"{model} on {machine}")
    document = _document(case, found, model, machine)
    if svg is not None:
        _draw(case, found, svg, f"{model} on {machine}")
    if json_:
        console.print_json(document, sort_keys=False)
        return
    _show(document, found)
    if svg is not None:
        console.say(f"{svg}: roofs of {machine} and operations of {model}")


def _require_figure(svg: Path) -> None:
    """Check before the search that a figure can be drawn and written."""
    from moebench.harness.arguments import require_file
    from moebench.harness.extras import require

    if svg.suffix != ".svg":
        raise UsageError(f"--svg {svg}: allowed: a name that ends in .svg")
    require("vl_convert", "--svg")
    require_file("--svg", svg)


# --------------------------------------------------------------------------- the policy


def _found(case: "Case", asked: Asked, where: str) -> "Found":
    """Return the policy that was asked for, its free parts searched.

    Raises UsageError: the policy contradicts itself or does not fit.
    """
    searched = asked.attention == "host" and asked.experts == "device"
    if asked.cached and asked.attention == "host":
        raise UsageError(
            f"--cached {asked.cached:g}: attention on the host reads the KV cache there; add "
            "--attention device"
        )
    if not searched and None in (asked.batch, asked.micro_batch):
        moved = "--attention device" if asked.attention == "device" else "--experts host"
        raise UsageError(
            f"{moved}: is not searched, as in the authors' code; add --batch N and --micro-batch M"
        )
    if asked.resident is not None and None in (asked.batch, asked.micro_batch):
        raise UsageError(
            f"--resident {asked.resident:g}: add --batch N and --micro-batch M, without which the "
            "share is searched"
        )
    if asked.batch is None:
        one = case.search() if asked.micro_batch is None else case.largest(asked.micro_batch)
        if one is None:
            least = asked.micro_batch or 1
            raise UsageError(_nothing_fits(case, _policy(least, least, asked), where))
        return one
    return _of_batch(case, asked.batch, asked, where)


def _of_batch(case: "Case", batch: int, asked: Asked, where: str) -> "Found":
    micro_batch = asked.micro_batch
    if micro_batch is None:
        found = case.of_batch(batch)
        if found is None:
            raise UsageError(_too_large(case, batch, asked, where))
        return found
    if batch % micro_batch:
        raise UsageError(
            f"--batch {batch} does not consist of micro-batches of {micro_batch}; allowed: "
            f"multiples of {micro_batch}"
        )
    policy = _policy(batch, micro_batch, asked)
    if not case.fits(policy):
        raise UsageError(_too_large(case, batch, asked, where))
    if asked.resident is None:
        found = case.with_best_share(policy)
        assert found is not None
        return found
    low, high = case.shares(policy)
    if not low <= asked.resident <= high:
        raise UsageError(
            f"--resident {asked.resident:g}: with a batch of {batch}, the memories of {where} hold "
            f"the policy at a share of {ceil(low * 1e6) / 1e6:g} to {floor(high * 1e6) / 1e6:g}"
        )
    return case.timed(replace(policy, resident=asked.resident))


def _policy(batch: int, micro_batch: int, asked: Asked) -> "Policy":
    from moebench.substrate.analysis.roofline import Policy

    return Policy(
        batch=batch, micro_batch=micro_batch,
        attention_on_device=asked.attention == "device",
        experts_on_device=asked.experts == "device", cached=asked.cached,
    )  # fmt: skip


def _too_large(case: "Case", batch: int, asked: Asked, where: str) -> str:
    micro_batch = asked.micro_batch or 1
    most = case.most(_policy(micro_batch, micro_batch, asked)) * micro_batch
    if not most:
        return _nothing_fits(case, _policy(micro_batch, micro_batch, asked), where)
    with_them = f", in micro-batches of {asked.micro_batch}" if asked.micro_batch else ""
    return (
        f"--batch {batch}: the memories of {where} hold at most {most:,} requests of "
        f"{case.texts.prompt} + {case.texts.new} tokens{with_them}"
    )


def _nothing_fits(case: "Case", policy: "Policy", where: str) -> str:
    """Return a sentence on the memory that a policy exceeds with every share of residents."""
    from moebench.substrate.analysis.roofline import device_need, host_need

    needs = [
        ("device", device_need(case.sizes, case.texts, policy), case.device_limit),
        ("host", host_need(case.sizes, case.texts, policy), case.host_limit),
    ]
    lacking = [
        f"the {name} needs {min(need.at(0), need.at(1)) / 1e9:.1f} GB or more and has "
        f"{limit / 1e9:.1f} GB"
        for name, need, limit in needs
        if min(need.at(0), need.at(1)) > limit
    ]
    said = lacking[0] if lacking else "device and host together are too small for the experts"
    size = "a request" if policy.batch == 1 else f"a micro-batch of {policy.batch} requests"
    return f"{where}: {size} of {case.texts.prompt} + {case.texts.new} tokens does not fit: {said}"


# --------------------------------------------------------------------------- output


def _document(case: "Case", found: "Found", model: str, machine: str) -> dict[str, Any]:
    """Return all numbers as plain values, in base units."""
    from moebench.substrate.analysis import roofline as hrm

    sizes, roofs, policy, time = case.sizes, case.roofs, found.policy, found.time
    p1, on_device = (hrm.first_turning_point(roofs), hrm.ffn_intensity(sizes, policy.micro_batch))
    p2 = hrm.second_turning_point(roofs, on_device)
    device = hrm.device_need(sizes, case.texts, policy).at(policy.resident)
    host = hrm.host_need(sizes, case.texts, policy).at(policy.resident)
    return {
        "model": model, "machine": machine, "prompt": case.texts.prompt, "new": case.texts.new,
        "roofs": {name: getattr(roofs, name) for name in roofs.__dataclass_fields__},
        "turning_points": {
            "p1": {"intensity": p1, "batch": hrm.requests_at(sizes, p1)},
            "p2": {"intensity": p2, "batch": hrm.requests_at(sizes, p2)},
            "ffn": hrm.ffn_intensity(sizes, policy.batch),
            "ffn_on_device": on_device,
            "attention": hrm.attention_intensity(sizes),
        },
        "policy": {
            "batch": policy.batch, "micro_batch": policy.micro_batch,
            "micro_batches": policy.micro_batches,
            "attention": "device" if policy.attention_on_device else "host",
            "experts": "device" if policy.experts_on_device else "host",
            "resident": policy.resident, "cached": policy.cached,
        },
        "layer_s": {
            "link": time.link, "host": time.host, "device": time.device,
            "device_attention": time.device_attention, "device_ffn": time.device_ffn,
            "total": time.total, "limit": time.limit,
        },
        "memory_bytes": {
            "device": device, "device_limit": case.device_limit,
            "host": host, "host_limit": case.host_limit,
        },
        "tokens_per_s": found.tokens_per_s,
    }  # fmt: skip


def _show(document: dict[str, Any], found: "Found") -> None:
    points, policy, layer = document["turning_points"], document["policy"], document["layer_s"]
    memory, n, mu = document["memory_bytes"], policy["batch"], policy["micro_batch"]
    below = {"p1": "the host is faster than the device with moved data",
             "p2": f"the link limits the device's FFN (μ = {mu})"}  # fmt: skip
    rows = [
        [name.upper(), f"{points[name]['intensity']:.1f}", f"{points[name]['batch']:,.0f}", said]
        for name, said in below.items()
    ]
    rows += [
        ["FFN", f"{points['ffn']:.1f}", f"{n:,}", _side(points["ffn"], points)],
        ["attention", f"{points['attention']:.1f}", "any", _side(points["attention"], points)],
    ]
    console.table(
        "turning points", ["point", "FLOP/B", "batch N", "below it, or where it is"], rows
    )
    rows = [
        ["N, μ, q", f"{n:,}, {mu:,}, {policy['micro_batches']:,}"],
        ["attention, experts", f"{policy['attention']}, {policy['experts']}"],
        ["experts on the device, r_w", f"{policy['resident']:.4f}"],
        ["KV cache on the device, r_c", f"{policy['cached']:.4f}"],
        ["a layer: link", f"{layer['link']:.4f} s"],
        ["a layer: host", f"{layer['host']:.4f} s"],
        ["a layer: device", f"{layer['device']:.4f} s"],
        ["T_layer", f"{layer['total']:.4f} s ({layer['limit']})"],
        ["device memory", _of(memory["device"], memory["device_limit"])],
        ["host memory", _of(memory["host"], memory["host_limit"])],
        ["decode throughput", f"{found.tokens_per_s:,.1f} tokens/s"],
    ]
    console.table("policy", ["figure", "value"], rows)
    console.say(
        f"a bound by peak rates, not a run: {document['model']} on {document['machine']}, "
        f"{document['prompt']} + {document['new']} tokens, weights in bf16"
    )


def _side(intensity: float, points: dict[str, Any]) -> str:
    if intensity < points["p1"]["intensity"]:
        return "below P1"
    return "below P2" if intensity < points["p2"]["intensity"] else "above P2"


def _of(needed: float, limit: float) -> str:
    return f"{needed / 1e9:.2f} of {limit / 1e9:.2f} GB that may be used"


def _draw(case: "Case", found: "Found", file: Path, title: str) -> None:
    from moebench.reports.figures.roofline import DEVICE, HOST, LINK, roofline, roofline_rows
    from moebench.reports.formats.svg import write_svg
    from moebench.reports.page.static_figures import StaticFigure
    from moebench.substrate.analysis import roofline as hrm

    sizes, roofs, policy = case.sizes, case.roofs, found.policy
    on_device, over_link = (
        hrm.ffn_intensity(sizes, requests) for requests in (policy.micro_batch, policy.batch)
    )
    p1, p2 = hrm.first_turning_point(roofs), hrm.second_turning_point(roofs, on_device)
    kv = hrm.attention_intensity(sizes)
    points = [
        (LINK, "P1", p1, roofs.link_bandwidth * p1),
        (LINK, "P2", p2, roofs.link_bandwidth * p2),
        (LINK, f"FFN, N = {policy.batch}", over_link, hrm.attainable(roofs, on_device, over_link)),
        (DEVICE, f"FFN, μ = {policy.micro_batch}", on_device,
         min(roofs.gpu_flops, roofs.gpu_bandwidth * on_device)),
        (HOST, "attention", kv, hrm.host_attainable(roofs, kv)),
    ]  # fmt: skip
    lines = {
        DEVICE: (roofs.gpu_bandwidth, roofs.gpu_flops),
        LINK: (roofs.link_bandwidth, roofs.gpu_flops),
        HOST: (roofs.host_bandwidth, roofs.host_flops),
    }
    write_svg(StaticFigure(title, roofline(), roofline_rows(lines, points), {}), file)
