"""Sources of each of the field's claims, and the figures that they report.

Rows are ids of ``results/measured/develop.csv``.  *colibri* is its evaluation of caches and
prefetch on OLMoE, of 29 September 2026.
"""

HITS = (
    "colibri: LFRU with direct reads, 64.9 % hits at 4.51 tokens/s; LRU, 68.4 % at 1.53",
    "rows h200-gnf4-e-s1-64 and h200-gnf4-g-b1-32, gpt-oss-120b on one H200: 90.8 % hits at 23.8 "
    "tokens/s launched by Python, 57.2 % at 34.9 from graphs",
    "most engines and papers report the hit rate as the figure of merit",
)

PREFETCH = (
    "colibri: prefetch, +3.3 points of hits and -4.1 % tokens/s at 8 slots a layer, where reads "
    "are limited by bandwidth; +12.5 % where a miss waits for a disk",
    "llama.cpp --moe-cache, kt-kernel and FreeToken's decode: no prefetch",
    "tinyserve (FATE), DALI (arXiv 2602.03495) and PreScope (2509.23638): prefetch gains; PreScope "
    "plans it by the link's load",
)

PROFILE = (
    "thecodacus' fork of llama.cpp: the top experts of a recorded trace are pinned, with gains",
    "llama.cpp PR 27861: a static top-32 of 512 covers 10 % of held-out traffic, LRU-64 67 %, "
    "LRU-128 81 %; row p27861-on",
    "exllamav3: a profile from one long text overfits, so that it is checked on a held-out split",
    "rows h200-gnf4-g-b1-8 to -64: a static hot set of 32 of 128 experts hits 57.2 %",
)

PLACEMENT = (
    "DAOP (arXiv 2501.10375, §IV-B): the prompt shows which experts decode needs, so experts are "
    "exchanged in prefill",
    "kt-kernel: --kt-expert-placement-strategy frequency fixes residents by a table of counts; "
    "dynamic-expert-update chooses them again at a long prefill",
    "exllamav3: residents are swapped by decayed counts, every 128 steps at most",
)

EVICTION = (
    "a count over recorded streams: LFRU has most hits of the causal rules in 12 of 13; the "
    "streams are not published",
    "tinyserve: of 7 policies LFRU wins in deep layers, at a comparable hit rate over all",
    "colibri: LFRU +5.0 points at 8 slots a layer, -3.2 to -4.1 from 16 slots on",
    "vLLM PR 37190: LFRU in each layer",
)

LEAST_STALE = (
    "SpecMD (arXiv 2602.03921, abstract): 85 times fewer collisions than LRU, 88 % hits with 5 % "
    "of OLMoE's experts",
    "tinyserve and others implement three different rules under this name",
)

PAGE_CACHE = (
    "FlashMoE: learned eviction decodes 22 % faster than LRU on OLMoE",
    "flash-moe, ds4 and colibri: the page cache of the operating system is trusted; what is "
    "learned must beat it",
    "a study of caches of experts (arXiv 2510.03851 and others): a trained predictor of the next "
    "use makes eviction worse",
)

ROUTING = (
    "cache-prior (arXiv 2412.00099, abstract): half the misses for 0.1 to 3 % more perplexity",
    "SMoE: low-score experts within a band α are replaced, up to 0.35 without a loss",
)

SPLIT = (
    "FreeToken (arXiv 2608.16157; code of August 2026): hybrid where the host reads more than 2.0 "
    "times as fast as the link copies, else offload",
    "FreeToken 0.2.1 (October 2026): auto never chooses hybrid",
    "users: a microbenchmark makes auto choose the much slower mode",
)
