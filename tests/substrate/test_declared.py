"""Fields of documents (profiles, parts, shapes, traces, workloads) with defaults and limits.

Each is written down a second time here: a limit that moves accepts what no later code expects, and
a default that moves changes what a file means that leaves the field out.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import moebench

#: Of each class: its own fields that have a default or limits.  Required fields have ``-``.
FIELDS = """
substrate.analysis.components.Operation:
  lane = None
  rows = (1,)
  context = 0
  network = ()
substrate.analysis.components.Component:
  what = - length>=1
  source = - length>=1
  published = - items<=2 items>=1
  software = 'lean'
  precision = 'bf16'
  measure = 'lanes'
  ops = - items>=1
  over = ()
  why = None
substrate.analysis.targets.Evidence:
  ranges = - items<=2 items>=2
substrate.machines.measured_times.Point:
  rows = - >0
  pairs = 0 >=0
  ns = - >=0
  spread = 0.0 >=0
substrate.machines.measured_times.Measured:
  host = made
  operation_ns = - >=0
  load_ns = - >=0
  load_after_ns = - >=0
  read_alone_ns = 0.0 >=0
  return_ns = 0.0 >=0
  submit_ns = - >=0
  gap_ns = - >=0
  decision_ns = - >=0
  wake_ns = - >=0
  beside_copies = 1.0 >=1
substrate.machines.parts.Part:
  key = - length>=1
  name = - length>=1
  source = - length>=1
  estimated = ()
  aliases = ()
  note = None
substrate.machines.parts.Lanes:
  generation = - <=6 >=1 strict
substrate.machines.parts.MeasuredDevice:
  copy_gbs = None <=100000.0 >0
  tflops = None <=100000.0 >0
  source = - length>=1
substrate.machines.parts.MeasuredReads:
  gbs = - <=100000.0 <=100000.0 >0 >0 items<=2 items>=2
  what = - length>=1
  source = - length>=1
  nominal_gbs = None <=100000.0 >0
substrate.machines.parts.Gpu:
  memory_gib = - <=100000.0 >0
  bandwidth_gbs = - <=100000.0 >0
  fp16_tflops = - <=100000.0 >0
  fp16_acc16_tflops = - <=100000.0 >0
  fp8_tflops = None <=100000.0 >0
  fp4_tflops = None <=100000.0 >0
  power_w = - <=100000.0 >0
  measured = None
substrate.machines.parts.Cores:
  performance_cores = - <=1024 >=1 strict
  efficiency_cores = 0 <=1024 >=0 strict
  efficiency_flops = None
  extensions = ()
  base_ghz = - <=8 >=0.5
  boost_ghz = - <=8 >=0.5
substrate.machines.parts.Processor:
  sockets = - <=1024 >=1 strict
  channels = - <=16 >=1 strict
  l3_mb = None <=100000.0 >0
  hbm_gib = None <=100000.0 >0
  hbm_gbs = None <=100000.0 >0
  measured = ()
substrate.machines.parts.Pool:
  memory_gib = - <=100000.0 <=100000.0 >0 >0 items<=2 items>=2
  bandwidth_gbs = - <=100000.0 >0
  fp16_tflops = - <=100000.0 <=100000.0 >0 >0 items<=2 items>=2
  host_gbs = None <=100000.0 >0
  host_source = None
  power_w = None <=100000.0 <=100000.0 >0 >0 items<=2 items>=2
  measured = None
substrate.machines.parts.Link:
  nominal_gbs = - <=100000.0 >0
  h2d_gbs = - <=100000.0 >0
  h2d_range = None <=100000.0 <=100000.0 >0 >0 items<=2 items>=2
  d2h_gbs = - <=100000.0 >0
  d2h_range = None <=100000.0 <=100000.0 >0 >0 items<=2 items>=2
substrate.machines.parts.Disk:
  queue1_gbs = - <=100000.0 >0
  queue1_range = None <=100000.0 <=100000.0 >0 >0 items<=2 items>=2
  max_gbs = - <=100000.0 >0
  max_range = None <=100000.0 <=100000.0 >0 >0 items<=2 items>=2
substrate.machines.profile.Gpu:
  name = - length>=1
  idle_power = None
  full_power = None
substrate.machines.profile.Link:
  name = - length>=1
  pinned = True strict
substrate.machines.profile.Host:
  name = - length>=1
  core_rate = None
  shared_bandwidth = None
  gemv_holds_dispatch = False strict
  idle_power = None
  full_power = None
substrate.machines.profile.Disk:
  name = - length>=1
substrate.machines.profile.Software:
  name = - length>=1
  description = - length>=1
  attention_reads = None
  latent_reads = None
  host_attention = None
  unpacking_rows = None
  host_kernel_gain = None
  host_rows_gain = None
substrate.machines.profile.Calibration:
  machine = - length>=1
substrate.machines.profile.HardwareProfile:
  name = - length>=1
  description = - length>=1
  calibration = None
  measured = None
  pool = False strict
substrate.machines.quantity.Quantity:
  range = None items<=2 items>=2
  source = - length>=1
substrate.models.bits._Mix:
  routed = - <=64 >0
  others = - <=64 >0
substrate.models.catalogue.PublishedModel:
  names = ()
  misfits = {}
  note = ''
  shape = None
substrate.models.imported.Manifest:
  content = - pattern ^[0-9a-f]{16}$
  files = - pattern ^[0-9a-f]{64}$
  records = - pattern ^[0-9a-f]{64}$
  checksums = [] pattern ^[0-9a-f]{16}$
substrate.models.mixers.LinearAttention:
  params = - <=10000000000000 >0
  state_values = - <=10000000000000 >=0
  conv_values = 0 <=10000000000000 >=0
substrate.models.mixers.OtherHeads:
  num_heads = - <=1000000000 >0
  num_kv_heads = - <=1000000000 >0
  head_dim = - <=1000000000 >0
  one_projection = False
substrate.models.mixers.Indexer:
  heads = - <=1000000000 >0
  head_dim = - <=1000000000 >0
  top_k = - <=1000000000 >0
  layers = None
  pool = 1 <=1000000000 >0
substrate.models.mixers.CompressedCache:
  ratio = - <=1000000000 >1
  index_values = 0 <=1000000000 >=0
  top_k = None <=1000000000 >0
substrate.models.shape.LatentAttention:
  kv_lora_rank = - >0
  qk_rope_head_dim = - >=0
  qk_nope_head_dim = - >0
  v_head_dim = - >0
  q_lora_rank = None >0
substrate.models.shape.RopeScaling:
  factor = - >0
  original_max_positions = - >0
  attention_factor = 1.0 >0
  long_attention_factor = 1.0 >0
  mscale_all_dim = 0.0
  beta_fast = 32.0 >0
  beta_slow = 1.0 >0
  truncate = True
  low_freq_factor = 1.0 >0
  high_freq_factor = 4.0 >0
  short_factor = ()
  long_factor = ()
substrate.models.shape.AttentionWindow:
  size = - >0
substrate.models.shape.Temperature:
  floor = - >0
substrate.models.shape.ModelShape:
  qkv_bias = False
  output_bias = False
  attention_sinks = False
  qk_norm = 'none'
  latent = None
  clip_qkv = None
  rope_theta = 10000.0 >0
  rope_type = 'default'
  rope_scaling = None
  rotary_dim = None
  rope_interleaved = False
  nope_layers = ()
  nope_temperature = None
  window = None
  max_positions = 4096 <=1000000000 >0
  norm = 'rms'
  norm_eps = 1e-06 >0
  tied_head = False
  head_bias = False
  expert_bias = False
  swiglu_limit = None
  swiglu_alpha = 1.0
  dense_layers = ()
  dense_width = 0 <=1000000000 >=0
  shared_width = 0 <=1000000000 >=0
  shared_gated = False
  gate_bias = False
  gate_jitter = 0.01
  gate_groups = None items<=2 items>=2
  routed_scaling_factor = 1.0
  linear = None
  other_heads = None
  indexer = None
  compressed = ()
  output_gate = 'none'
  shared_kv = False
  attention_counts = ()
  ffn_matrices = 3
  without_attention = ()
  without_ffn = ()
  lookup_params = 0 <=10000000000000 >=0
substrate.traces.file.Prediction:
  further = ()
substrate.traces.file.Header:
  format = 'moebench-trace'
  version = 2
  num_moe_layers = - <=10000 >0 strict
  num_experts = - <=65536 >0 strict
  top_k = - <=65536 >0 strict
  ids_order = 'score'
  scores = None
  predictions = {}
  lossless = True
  source = {}
  notes = []
  arrays = {}
workloads.workload.Workload:
  template = 'Question: {prompt}\\nAnswer:'
  few_shot = 0 >=0
  few_shot_in = {} >=0
  likelihood = None
  per_byte = False
  chance = None
  max_new_tokens = - >=1
  stop = ('\\nQuestion:',)
  train_split_available = True
"""

#: What all documents do: they never change, and have no unknown keys.
CLOSED = {"frozen": True, "extra": "forbid"}

#: What machine descriptions do besides: numbers are finite, and texts have no outer spaces.
INERT = {"allow_inf_nan": False, "str_strip_whitespace": True}

#: JSON Schema's words for limits, as `FIELDS` has them.
LIMITS = {
    "exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<=",
    "minLength": "length>=", "minItems": "items>=", "maxItems": "items<=", "pattern": "pattern ",
}  # fmt: skip


def documents() -> Iterator[type[BaseModel]]:
    """Yield the classes of documents in the order of their modules."""
    root = Path(moebench.__file__).parent
    for top in ("substrate", "workloads"):
        for file in sorted((root / top).rglob("*.py")):
            if "pydantic" in file.read_text(encoding="utf-8"):
                path = file.relative_to(root).with_suffix("")
                module = import_module(".".join(("moebench", *path.parts)))
                for one in vars(module).values():
                    own = getattr(one, "__module__", None) == module.__name__
                    if own and isinstance(one, type) and issubclass(one, BaseModel):
                        yield one


def limits(schema: Any) -> Iterator[str]:
    """Yield all limits in a field's schema, except those of the classes it refers to."""
    if isinstance(schema, dict):
        for word, value in schema.items():
            if word in LIMITS and not isinstance(value, dict):
                yield f"{LIMITS[word]}{value}"
            elif word not in ("$defs", "properties"):
                yield from limits(value)
    elif isinstance(schema, list):
        for one in schema:
            yield from limits(one)


def shown(document: type[BaseModel]) -> Iterator[str]:
    """Yield the lines of `FIELDS` of a class."""
    yield document.__module__.removeprefix("moebench.") + "." + document.__name__ + ":"
    properties = document.model_json_schema().get("properties", {})
    for name in document.__annotations__:
        info = document.model_fields.get(name)
        found = sorted(limits(properties.get(name)))
        if info is not None and (found or not info.is_required()):
            made = info.default_factory is not None
            default = "-" if info.is_required() else "made" if made else repr(info.default)
            strict = any(getattr(one, "strict", False) for one in info.metadata)
            yield f"  {name} = {' '.join([default, *found, *['strict'] * strict])}"


def test_fields_have_their_defaults_and_limits() -> None:
    of_each = [[*shown(document)] for document in documents()]
    found = [line for lines in of_each if len(lines) > 1 for line in lines]
    assert found == FIELDS.strip().split("\n")


def test_documents_are_closed_and_those_of_machines_inert() -> None:
    for document in documents():
        if document.model_fields and document.__name__ != "Manifest":
            wanted = dict(CLOSED)
            if ".machines." in document.__module__ or document.__module__.endswith("components"):
                wanted |= INERT
            wanted |= {"allow_inf_nan": False} if document.__name__ == "ModelShape" else {}
            found = document.model_config
            assert {key: found.get(key) for key in {*CLOSED, *INERT}} == {
                **dict.fromkeys(INERT), **wanted
            }, document  # fmt: skip


#: Numbers of papers, makers, file formats and measurements, by module.
CONSTANTS: dict[str, dict[str, object]] = {
    "analysis.clairvoyant": {"WINDOW_USES": 12_000},
    "analysis.components": {"TOLERANCE": 0.15},
    "analysis.roofline": {"BYTES": 2, "USABLE_DEVICE": 0.86, "USABLE_HOST": 0.8, "FUSED": 1.2},
    "analysis.roofline_search": {"TIED": 1e-9, "SMALL": 4, "STEP": 32},
    "analysis.statistics": {
        "WINDOW": 15, "LOW_SCORE_ALPHAS": (0.1, 0.35, 0.6), "USED_AFTER": (32, 64, 128, 256),
        "LAGS": (1, 2, 4, 8, 16, 32),
        "CACHE_SIZES": {"eighth": 1, "quarter": 2, "half": 4, "three_quarters": 6},
    },
    "analysis.targets": {"NEAR": 0.15},
    "engine.decisions": {"NO_EXPERT": -1},
    "engine.in_flight": {"HISTORY": 10},
    "engine.micro_batches": {"AHEAD": 2},
    "machines.accelerator": {"WORKSPACE_BYTES": 1_000_000_000},
    "machines.compose": {
        "MOST_CARDS": 16, "MODULES_A_CHANNEL": 2, "LEAST_RAM": 1, "MOST_RAM": 32_768,
        "DESKTOP_RAM_A_CHANNEL": 32, "SERVER_RAM_A_CHANNEL": 64,
        "DESKTOP_SHARE": (0.80, 0.63, 0.88), "SERVER_SHARE": (0.62, 0.40, 0.85),
        "TWO_SOCKETS": 1.5, "SOCKETS_LOWEST": 0.65, "AVX2_WEIGHTS": (2.9, 1.8, 4.0),
        "AVX512_WEIGHTS": (6.0, 3.0, 9.0),
    },
    "machines.costs": {
        "LARGE_READ_BYTES": 20_000_000, "ACTIVATION_BYTES": 2, "LATENT_READS": 0.09,
        "NETWORK_VALUE_BYTES": 4, "NETWORK_LAUNCHES": 3, "EXPERT_TENSORS": 3, "FUSED_TENSORS": 2,
    },
    "machines.local": {"SWITCH_S": 0.0001, "TRIALS": 5},
    "machines.parts": {
        "RATES": {
            "DDR3": (800, 2666), "DDR4": (1333, 5333), "DDR5": (2000, 10_000),
            "LPDDR5X": (4800, 10_700), "MRDIMM": (6400, 12_800),
        },
        "FLOPS_PER_CYCLE": {
            "NEON": 32, "AVX2": 32, "AVX-512 256-bit": 32, "AVX-512 512-bit": 64,
        },
        "DESKTOP_CHANNELS": 4,
    },
    "machines.profile_ranges": {"ASSUMED": 0.2},
    "machines.records": {
        "READS_IN_FLIGHT": 4, "LEAST_READ_BYTES": 262_144, "LEAST_SLEEP_S": 5e-5,
    },
    "machines.timeline": {"COSTS_KEPT": 64},
    "memory.capacity": {"STREAM_BUFFERS": 2},
    "memory.host": {"READ_BUFFERS": 2},
    "models.bits": {
        "HOST_RATES": {"iq1": 0.5, "iq2": 0.5, "iq3": 0.5, "mxfp4": 0.65, "nvfp4": 0.65},
    },
    "models.catalogue": {"SIZE_DIFFERENCE": 0.1},
    "models.dummy": {"MOST_VALUES": 2**30},
    "models.expert_store": {"ALIGNMENT": 4096, "CHECKSUM_DIGITS": 16},
    "models.gguf_header": {
        "MOST_VALUES": 10_000, "MOST_PARTS": 10_000, "MOST_TENSORS": 200_000,
        "MOST_STRINGS": 4_000_000, "MOST_DIMS": 4, "LONGEST_DIM": 2**40, "MOST_WEIGHTS": 2**50,
        "KEPT_ARRAY": 10_000, "KEPT_TEXT": 65_535,
    },
    "models.gguf_shape": {
        "_SOFTMAX": 1, "_SIGMOID": 2, "_CHOSEN_SOFTMAX": 3, "_CHUNK": 8192,
        "_PATTERNS": {"gpt-oss": 2, "llama4": 4, "gemma4": 6},
    },
    "models.mixers": {"MOST_WIDTH": 10**9, "MOST_PARAMS": 10**13},
    "models.names": {"_UNIT": {"b": 1.0, "t": 1000.0}},
    "models.packed": {
        "_VALUES": (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), "SCALE_BIAS": 127,
    },
    "models.quantised": {
        "ROWS": 16, "INPUTS": 32, "LEAST_SCALE": 1e-30, "LEAST_FP16": 2**-24,
        "LEAST_SHARE": 1 / 120,
    },
    "models.shape": {
        "BITS_PER_WEIGHT": {
            "fp32": 32, "bf16": 16, "fp16": 16, "4bit": 4 + 20 / 128, "2bit": 3 + 32 / 2048,
            "4bit-g64": 4 + 32 / 64,
        },
        "GROUPS": (128, 64, 32), "ROW_BITS": {"int8": 8, "row-int4": 4, "row-int2": 2},
        "SCALE_BYTES": 2, "LINEAR_TENSORS": 8, "INDEXER_TENSORS": 5, "MOST": 10**9,
        "MOST_LAYERS": 10_000, "LATENT_KERNELS": 28 / 18, "LINEAR_KERNELS": 40 / 18,
    },
    "traces.checks": {
        "MOST": 2**31 - 1,
        "_RANGES": {
            "sequence": (0, 2**31 - 1), "position": (0, 2**31 - 1), "phase": (0, 1),
            "chosen": (-1, 2**31 - 1),
        },
    },
    "traces.file": {"VERSION": 2, "MOST_EXPERTS": 65_536, "MOST_LAYERS": 10_000},
    "traces.fit": {
        "TEXTS": 16, "EXPERTS": 256, "CACHED": 4, "CACHES": 3, "STEPS": 120, "CENTRE": 0.01,
        "START": (0.3, 0.3, 0.6, 0.4, 0.9),
    },
    "traces.law": {
        "FADING": 0.4, "COMMON": 0.3, "PREFILL": 0.88, "SPREAD": 1.1, "LAW": (0.385, 0.527),
        "ENDS": ((0.109, 0.275), (0.497, 0.683)),
    },
    "traces.published": {"MISSING": 255},
    "traces.recipes": {"RECALL": 0.84},
    "traces.record": {"AHEAD": {"gate": 3, "normed": 1, "layer": 1}},
    "traces.recordings": {"PROMPT_TOKENS": 64},
    "traces.scores": {
        "SPREADS": {"mixtral": 1.6, "deepseek": 1.25, "gpt-oss": 0.8, "qwen3": 1.0, "gemma": 1.15},
        "DEFAULT_SPREAD": 1.1, "BUCKETS": (2, 4, 8, 16),
    },
    "traces.synthesis": {"PROMPT": 128, "NEW_TOKENS": 129},
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTANTS)
def test_numbers_of_papers_makers_and_formats(name: str) -> None:
    module = import_module(f"moebench.substrate.{name}")
    assert {key: getattr(module, key) for key in CONSTANTS[name]} == CONSTANTS[name]
