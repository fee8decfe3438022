"""What users get unless they ask for something else, written down a second time.

Numbers are those of papers and engines (docs/systems.md, docs/engines): a slip in a declaration
changes what a system does, and often no other test.
"""

import dataclasses
from importlib import import_module

import pytest

from moebench.substrate.engine.options import Allowed, allowed_values
from moebench.substrate.engine.policies import (
    Admission,
    Assignment,
    Eviction,
    Placement,
    Policy,
    Predictor,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.machines.protocol import Lane
from moebench.substrate.terms import Lookahead
from moebench.systems.options import build, describe
from moebench.systems.registry import DECISIONS, POLICIES, VARIANTS, policy_class, system_class
from moebench.systems.space import Dimension, policies
from tests.systems.kinds import KINDS

#: Options of each policy: the default; limits of a number, of which `<` excludes one, or the
#: choices; and what a search varies.
OPTIONS = """
place random
  seed = 42; integer, 0..
place popular
  equal_layers = False; False | True, searched
place last-ids
  equal_layers = False; False | True, searched
place split
  misses = measured; measured | uniform, searched
place kt-uniform
  ratio = None; number, 0..1, None, searched 0..1
  per_layer = None; integer, 0.., None
place kt-frequency
  ratio = None; number, 0..1, None, searched 0..1
  per_layer = None; integer, 0.., None
place kt-front-loading
  ratio = None; number, 0..1, None, searched 0..1
  per_layer = None; integer, 0.., None
place kt-random
  ratio = None; number, 0..1, None, searched 0..1
  per_layer = None; integer, 0.., None
  seed = 42; integer, 0..4294967295
place tail-on-host
  n = None; integer, 0.., None, searched 1..128, log
place cold-on-host
  n = None; integer, 0.., None, searched 1..128, log
  profiles = False; False | True, searched
place n-cpu-moe
  n = None; integer, 0.., None, searched 0..64
place ngl
  n = None; integer, 0.., None, searched 0..64
place fit
  margin = 1024; integer, 0.., searched 128..8192, log
  context = run; run | unset
place moe-cache
  reserve = 3072; integer, 0.., searched 256..8192, log
  budget = None; integer, 1.., None
place layer-slots
  n = None; integer, 0.., None, searched 1..128, log
place percent
  gpu = None; number, 0..100, None, searched 0..100
  cpu = None; number, 0..100, None
  disk = None; number, 0..100, None, needs disk
place flexgen-lp
  prompt = 512; integer, 1..
  new_tokens = 32; integer, 2..
  micro = 1; integer, 1.., searched 1..64, log
  batches = 1; integer, 1.., searched 1..64, log
place share-of-each-layer
  resident = None; number, 0..1, None, searched 0..1
  micro = None; integer, 1.., None, searched 1..64, log
place slot-pools
  pools = unified; unified | equal | profile, searched, needs texts
place pinned-profile
  slots_each = None; integer, 1.., None, searched 1..128, log
place threshold-ilp
  threshold = None; integer, 1.., None, searched 1..64, log
place virtual-experts
  divide = planned; planned | equal, searched
  limit = None; integer, 1.., None
  content = important; important | largest, searched
  population = 64; integer, 2..
  generations = 200; integer, 0..
  seed = 0; integer, 0..
place one-width
  equal_layers = False; False | True, searched
  tolerance = 2.0; number, 0..100, searched 0.1..10, log
  width = search; search | int8 | int4 | int2, searched
  tokens = 1024; integer, 1..
  measured = 0; integer, 0..
route random
  share = 1.0; number, 0..1
  prefill = False; False | True
  seed = 0; integer, 0..
route expert-cache
  pick = best; best | id, searched
  weight = own; own | replaced
  refine = False; False | True, searched
route predicted
  first = 5; integer, 1.., searched 1..16, log
  most_host = None; integer, 0.., None, searched 0..8
route adaptive
  threshold = 0.005; number, 0.., searched 0.0005..0.05, log
route skip-missing
  t2 = 0.9; number, 0..1, searched 0..1
route cache-prior
  keep = 2; integer, 0.., searched 0..8
  emptied = True; False | True, searched
route hash-function
  weights = predicted; predicted | code
  width = 256; integer, 1..65536
  epochs = 40; integer, 1..100000
  seed = 0; integer, 0..
assign host-or-copy
  min_batch = 32; integer, 1.., searched 1..512, log
  micro_batch = 512; integer, 1.., searched 64..4096, log
assign beside-host
  min_batch = 32; integer, 1.., searched 1..512, log
  micro_batch = 512; integer, 1.., searched 64..4096, log
  max_batch = 8; integer, 1.., searched 1..64, log
  host_rows = None; integer, 0.., None, searched 0..8
assign published-copies
  min_batch = 32; integer, 1.., searched 1..512, log
  micro_batch = 512; integer, 1.., searched 64..4096, log
  max_batch = 4; integer, 1.., searched 1..64, log
assign one-use
  experts = family; family | all | active, searched
assign balanced
  history = 10; integer, 1..64, searched 1..64, log
  link = backlog; printed | backlog
  prefill = balanced; balanced | load, searched
  by = score; score | batch, searched
  tie = load; load | host, searched
assign optimal
  history = 10; integer, 1..64, searched 1..64, log
  link = backlog; printed | backlog
  prefill = balanced; balanced | load, searched
assign hybrid
  defer = 0; integer, 0.., searched 0..8
  threshold = 1024; integer, 0.., searched 64..8192, log
  update = False; False | True, searched
assign hybrid-chunked
  defer = 0; integer, 0.., searched 0..8
  threshold = 0; integer, 0.., searched 256..8192, log
  update = False; False | True, searched
  chunk = 16384; integer, 1.., searched 256..16384, log
assign split-by-residence
  law = root; root | linear
  bandwidth = None; number, 0<.., None
  min_rows = 32; integer, 1.., searched 1..512, log
  chunk = 2048; integer, 1.., searched 256..8192, log
  ring = 2; integer, 0.., searched 0..8
  buffer_mib = 32; integer, 0.., searched 8..512, log
assign by-sequence
  threshold = 1.05; number, 1.., searched 1..4
assign by-sequence-shipped
  threshold = 1.05; number, 1.., searched 1..4
  listed = 8; integer, 1.., searched 1..32, log
  host_cost = 3.5; number, 0<..
  load_cost = 30.0; number, 0<..
assign makespan
  history = 10; integer, 1..64, searched 1..64, log
  fill = False; False | True, searched
assign two-ended
  token_cost = 1.0; number, 0..
  first_cost = 0.79; number, 0..
  gpu_cost = 0.5; number, 0..
  move_cost = 0.4179; number, 0..
assign greedy
  history = 10; integer, 1..64, searched 1..64, log
assign by-precision
  t1 = 0.6; number, 0..1, searched 0..1
assign load-or-compute
  minimise = max; max | sum, searched
  history = 10; integer, 1..64, searched 1..64, log
assign load-or-compute-shipped
  minimise = sum; max | sum, searched
  token_cost = 7.0; number, 0<..
  load_cost = 70.0; number, 0<..
assign bandwidth-split
  mode = auto; auto | offload | hybrid | cpu, searched, needs host
  max_fetch = -1; integer, -1.., searched 0..16
  phi = None; number, 0..1, None, searched 0..1
  history = 10; integer, 1..64, searched 1..64, log
  rounding = min-wait; min-wait | stochastic | prefer-fetch, searched
assign bandwidth-split-earlier
  mode = auto; auto | offload | hybrid | cpu, searched, needs host
  max_fetch = -1; integer, -1.., searched 0..16
  phi = None; number, 0..1, None, searched 0..1
  history = 10; integer, 1..64, searched 1..64, log
assign cache-or-bypass
  gate = 1; integer, 1.., searched 1..16, log
assign micro-batches
  experts = all; family | all | active, searched
  cache_tokens = None; integer, 1.., None
prefetch next-gate
  experts = 0; integer, 0.., searched 1..16, log
prefetch whole-layer
  buffers = 2; integer, 1.., searched 1..8
prefetch block-schedule
  buffers = 2; integer, 1.., searched 1..8
prefetch paged-layers
  buffers = 2; integer, 1.., searched 1..8
  paged = True; False | True, searched
  staged = True; False | True, searched
prefetch recorded
  bucket = 50000000; integer, 0.., searched 1000000..1000000000, log
  max_live = 1000000000; integer, 0.., searched 100000000..10000000000, log
prefetch top-score
  alpha = None; number, 0..1, None, searched 0..1
  predict = layer; layer | gate, searched
  prefill = True; False | True, searched
  chunks = 1; integer, 1..64, searched 1..16, log
prefetch first-missing
  layers = 1; integer, 1.., searched 1..8
prefetch expert-mlp
  width = 2048; integer, 64..65536
  trained_width = 256; integer, 64..8192
  tokens = 4096; integer, 4..
  epochs = 20; integer, 1..100000
  dropout = 0.1; number, 0..<1
  seed = 0; integer, 0..
  memory_mb = 300; integer, 0..
prefetch activation-match
  match = iteration; iteration | request, searched
  entries = 1; integer, 1.., searched 1..16, log
  capacity = 120; integer, 1..10000, searched 16..2048, log
  decay = L; L | L+1
  budget = 8; integer, 0.., searched 1..64, log
prefetch impact
  layers = 3; integer, 1.., searched 1..8
  experts = 0; integer, 0.., searched 1..16, log
  history = 10; integer, 1..64, searched 1..64, log
  prefill = False; False | True, searched
prefetch after-next
  size = 0; integer, 0.., searched 0..8
  as_coded = True; False | True
prefetch stride
  stride = 2; integer, 1.., searched 1..8
  experts = 0; integer, 0.., searched 1..16, log
  chunks = 3; integer, 1..64, searched 1..16, log
  width = 1024; integer, 1..65536
  trained_width = 128; integer, 1..8192
  tokens = 4096; integer, 4..
  epochs = 30; integer, 1..100000
  seed = 0; integer, 0..
prefetch expert-map
  distance = 3; integer, 1.., searched 1..8
  capacity = 1000; integer, 1..10000, searched 100..10000, log
prefetch residual
  experts = 1; integer, 1.., searched 1..8
  residual = True; False | True, searched
  prefill = False; False | True, searched
prefetch stacked-gates
  layers = 2; integer, 1.., searched 1..8
  prefill = True; False | True, searched
prefetch fate
  experts = 0; integer, 0.., searched 1..16, log
  adaptive = True; False | True, searched
  ahead = 3; integer, 1.., searched 1..8
prefetch activation-paths
  before = 2; integer, 1.., searched 1..4
  experts = 0; integer, 0.., searched 1..16, log
prefetch two-buffers
  overlap = True; False | True, searched
prefetch predicted-union
  send_back = False; False | True
admit after-misses
  misses = 2; integer, 1.., searched 1..16, log
  full = None; integer, 1.., None, searched 1..16, log
  a_layer = None; integer, 1.., None, searched 1..8, log
  queue = None; integer, 1.., None, searched 1..64, log
admit hit-sweep
  interval = 128; integer, 1.., searched 16..1024, log
  most = 64; integer, 0.., searched 1..512, log
  ratio = 2.0; number, 0.., searched 1..8
  floor = 8.0; number, 0.., searched 1..64, log
  chunk = 2048; integer, 1..
admit promote-on-miss
  spares = 4; integer, 1.., searched 1..16, log
  most = 6; integer, 0.., searched 1..64, log
  ratio = 1.5; number, 0.., searched 1..8
  decay = 0.98; number, 0<..1, searched 0.8..1.0
  min_rows = 32; integer, 1.., searched 1..512, log
  chunk = 2048; integer, 1..
admit moe-cache
  inserts = 8; integer, 1.., searched 1..64, log
  jobs = 128; integer, 1.., searched 16..1024, log
  queue_mib = 512; integer, 1.., None, searched 64..4096, log
  min_kib = None; integer, 0.., None
  least_slots = 64; integer, 1..
  max_batch = 8; integer, 1.., searched 1..64, log
  mode = on; on | auto
  admit_after = None; integer, 1.., None, searched 1..16, log
  readmit_after = 8; integer, 1.., searched 1..64, log
admit every-nth
  inserts = 8; integer, 1.., searched 1..64, log
  jobs = 512; integer, 1.., searched 16..1024, log
  queue_mib = None; integer, 1.., None, searched 64..4096, log
  min_kib = None; integer, 0.., None
  least_slots = 64; integer, 1..
  max_batch = 1; integer, 1.., searched 1..64, log
  every = 8; integer, 1.., searched 1..64, log
admit capped
  uploads_per_layer = 2; integer, 0.., searched 1..16, log
  max_batch = 4; integer, 1.., searched 1..64, log
admit important-swaps
  importance = norms; norms | gates | tokens, searched
  frequency = 1; integer, 1.., searched 1..64, log
  inputs = texts; texts | passes, searched
evict static
  staging = 2; integer, 1.., searched 1..16, log
evict heat
  hot = 4; integer, 0.., searched 0..16
evict layer-lru
  n = None; integer, 0.., None
evict lfu
  survive = False; False | True, searched
  tie = lru; id | lru, searched
evict staged-lru
  staging = 4; integer, 1.., searched 1..16, log
  write_back = False; False | True
evict lecar
  variant = original; original | libcachesim
  lr = 0.45; number, 0.., searched 0.01..1.0, log
  seed = 123; integer, 0..4294967295
evict belady
  bypass = False; False | True
evict flashmoe
  tokens = 65536; integer, 1..
  hidden = 128; integer, 2..8192
  epochs = 200; integer, 1..100000
  cached = 0; integer, 0..
  seed = 0; integer, 0..
evict score
  window = 8; integer, 0..4096, searched 2..64, log
evict mrs
  smoothing = 0.5; number, 0<..1, searched 0.05..1.0
  top = 0; integer, 0.., searched 1..64, log
evict mrs-shipped
  as_coded = True; False | True
evict load-order
  window = None; integer, 0..4096, None, searched 2..64, log
evict activation-aware
  epsilon = 1e-08; number, 0..
evict fewest-visits
  charges_hits = True; False | True
evict dali-swap
  window = 4; integer, 1..4096, searched 1..256, log
  swaps = 1; integer, 1.., searched 1..16, log
  staging = 2; integer, 1.., searched 1..16, log
evict multidimensional
  lru = 1.0; number, 0.., searched 0..4
  lfu = 1.0; number, 0.., searched 0..4
  lhu = 1.0; number, 0.., searched 0..4
  fld = 1.0; number, 0.., searched 0..4
  mask = True; False | True, searched
evict lfru
  reading = vllm; vllm | tinyserve
evict least-stale
  reading = tinyserve; tinyserve | layer | interval
evict dali-window
  window = 256; integer, 1..4096, searched 16..4096, log
  share = 0.1; number, 0..1, searched 0.01..0.5
evict oldest-call
  buffers = 2; integer, 1.., searched 1..4
evict frequency-distance
  distance = text; text | printed
evict first-not-predicted
  write_back = False; False | True
"""

#: Attributes of policies that differ from those of any policy of their decision.
ATTRIBUTES = """
place popular: calibrates
place activation: calibrates
place split: calibrates, learns_from predictions scores
place device-map: shares_slots, leaves_slots
place kt-uniform: shares_slots
place kt-frequency: calibrates, shares_slots
place kt-front-loading: shares_slots
place kt-random: shares_slots
place tail-on-host: shares_slots, leaves_slots
place cold-on-host: calibrates, shares_slots, leaves_slots
place n-cpu-moe: shares_slots, leaves_slots
place ngl: shares_slots, leaves_slots
place fit: shares_slots, leaves_slots
place override: shares_slots, leaves_slots
place moe-cache: reserve 3072, leaves_slots
place layer-slots: leaves_slots
place streamed: leaves_slots
place resident-or-streamed: leaves_slots
place percent: leaves_slots
place flexgen-lp: leaves_slots
place share-of-each-layer: leaves_slots
place none: leaves_slots
place slot-pools: leaves_slots
place pinned-profile: calibrates, shares_slots, leaves_slots
place threshold-ilp: calibrates, needs_host
place virtual-experts: reads_weight_norms, calibrates, learns_from scores
place one-width: calibrates, learns_from loss
route expert-cache: has_alpha, reads_scores
route set-order: has_alpha, reads_scores
route predicted: reads_scores, predicts normed on device, 1 ahead
route adaptive: calibrates, learns_from scores sensitivity, reads_scores
route skip-missing: reads_scores
route cache-prior: has_alpha, reads_scores
route masked: resident_only, reads_scores
route hash-function: reads_token_embeddings, calibrates, learns_from scores token_embeddings,
  calibration_texts 64
assign host-or-copy: uses_host, loads passing
assign beside-host: uses_host, loads passing
assign published-copies: uses_host, loads passing
assign one-use: loads passing
assign host: uses_host
assign balanced: uses_host, reads_scores
assign optimal: uses_host, reads_scores
assign one-ended: uses_host
assign hybrid: uses_host, loads none
assign hybrid-chunked: uses_host, loads none
assign split-by-residence: uses_host, loads none
assign by-sequence: uses_host, loads none
assign by-sequence-shipped: uses_host, loads passing
assign makespan: uses_host, reads_scores
assign two-ended: uses_host
assign greedy: uses_host
assign by-precision: reads_scores
assign load-or-compute: uses_host, loads passing
assign load-or-compute-shipped: uses_host, loads passing
assign bandwidth-split-earlier: uses_host
assign micro-batches: loads passing, divides
prefetch next-gate: predicts gate on device, 1 ahead
prefetch next-exact: predicts exact on device, 1 ahead in prefill
prefetch pre-gate: discipline committed, predicts exact on device, 1 ahead in prefill
prefetch whole-layer: shares_slots, discipline committed
prefetch block-schedule: shares_slots, discipline committed
prefetch paged-layers: shares_slots, discipline committed
prefetch recorded: discipline committed
prefetch top-score: predicts layer on device, 1 ahead
prefetch first-predicted: discipline committed, predicts shared on device, 1 ahead
prefetch first-missing: predicts normed on device, 1 ahead
prefetch expert-mlp: calibrates, calibration_texts 64, discipline committed
prefetch activation-match: calibrates, calibration_texts 120
prefetch impact: needs_host, predicts gate on device, 3 ahead
prefetch after-next: discipline committed
prefetch stride: reads_hidden, calibrates, learns_from hidden, calibration_texts 64, chunks 3
prefetch expert-map: reads_embedding, calibrates, learns_from embedding scores, reads_scores
prefetch residual: calibrates, learns_from predictions scores, predicts normed on device, 1 ahead
prefetch stacked-gates: predicts normed on device, 2 ahead in prefill
prefetch fate: discipline committed, predicts normed on device, 1 ahead
prefetch activation-paths: calibrates, calibration_texts 64
prefetch two-buffers: discipline committed
prefetch predicted-union: discipline committed
admit after-misses: chooses
admit important-swaps: reads_token_norms, reads_weight_norms, reads_scores
evict static: reserve 2
evict only-named: needs_host, makes_room named
evict lru: takes_forms
evict layer-lru: needs_host
evict lfu: takes_forms
evict staged-lru: reserve 4
evict fifo: takes_forms
evict lifo: takes_forms
evict belady: clairvoyant
evict flashmoe: calibrates, calibration_texts 512
evict score: reads_scores
evict mrs: reads_scores
evict mrs-shipped: shares_slots, reads_scores
evict dali-swap: reserve 2
evict multidimensional: takes_forms
evict only-swapped: makes_room named
evict swap: needs_host, makes_room named, writes_back
evict swap-placeholder: needs_host, reserve 1, makes_room one, writes_back
evict placeholder: needs_host, reserve 1, makes_room one
evict lru-by-weight: reads_scores
evict frequency-distance: takes_forms
evict dispatch-lru: shares_slots
evict first-not-predicted: takes_forms
"""

#: The policies of each system (place, route, assign, prefetch, admit, evict), options that differ
#: from those of any system or of the policy, and whether outputs are those of the plain model.
SYSTEMS = """
gpu-only published: by-id exact load none all lru; all_resident=True; lossless
moe-ondemand published: by-id exact load none all lru; cache=null; lossless
acc published: none exact load none all lru; overlap=False blocking_copies=True
  pinned_copies=False cache=0; lossless
moesys published: none exact load whole-layer all fifo; ; lossless
ktransformers published: popular exact hybrid none all only-named; host_kernels=fused
  host_together=True; lossless
kt-kernel published: kt-uniform exact hybrid-chunked none all only-named; host_kernels=fused
  host_together=True; lossless
exllamav3-mcs published: cold-on-host exact split-by-residence none promote-on-miss only-named;
  host_kernels=fused host_together=True; lossless
accelerate published: device-map exact one-use none all only-named; overlap=False
  blocking_copies=True parallel_reads=False pinned_copies=False module_hooks=True; lossless
deepspeed published: streamed exact one-use recorded all only-named; synchronises=True
  pinned_copies=True module_hooks=True; lossless
deepspeed-mii published: resident-or-streamed exact one-use recorded all only-named;
  synchronises=True pinned_copies=True module_hooks=True; lossless
llamacpp published: n-cpu-moe exact host-or-copy none all only-named; overlap=False
  pinned_copies=False host_kernels=fused host_together=True threads=null; lossless
llamacpp-moe-cache published: moe-cache exact beside-host none moe-cache row-lru;
  pinned_copies=False host_kernels=fused host_together=True threads=null; lossless
llamacpp-capped-lru published: layer-slots exact published-copies none capped layer-lru;
  pinned_copies=False host_kernels=fused host_together=True threads=null; lossless
smoe published: by-id expert-cache balanced top-score all score; ;
daop published: activation predicted by-sequence none all swap; ;
duoserve published: none exact load expert-mlp all fifo; slots=0; lossless
flashmoe published: none exact load none all flashmoe; scope=layer parallel_reads=False; lossless
promoe published: by-id exact load stride all lru; scope=layer; lossless
finemoe published: by-id exact load expert-map all least-expected; ; lossless
pregated-moe published: none exact one-use pre-gate all fifo; cache=False assign.experts=active;
  lossless
belady published: by-id exact load next-exact all belady; cache=null; lossless
moe-infinity published: by-id exact load activation-match all activation-aware; ; lossless
mixtral-offloading published: last-ids exact load next-gate all staged-lru; prefetch.experts=2;
  lossless
adapmoe published: split adaptive load first-missing all staged-lru; evict.staging=6;
hybrimoe published: by-id exact makespan impact all mrs; scope=layer host_kernels=fused; lossless
fiddler published: popular exact load-or-compute none all placeholder; ; lossless
dali published: by-id exact greedy residual all dali-window; scope=layer; lossless
hobbit published: by-id skip-missing by-precision stacked-gates all multidimensional; ; forms 2
swapmoe published: virtual-experts masked load none important-swaps only-swapped; ;
sida published: none hash-function load predicted-union all first-not-predicted; ;
edgemoe published: one-width exact load activation-paths all frequency-distance; buffer=null;
  batch 1, forms 4
lfru published: none exact load none all lfru; scope=layer; lossless
cache-prior published: none cache-prior load none all lru-by-weight; scope=layer alpha=0.5;
freetoken published: slot-pools exact bandwidth-split two-buffers all oldest-call;
  pinned_copies=True host_kernels=fused host_together=True; lossless
pinned-profile published: pinned-profile exact host-or-copy none all only-named;
  pinned_copies=False host_kernels=fused host_together=True threads=null; lossless
flexgen published: percent exact one-use block-schedule all only-named; synchronises=True
  pinned_copies=True assign.experts=all; lossless
moe-lightning published: share-of-each-layer exact micro-batches paged-layers all only-named;
  pinned_copies=True; lossless
qvac-lru published: none exact cache-or-bypass none all dispatch-lru; overlap=False
  pinned_copies=False host_kernels=fused; lossless
smoe shipped: by-layer set-order one-ended first-predicted all load-order; blocking_copies=False
  synchronises=True reads_unfinished=True;
daop shipped: activation predicted by-sequence-shipped none all swap-placeholder;
  blocking_copies=True;
moe-infinity shipped: none exact queue-by-id none all fewest-visits; ; lossless
mixtral-offloading shipped: last-ids exact load none all staged-lru; overlap=False
  place.equal_layers=True evict.write_back=True; lossless
hybrimoe shipped: by-id exact two-ended after-next all mrs-shipped; pinned_copies=True
  host_kernels=fused; lossless
fiddler shipped: popular exact load-or-compute-shipped none all placeholder; overlap=False
  blocking_copies=True pinned_copies=False; lossless
sida shipped: none hash-function load predicted-union all first-not-predicted;
  blocking_copies=True pinned_copies=False route.weights=code prefetch.send_back=True
  evict.write_back=True;
exllamav3-mcs earlier: tail-on-host exact split-by-residence none hit-sweep only-named;
  host_kernels=fused host_together=True assign.law=linear; lossless
freetoken earlier: none exact bandwidth-split-earlier two-buffers all oldest-call;
  pinned_copies=True host_kernels=fused host_together=True; lossless
llamacpp-moe-cache earlier: moe-cache exact beside-host none every-nth row-lru;
  pinned_copies=False host_kernels=fused host_together=True threads=null assign.max_batch=1
  assign.host_rows=0; lossless
"""

#: The options of any system.
ANY_SYSTEM = {
    "scope": "global", "alpha": 0.25, "all_resident": False, "overlap": True,
    "blocking_copies": None, "parallel_reads": True, "synchronises": False,
    "reads_unfinished": False, "pinned_copies": None, "expert_precision": None,
    "host_experts": None, "module_hooks": False, "host_kernels": "unpacking",
    "prediction_python": True, "host_together": False, "in_flight": "wait",
}  # fmt: skip

#: Attributes that texts describe, or that other tests compare.
DESCRIBED = {
    "decision", "quick", "own_forms", "calibration_trace", "without_weight_norms",
    "without_losses",
}  # fmt: skip


def entries(table: str) -> dict[str, str]:
    """Return the entries of a table by their names; further lines of an entry are indented."""
    joined = table.strip().replace("\n  ", " ")
    return {name: text for name, _, text in (one.partition(":") for one in joined.split("\n"))}


def limits(one: Dimension) -> str:
    low = "" if one.low is None else f"{one.low}{'<' * one.above}"
    return f"{low}.." + ("" if one.high is None else f"{'<' * one.below}{one.high}")


def shown(one: Dimension) -> str:
    """Return a dimension as `OPTIONS` has it."""
    if one.kind == "choice":
        parts = [" | ".join(map(str, one.choices)), *["searched"] * one.searched]
    else:
        parts = [one.kind, limits(one), *map(str, one.choices)]
        parts += [f"searched {one.search_low}..{one.search_high}"] * one.searched
        parts += ["log"] * (one.scale == "log")
    return f"{one.option} = {one.default}; " + ", ".join(
        [*parts, *(f"needs {need}" for need in one.needs)]
    )


def test_options_have_their_defaults_limits_and_searched_ranges() -> None:
    found = []
    for policy in policies():
        lines = [f"  {shown(one)}" for one in policy.dimensions]
        found += [f"{policy.decision} {policy.name}", *lines] if lines else []
    assert found == OPTIONS.strip().split("\n")


def attributes(decision: str, name: str) -> str:
    """Return what `ATTRIBUTES` says of a policy."""
    made, kind, found = policy_class(decision, name)(), KINDS[decision], []
    for attribute in {**Policy.__annotations__, **kind.__annotations__}:
        value = getattr(made, attribute)
        if attribute not in DESCRIBED and value != getattr(kind, attribute):
            value = " ".join(sorted(value)) if isinstance(value, frozenset) else value
            found.append(attribute if value is True else f"{attribute} {value}")
    found += ["reads_scores"] * made.reads_scores
    predictor = getattr(made, "predictor", None)
    if predictor is not None:
        where = f"predicts {predictor.lookahead.value} on {predictor.lane.value}"
        more = " in prefill" * predictor.in_prefill + " wrapping" * predictor.wraps
        more += " behind" * predictor.in_background
        found.append(f"{where}, {predictor.layers} ahead{more}")
    return ", ".join(found)


def test_policies_have_the_attributes_that_the_engine_reads() -> None:
    found = {f"{d} {name}": attributes(d, name) for d in DECISIONS for name in POLICIES[d]}
    wanted = {name: text.strip() for name, text in entries(ATTRIBUTES).items()}
    assert {name: text for name, text in found.items() if text} == wanted


@pytest.mark.parametrize("variant", VARIANTS)
def test_systems_are_made_of_their_policies_and_options(variant: str) -> None:
    wanted = {n: t.strip() for n, t in entries(SYSTEMS).items() if n.endswith(f" {variant}")}
    found = {}
    for name in VARIANTS[variant]:
        made = build(name, variant=variant)
        values = describe(made)
        own = []
        for key, text in values.items():
            owner, _, option = key.rpartition(".")
            of = made.policies[owner] if owner else made
            plain = ANY_SYSTEM if not owner else {
                field.name: field.default for field in dataclasses.fields(of)
            }  # fmt: skip
            if key not in DECISIONS and getattr(of, option) != plain.get(option, "no default"):
                own.append(f"{key}={text}")
        facts = ["lossless"] * made.lossless
        facts += [f"batch {made.max_batch}"] * (made.max_batch is not None)
        facts += [f"forms {len(made.forms)}"] * (len(made.forms) > 1)
        parts = [" ".join(values[decision] for decision in DECISIONS), " ".join(own)]
        found[f"{name} {variant}"] = "; ".join([*parts, ", ".join(facts)]).strip()
    assert found == wanted


def test_any_system_has_these_options() -> None:
    defaults = {one.name: one.default for one in dataclasses.fields(System)}
    assert {name: defaults[name] for name in ANY_SYSTEM} == ANY_SYSTEM
    assert {*defaults} - {*ANY_SYSTEM} == {*DECISIONS}


#: Attributes of a policy that says nothing else, by the class that declares them.
PLAIN_POLICY = {
    Policy: {
        "reads_hidden": False, "reads_embedding": False, "reads_token_embeddings": False,
        "reads_token_norms": False, "reads_weight_norms": False, "calibrates": False,
        "learns_from": frozenset(), "calibration_texts": 16, "calibration_trace": "",
        "needs_host": False, "shares_slots": False, "reserve": 0,
    },
    Placement: {"leaves_slots": False, "own_forms": ()},
    Routing: {"reads_scores": True, "resident_only": False, "has_alpha": False},
    Assignment: {
        "reads_scores": True, "uses_host": False, "loads": "kept", "lossless": True,
        "divides": False,
    },
    Prefetching: {
        "reads_scores": True, "discipline": "speculative", "chunks": 1, "paged": True,
        "staged": True,
    },
    Admission: {"chooses": False, "queue": None},
    Eviction: {
        "makes_room": "all", "transient": 0, "writes_back": False, "clairvoyant": False,
        "takes_forms": False,
    },
    Predictor: {
        "lane": Lane.DEVICE, "lookahead": Lookahead.NONE, "layers": 1, "in_prefill": False,
        "wraps": False, "in_background": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", PLAIN_POLICY, ids=lambda kind: kind.__name__)
def test_a_policy_that_says_nothing_has_these_attributes(kind: type) -> None:
    plain = PLAIN_POLICY[kind]
    assert {name: getattr(kind, name) for name in plain} == plain


#: Options that systems have themselves; all have ``scope`` and what follows it.
EVERY = {
    "scope": Allowed(searched=True), "alpha": Allowed(low=0, high=1, searched=(0, 0.6)),
    "host_experts": Allowed(low=2, needs=("disk",)), "in_flight": Allowed(searched=True),
}  # fmt: skip
THREADS = {"threads": Allowed(low=1, scale="log", searched=(1, 64))}
CACHE = {"cache": Allowed(low=0, scale="log", searched=(1, 64))}
OWN = {
    "moe-ondemand": CACHE, "belady": CACHE, "acc": {"cache": Allowed(low=0)},
    "llamacpp": THREADS, "llamacpp-moe-cache": THREADS, "llamacpp-capped-lru": THREADS,
    "pinned-profile": THREADS, "duoserve": {"slots": Allowed(low=0, scale="log", searched=(2, 64))},
    "edgemoe": {"buffer": Allowed(low=1, scale="log", searched=(2, 1024))},
    "cache-prior": {"alpha": Allowed(low=0, high=1, searched=(0, 1))},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_options_of_systems_have_their_limits_and_searched_ranges(variant: str) -> None:
    for name in VARIANTS[variant]:
        assert allowed_values(system_class(name, variant)) == {**EVERY, **OWN.get(name, {})}, name


#: Numbers of papers and engines that no option has, by module.
CONSTANTS: dict[str, dict[str, object]] = {
    "adapmoe": {"THRESHOLD": 0.005, "DROPPED": 0.25},
    "dali": {"LEAST_SCORE": 2**-24},
    "daop": {"THRESHOLD": 1.05, "PAPERS_FIRST": 5},
    "description": {"NOTED": ("mixtral-8x7b", 64)},
    "edgemoe": {"FULL": 0, "INT8": 1, "INT4": 2, "INT2": 3},
    "flexgen": {"TOLERANCE": 1e-5, "BUFFERS": 2, "NO_LIMIT": 1e18, "HEAD": -1},
    "freetoken": {"Q16": 65_536, "HYBRID_ABOVE": 2.0},
    "hobbit": {"T1": 0.6, "T2": 0.9, "HIGH": 0, "LOW": 1, "SKIP": 2},
    "hybrimoe_shipped": {"SMOOTHING": 0.5},
    "kt_kernel": {"SEED": 42},
    "learn.eviction_network": {
        "LEARNING_RATE": 1e-3, "WEIGHT_DECAY": 1e-2, "PATIENCE": 3, "TOGETHER": 4,
    },
    "learn.expert_mlp": {
        "LAYERS": 7, "LAST_HIDDEN": 64, "LEARNING_RATE": 3e-3, "BATCH": 512, "PATIENCE": 3,
        "HELD_OUT": 0.1,
    },
    "learn.hash_function": {
        "LEARNING_RATE": 1e-3, "PATIENCE": 5, "CROSS_ENTROPY": 0.005, "TEACHERS_TOP": 30,
        "VALIDATION": 0.1, "BATCH": 8, "LSTM_LAYERS": 2,
    },
    "learn.map_store": {"SAME": 1e-6},
    "learn.stacked": {"VALIDATION": 0.1, "BATCH": 256},
    "learn.state_mlp": {"LEARNING_RATE": 1e-3, "PATIENCE": 3},
    "llamacpp_capped_lru": {"MOST_TOKENS": 4},
    "llamacpp_moe_cache": {
        "MIB": 2**20, "MOST_TOKENS": 8, "MOST_ROWS": 64, "OVERLAP_BYTES": 8 * 2**20,
        "LEAST_BYTES": {"auto": 2**19, "on": 2**20},
    },
    "llamacpp_place": {"MIB": 2**20, "LEAST_CONTEXT": 4096, "ALIGNED_CONTEXT": 256},
    "moe_lightning": {"BUFFERS": 2, "SMALL_BATCH": 8},
    "policies.evict_engines": {"LATEST": 0.25},
    "policies.latency": {"SAME_NS": 1000},
    "policies.split": {"EVEN": 1e-9},
    "qvac_lru": {"GUARD": 1},
    "sida": {"PAPER_WIDTH": 256},
    "smoe_shipped": {"LAST_LAYER": 27},
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTANTS)
def test_numbers_of_papers_and_engines(name: str) -> None:
    module = import_module(f"moebench.systems.{name}")
    assert {key: getattr(module, key) for key in CONSTANTS[name]} == CONSTANTS[name]
