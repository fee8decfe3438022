"""Tables and figures of the field's claims."""

from moebench.harness.reproduce.claim import Show
from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.exhibits import MODEL, axis, figure, table
from moebench.harness.reproduce.field import (
    evictions,
    fronts,
    hits,
    pages,
    placement,
    prefetch_law,
    profiles,
    splits,
)
from moebench.harness.reproduce.field import experiments as e
from moebench.results.claims import Exhibit

_SHARE = axis("share", "experts on the device")
_CHANGE = axis("change", "change of TPOT", "%")
_HIT_RATE = axis("hits", "hit rate")


def _hits(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.SPEED)
    rows = []
    for pair in sorted(hits.contrasts(runs), key=lambda one: -one.ratio)[:20]:
        rows.append({
            "place": pair.place, "many": pair.many.system, "few": pair.few.system,
            "many_hits": round(pair.many.hits, 3), "few_hits": round(pair.few.hits, 3),
            "ratio": round(pair.ratio, 3),
        })  # fmt: skip
    return table(
        "field-hits", "1", "Pairs of systems whose order by hits is not that by time",
        (
            axis("place"), axis("many", "more hits"), axis("many_hits", "its hits"),
            axis("few", "fewer hits"), axis("few_hits", "its hits"),
            axis("ratio", "TPOT, more hits over fewer"),
        ),
        rows, badge=runs.badge, note="the twenty clearest pairs",
    )  # fmt: skip


def _prefetch(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.PREFETCH)
    found = prefetch_law.pairs(runs)
    law = prefetch_law.fit(found)
    rows = []
    for pair in found:
        place = {
            "model": pair.model,
            "link": f"{pair.link:g} GB/s",
            "hits": round(pair.hit_rate, 3),
        }
        told = pair.law(law.overlap)
        rows.append(place | {"change": round(pair.change, 2), "law": round(told, 2)})
    return figure(
        "field-prefetch", "2", "Change of TPOT by prefetching, and by the law", "points",
        (axis("law", "by the law", "%"), _CHANGE), rows, runs.badge, series="link",
        facet="model",
    )  # fmt: skip


def _profiles(evidence: Evidence) -> Exhibit:
    rows = []
    for share in profiles.SHARES:
        found = profiles.of_streams(evidence, share)
        for row in (*found, *profiles.of_totals(evidence, share)):
            rows.append({
                "model": row.model, "workload": row.workload, "share": share,
                **{
                    name: None if value is None else round(100 * value, 1)
                    for name, value in (
                        ("chance", row.chance), ("own", row.own), ("other", row.other),
                        ("lru", row.lru),
                    )
                },
            })  # fmt: skip
    return table(
        "field-profiles", "3", "Hits of experts pinned by profiles, in percent",
        (
            MODEL, axis("workload", "text"), _SHARE, axis("chance"), axis("own", "own texts"),
            axis("other", "other texts"), axis("lru", "LRU"),
        ),
        rows, note="recorded streams: second halves; totals: whole texts, own profile included",
    )  # fmt: skip


def _placement(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.PLACEMENT)
    rows = [
        {
            "share": share, "change": round(change, 2), "way": again,
            "of": f"prompt and {placement.TOKENS} tokens" if whole else "TPOT",
        }
        for again in placement.AGAIN
        for whole in (False, True)
        for share, change in placement.changes(runs, again, whole).items()
    ]  # fmt: skip
    return figure(
        "field-placement", "4", "Placing again for each prompt against placement by frequency",
        "lines", (_SHARE, axis("change", "change of time", "%")), rows, runs.badge, series="way",
        facet="of",
    )  # fmt: skip


def _evictions(evidence: Evidence) -> Exhibit:
    rows = [
        {"stream": one.stream, "share": one.share, "best": one.best}
        | {name: round(100 * rate, 1) for name, rate in one.hits.items()}
        for one in evictions.rates(evidence)
    ]
    names = [axis(name) for name in evictions.CAUSAL]
    return table(
        "field-evictions", "5", "Hits of causal evictions on recorded streams, in percent",
        (axis("stream"), _SHARE, axis("best"), *names), rows,
        note="a cache for each layer, empty at first",
    )  # fmt: skip


def _pages(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.PAGES)
    rows = [
        {"share": share, "way": way, "tpot_ms": round(times, 2)}
        for share, of in pages.by_share(runs).items()
        for way, times in of.items()
    ]
    return table(
        "field-pages", "6", "Three ways to use the same memory, OLMoE from a disk",
        (axis("share", "experts in memory"), axis("way"), axis("tpot_ms", "TPOT", "ms")), rows,
        badge=runs.badge,
    )  # fmt: skip


def _fronts(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.FRONT)
    rows = [
        {
            "kl": point.kl, "tpot": round(point.tpot, 3), "share": f"{share:.0%}",
            "rule": f"{'α' if route == fronts.ALPHA else 'λ'}",
        }
        for share, of in runs.by("cache_ratio").items()
        for route in (fronts.ALPHA, fronts.PRIOR)
        for point in fronts.points(of, route)
        if point.kl > fronts.LOSSLESS
    ]  # fmt: skip
    return figure(
        "field-fronts", "7", "TPOT by KL divergence from the model", "points",
        (axis("kl", "KL", "nats/token", log=True), axis("tpot", "TPOT", "ms")), rows, runs.badge,
        series="rule", facet="share",
    )  # fmt: skip


def _splits(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.SPLIT)
    rows = [
        {"ratio": ratio, "time": round(times, 4), "model": model}
        for model, of in runs.by("model").items()
        for ratio, times in splits.by_ratio(of).items()
    ]
    return figure(
        "field-splits", "8", "Hybrid over offload by the ratio of bandwidths", "lines",
        (axis("ratio", "host over link"), axis("time", "TPOT, hybrid over offload")), rows,
        runs.badge, series="model",
    )  # fmt: skip


EXHIBITS = (
    Show(_hits, (e.SPEED,)),
    Show(_prefetch, (e.PREFETCH,)),
    Show(_profiles),
    Show(_placement, (e.PLACEMENT,)),
    Show(_evictions),
    Show(_pages, (e.PAGES,)),
    Show(_fronts, (e.FRONT,)),
    Show(_splits, (e.SPLIT,)),
)
