// Replays recorded routing on the simulated machine, as the engine in Python does.
//
// The engine in Python is the definition; this file repeats it for the compositions of twins.py, bit
// for bit and span for span (tests/systems/compiled).  Each function names what it repeats.  Times
// are integer nanoseconds.  Floating-point sums have the same order as in Python, so the compiler
// must not contract or rearrange them (-ffp-contract=off, no -ffast-math).
//
// Decisions that have no twin here are asked in Python, once a layer or a slot (`Ask`).
//
// Not repeated, and refused in twins.py: experts on the disk, non-expert weights on the host,
// records in several forms, routing ahead, deferred outputs, prefetches in chunks.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <unordered_map>
#include <vector>

using i64 = int64_t;
using Experts = std::vector<i64>;

constexpr i64 NEVER = std::numeric_limits<i64>::max();
constexpr double SAME_NS = 1000;  // systems.policies.latency
constexpr i64 COSTS_KEPT = 64;    // machines.timeline
constexpr i64 COSTS_TOLD = 4096;

enum Lane { DEVICE, H2D, D2H, HOST, DISK, PREDICT, LANES };
enum Kind { ATTEND, GATE, SHARED, COMBINE, DENSE, HEAD, FORECAST, EXPERT, LOAD, RETURN };
enum Cause { NO_CAUSE, BY_CONTROL, BY_LOAD, BY_HOST, BY_DEVICE, BY_PREDICT, CAUSES };
enum Note { EVICT, CANCEL };
enum Purpose { NEEDED, SPECULATIVE, COMMITTED, UPLOAD };
// What is asked in Python: engine.py's `_Asked` has a method for each.
enum Question {
  LAYER, ASSIGN, FETCH, OPEN, USED, ARRIVED, LEFT, GROWS, VICTIM, MISSED, PASS_ENDS, UPLOADED,
  FORESEE
};
// Decisions that are asked in Python have the number 0.
enum AssignKind { IN_PYTHON, LOAD_ALL, HOST_ALL, BALANCED, OPTIMAL, FIDDLER, MAKESPAN, GREEDY };
enum EvictKind { NEVER_EVICT = 1, NO_VICTIM, FIFO, LRU, LFU, AVERAGE_SCORE, RECENT_SCORE, WINDOW };
enum PrefetchKind { NO_PREFETCH = 1, WISHES, ABSENT_WISHES, IMPACT };
// engine.counts.Counts, in the order of engine.py
enum Count {
  ACTIVE, HITS, IN_FLIGHT, BEGUN, LOADS, ON_HOST, HOST_RESIDENT, UNCHOSEN, PREFETCHED,
  PREFETCHED_TOP_SCORE, PREFETCHED_ACTIVE, PREFETCHED_USED, ASKED, ASKED_ALL, ASKED_ANY,
  UPLOADS_DONE, UPLOADS_REFUSED, COUNTS
};

extern "C" {

// Asks Python; returns a key or a truth, -1 for none, -2 where it failed.  Longer answers are in
// `Setup::talk`.
typedef i64 (*Ask)(i64 question, i64 about, i64 more);

// What a run has in common: engine.py's `Setup` has the same fields in the same order.
struct Setup {
  i64 layers, experts, top_k, pools, capacity;
  const i64 *moe_row;     // [layers] row among the MoE layers, or -1
  const i64 *next_moe;    // [layers] the next MoE layer, or -1
  const i64 *pool_of;     // [layers] the pool of slots of a layer's experts
  const i64 *pool_ends;   // [pools + 1] the slots of each pool are consecutive
  i64 has_shared, has_predictor, predicts_attention;
  i64 decision_ns, sync_ns, load_submit_ns, copy_submit_ns, record_ns, record_bytes;
  i64 waits_each_layer, blocking_copies, host_together, overlaps;
  i64 launch_ns, expert_control_ns, host_control_ns, host_dispatch_ns;
  double host_handoff_ns, lost_beside_copies, lost_together;
  double device_estimate, load_estimate, host_estimate;
  i64 assign, evict, prefetch;
  i64 history, minimise_sum, by_rows, tie_host, from_backlog, load_prompts, fill;  // assign
  i64 window, top, hot, survive, oldest_first;                                     // evict
  double smoothing;                                                               // evict
  i64 fetches, impact_history, whole_prompt_layers, commits;                       // prefetch
  i64 asks_layers, asks_routing, asks_growth, asks_predictions, asks_uploads, most_queued, transient;
  Ask ask;
  uint8_t *held;           // [keys] whether each expert has a slot: the cache's own array
  i64 *ready;              // [keys] when it is complete: the cache's own array
  uint8_t *allowed;        // [keys] which experts a policy may evict, for VICTIM
  i64 *talk;               // answers to questions, and at LAYER each expert's rows
  i64 *clock;              // the time, then the end of each lane's queue, for questions
  double *costs;           // [COSTS_TOLD, 4] what operations took since the last question
  i64 *costs_told;
};

// One batch: the passes of its prompts and of each decoded token.  engine.py's `Batch`.
struct Batch {
  i64 passes, texts, ahead, wishes, notes;
  const i64 *rows;         // [passes]
  const i64 *prices;       // [passes, 6 + ahead, 3]: first launch, submission, time on the lane
  const double *device_products, *host_products;  // [rows + 1] an expert's by its rows
  const i64 *return_ns;    // [rows + 1] the host's output by its rows
  const i64 *ids;          // the chosen experts [MoE layers, rows, k] of each pass
  const i64 *ids_at;       // [passes] where each pass begins
  const float *best, *mean;  // [passes, MoE layers, E] over rows; null if not read
  const i64 *wished, *wished_rows;  // [passes, MoE layers, ahead, wishes] experts, then -1
  i64 *ends;               // out: [passes] when each token was done
  i64 *used, *used_count;  // out: [passes, MoE layers, most] keys, and how many
  i64 most;
};

struct Span {
  i64 kind, lane, layer, pass, first, experts, start, end, stall, cause, late, moved;
};
struct Named { i64 expert, rows; };
struct Event { i64 kind, at, layer, expert, pass; };
struct Computed { i64 span, lane, times; };

}  // extern "C"

// A span for which others wait: its end and what a wait for it counts as (`cause_of`).
struct After { i64 end = -1; int cause = NO_CAUSE; };

// `deque(maxlen=COSTS_KEPT)`, and the means of its newest entries (policies.latency).
struct Recent {
  std::deque<double> values;
  void add(double value) {
    values.push_back(value);
    if ((i64)values.size() > COSTS_KEPT) values.pop_front();
  }
  double mean(i64 history) const {
    i64 n = std::min<i64>(history, values.size());
    double sum = 0;
    for (i64 i = 0; i < n; i++) sum += values[values.size() - 1 - i];
    return sum / n;
  }
};

// An OrderedDict of keys: of many such orders, each key is in at most one.
struct Links {
  std::vector<i64> next, before;
  std::vector<char> in;
  explicit Links(i64 keys = 0) : next(keys, -1), before(keys, -1), in(keys, 0) {}
};
struct Order {
  i64 head = -1, tail = -1;
  void append(Links &links, i64 key) {
    if (links.in[key]) return;
    links.in[key] = 1, links.before[key] = tail, links.next[key] = -1;
    (tail < 0 ? head : links.next[tail]) = key;
    tail = key;
  }
  void remove(Links &links, i64 key) {
    if (!links.in[key]) return;
    links.in[key] = 0;
    i64 a = links.before[key], b = links.next[key];
    (a < 0 ? head : links.next[a]) = b;
    (b < 0 ? tail : links.before[b]) = a;
  }
};

// policies.makespan
struct Times { double token, first, gpu, pcie; };
struct Schedule { Experts gpu, cpu, pcie; double makespan; };

static void insort(Experts &list, i64 e, const Experts &tokens) {
  auto less = [&](i64 a, i64 b) {
    return tokens[a] != tokens[b] ? tokens[a] > tokens[b] : a < b;
  };
  list.insert(std::upper_bound(list.begin(), list.end(), e, less), e);
}

static void drop(Experts &list, i64 e) {
  auto at = std::find(list.begin(), list.end(), e);
  if (at != list.end()) list.erase(at);
}

// policies.makespan.schedule
static Schedule schedule(const Experts &cached, const Experts &absent, const Times &times,
                         const Experts &coming, double link_ns) {
  Experts tokens = cached;
  tokens.insert(tokens.end(), coming.begin(), coming.end());
  tokens.insert(tokens.end(), absent.begin(), absent.end());
  i64 here = cached.size(), held = here + coming.size(), all = tokens.size();
  Experts ready, under_way, missing;
  for (i64 e = 0; e < here; e++) ready.push_back(e);
  for (i64 e = here; e < held; e++) under_way.push_back(e);
  for (i64 e = here; e < all; e++) missing.push_back(e);
  if (held > here)
    std::stable_sort(missing.begin(), missing.end(),
                     [&](i64 a, i64 b) { return tokens[a] > tokens[b]; });
  std::deque<std::pair<double, i64>> arriving;
  Schedule found;
  double gpu_ns = 0, cpu_ns = 0, pcie_ns = link_ns;
  const double inf = INFINITY;
  while ((i64)(found.gpu.size() + found.cpu.size()) < all) {
    while (!arriving.empty() && arriving.front().first <= gpu_ns + SAME_NS) {
      insort(ready, arriving.front().second, tokens);
      arriving.pop_front();
    }
    double begins = !ready.empty() ? gpu_ns : !arriving.empty() ? arriving.front().first : inf;
    double gpu_end = begins + times.gpu, cpu_end = inf, pcie_end = inf;
    i64 left = -1;
    if (!missing.empty()) {
      left = missing.back();
    } else {
      for (i64 e : ready)
        if (e < here) left = e;
    }
    if (left >= 0) {
      double first = found.cpu.empty() ? times.first : times.first * 0.0;
      cpu_end = cpu_ns + times.token * tokens[left] + first;
    }
    if (!missing.empty()) pcie_end = under_way.empty() ? pcie_ns + times.pcie : link_ns;
    if (gpu_end <= std::min(cpu_end, pcie_end) + SAME_NS) {
      if (!ready.empty()) {
        found.gpu.push_back(ready.front());
        ready.erase(ready.begin());
      } else {
        found.gpu.push_back(arriving.front().second);
        arriving.pop_front();
      }
      gpu_ns = gpu_end;
    } else if (cpu_end <= pcie_end + SAME_NS) {
      found.cpu.push_back(left);
      drop(missing.empty() ? ready : missing, left);
      drop(under_way, left);
      cpu_ns = cpu_end;
    } else {
      i64 e = under_way.empty() ? missing.front() : under_way.front();
      drop(under_way, e);
      drop(missing, e);
      arriving.emplace_back(pcie_end, e);
      if (e >= held) found.pcie.push_back(e);
      pcie_ns = pcie_end;
    }
  }
  found.makespan = std::max(gpu_ns, cpu_ns);
  return found;
}

// systems.hybrimoe.LaterLayer
struct LaterLayer {
  i64 layer;
  const Times &times;
  Experts absent, cached_rows, absent_rows;
  double impact = 0;
  i64 best = 0;
  LaterLayer(i64 layer, const Times &times) : layer(layer), times(times) {}
  Experts cached_with(i64 place) const {
    Experts found = cached_rows;
    found.push_back(absent_rows[place]);
    std::sort(found.begin(), found.end(), std::greater<i64>());
    return found;
  }
  Experts absent_without(i64 place) const {
    Experts found = absent_rows;
    found.erase(found.begin() + place);
    return found;
  }
  void weigh() {
    impact = 0, best = 0;
    double now = schedule(cached_rows, absent_rows, times, {}, 0).makespan;
    for (i64 place = 0; place < (i64)absent_rows.size(); place++) {
      if (place && absent_rows[place - 1] == absent_rows[place]) continue;
      double then = schedule(cached_with(place), absent_without(place), times, {}, 0).makespan;
      if (now - then > impact + SAME_NS) impact = now - then, best = place;
    }
  }
  i64 take() {
    i64 expert = absent[best];
    Experts cached = cached_with(best), others = absent_without(best);
    cached_rows = cached, absent_rows = others;
    absent.erase(absent.begin() + best);
    weigh();
    return expert;
  }
};

// engine.decisions: `Fetch`, by keys, and `Plan`
struct Fetch { i64 key, keep = 1, instead_of = -1; };
struct Plan {
  Experts device, host, load;
  std::vector<Fetch> fetches;
  bool keep = true;
};

class Replay {
 public:
  explicit Replay(const Setup &setup) : s(setup) {
    i64 keys = s.layers * s.experts;
    slot_of.assign(keys, -1), owner.assign(s.capacity, -1), charged.assign(s.capacity, 0);
    held = s.held, ready = s.ready;
    pinned.assign(keys, 0), computed.assign(keys, 0);
    reader.assign(keys, -1), arrival.assign(keys, -1);
    speculative.assign(keys, 0), passing.assign(keys, 0), wanted_now.assign(keys, 0);
    free_slots.resize(s.pools);
    for (i64 p = 0; p < s.pools; p++)
      for (i64 slot = s.pool_ends[p + 1] - 1; slot >= s.pool_ends[p]; slot--)
        free_slots[p].push_back(slot);
    started.resize(s.layers), asked.resize(s.layers);
    device_ns.add(s.device_estimate), load_ns.add(s.load_estimate);
    on_host(s.host_estimate, 1, false);
    orders.resize(s.pools), links = Links(keys);
    count.assign(keys, 0), stamp.assign(keys, 0), inside.assign(keys, 0);
    value.assign(keys, 0);
    if (s.evict == AVERAGE_SCORE) scores.assign(s.layers * (s.window + 1) * s.experts, 0);
    seen.assign(s.layers, 0);
    held_orders.resize(s.pools), held_links = Links(keys);
    windows.resize(s.pools), times_in.assign(keys, 0), at.assign(keys, -1);
  }

  // engine.transfers._place
  void place(i64 key) {
    claim_slot(key, -1), holding++;
    if (s.evict != NEVER_EVICT && s.evict != IN_PYTHON) arrived(key);
    ready[key] = 0;
  }

  i64 run(const Batch &batch);

  std::vector<Span> spans;
  std::vector<Named> named;
  std::vector<Event> events;
  std::vector<Computed> alike;
  i64 now = 0, busy[2][LANES] = {}, stall[2][CAUSES] = {}, stalled[2][CAUSES] = {};
  i64 moved[2][LANES] = {}, counts[2][COUNTS] = {}, slots_used = 0;

 private:
  Setup s;
  const Batch *b = nullptr;
  i64 first_moe = 0, pass = 0, noted = 0, phase = 0;  // `noted` is the pass of events: after its end, the next
  i64 failed = 0;  // one more than the layer for whose expert no other can be evicted; -1: Python
  i64 free_at[LANES] = {}, idle_in_wait = 0, host_layer = -1;
  After last;  // the operation before, for which others wait where none overlap
  int waited_for = NO_CAUSE;
  Recent device_ns, load_ns, host_ns, host_row_ns;
  std::deque<char> host_first;
  // The slots (memory.cache) and transfers, by key.
  uint8_t *held;
  i64 *ready;
  std::vector<i64> slot_of, owner, reader, arrival;
  std::vector<char> charged, pinned, computed, speculative, passing, wanted_now;
  std::vector<Experts> free_slots, started;
  std::vector<std::vector<char>> asked;  // [layers] empty, or by expert
  struct Draining { i64 slot, pool; After use; };
  std::vector<Draining> draining;
  i64 passing_count = 0, holding = 0;
  int purpose = NEEDED;
  struct Queued { i64 key, since; };
  std::deque<Queued> queue;
  struct Upload { i64 key, since; After after; };
  std::deque<Upload> uploads;  // that have not begun
  Experts unheard;             // keys of uploads of which the eviction has not heard, in their order
  Experts wanted;
  std::unordered_map<i64, Fetch> wishes_now;
  std::unordered_map<i64, i64> waiting_since;  // when fetches can begin that wait for predictions
  std::unordered_map<uint64_t, i64> known[2];
  // State of the eviction.
  std::vector<Order> orders, held_orders;
  Links links, held_links;
  std::vector<i64> count, stamp, seen, times_in, at;
  std::vector<char> inside;
  std::vector<double> value, scores;
  std::vector<std::deque<i64>> windows;
  Experts turn;
  i64 clock = 0, counted = 0, left_until = 0;
  // The layer at hand.
  std::vector<i64> rows_E;
  std::vector<char> own_E, top_E;  // whether the gate chose it; and it counts as important
  Experts active, resident, in_flight, absent;

  i64 pool_of(i64 key) const { return s.pool_of[key / s.experts]; }
  i64 moe_layers() const {
    i64 n = 0;
    for (i64 l = 0; l < s.layers; l++) n += s.moe_row[l] >= 0;
    return n;
  }

  i64 ask(int question, i64 about, i64 more = 0) {
    if (failed) return -1;
    s.clock[0] = now;
    std::copy(free_at, free_at + LANES, s.clock + 1);
    i64 answer = s.ask(question, about, more);
    if (answer == -2) failed = -1;
    return answer;
  }

  void tell_cost(double kind, double took, double rows = 0, double first = 0) {
    if (!s.asks_layers || *s.costs_told == COSTS_TOLD) return;
    double *entry = s.costs + 4 * (*s.costs_told)++;
    entry[0] = kind, entry[1] = took, entry[2] = rows, entry[3] = first;
  }

  // The fetches in an answer: their number, then key, keep and instead_of of each
  std::vector<Fetch> fetches_at(const i64 *at) const {
    std::vector<Fetch> found;
    for (i64 i = 0; i < at[0]; i++) found.push_back({at[1 + 3 * i], at[2 + 3 * i], at[3 + 3 * i]});
    return found;
  }

  // ------------------------------------------------------------ the clock (machines.simulated)

  i64 beside(double lost, int other, i64 start, i64 alone) const {
    double queued = std::max<i64>(0, free_at[other] - start);
    return std::nearbyint(lost * std::min(alone / (1 - lost), queued));
  }

  // `_place`, and what `Timeline._count` sums up
  Span &place(int kind, int lane, i64 layer, i64 since, i64 duration, After after, i64 not_before,
              i64 bytes) {
    i64 free = free_at[lane], start = free, late = 0, behind = 0;
    int cause = NO_CAUSE;
    if (since > free) {
      start = since, cause = BY_CONTROL, behind = since - free;
      if (lane == DEVICE && idle_in_wait) {
        late = behind = behind - idle_in_wait;
        cause = waited_for, idle_in_wait = 0;
      }
    }
    if (after.end > start) start = after.end, cause = after.cause, late = behind;
    if (!s.overlaps && last.end > start) start = last.end, cause = last.cause, late = behind;
    if (s.lost_beside_copies && lane == DEVICE)
      duration += beside(s.lost_beside_copies, H2D, start, duration);
    else if (s.lost_together && (lane == HOST || lane == H2D))
      duration += beside(s.lost_together, lane == HOST ? H2D : HOST, start, duration);
    i64 end = std::max(start + duration, not_before);
    free_at[lane] = end;
    last = {end, cause_of(kind, lane)};
    busy[phase][lane] += end - start;
    i64 idle = start - free - late;
    if (lane == DEVICE) {
      if (idle) stall[phase][cause] += idle, stalled[phase][cause] = 1;
      if (late) stall[phase][BY_CONTROL] += late, stalled[phase][BY_CONTROL] = 1;
    } else {
      moved[phase][lane] += bytes;
    }
    spans.push_back({kind, lane, layer, pass, (i64)named.size(), 0, start, end, idle, cause, late,
                     bytes});
    return spans.back();
  }

  // `Timeline._count`: how many operations of equal sizes
  void tell(int lane, uint64_t sizes) {
    auto [entry, is_new] = known[lane == HOST].try_emplace(sizes, (i64)alike.size());
    if (is_new) alike.push_back({(i64)spans.size() - 1, lane, 0});
    alike[entry->second].times++;
  }

  static int cause_of(int kind, int lane) {
    return lane == DEVICE ? BY_DEVICE : kind == LOAD ? BY_LOAD : lane == PREDICT ? BY_PREDICT
                                                                                : BY_HOST;
  }

  // `submit` of a prediction that Python has made: its lane, price and sizes are in the answer
  i64 predicted(i64 layer, int lane) {
    i64 since = now + s.talk[0];
    now += s.talk[1];
    Span &span = place(FORECAST, lane, layer, since, s.talk[2], {}, now, 0);
    span.first = s.talk[3];
    i64 end = span.end;
    if (lane == DEVICE || lane == HOST) tell(lane, 1ull << 62 | s.talk[3]);
    return end;
  }

  void wait(i64 end, int lane, int cause) {
    if (lane != DEVICE) {
      i64 idle = end - std::max(now, free_at[DEVICE]);
      if (idle > 0) idle_in_wait += idle, waited_for = cause;
    }
    now = std::max(end, now) + s.sync_ns;
    start_queued();
  }

  // `submit` of a part whose price the batch has
  i64 common(int kind, i64 layer, i64 price, After after = {}) {
    const i64 *p = b->prices + (pass * (6 + b->ahead) + price) * 3;
    i64 since = now + p[0];
    now += p[1];
    Span &span = place(kind, DEVICE, layer, since, p[2], after, now, 0);
    i64 end = span.end;
    // Of the same sizes are all operations of equally many rows that read no KV cache.
    bool reads = kind == ATTEND || (kind == FORECAST && s.predicts_attention);
    tell(DEVICE, (uint64_t)price << 32 | (reads ? pass : phase));
    if (kind == COMBINE && s.waits_each_layer) wait(end, DEVICE, BY_DEVICE);
    return end;
  }

  // `_wait_for_device`
  void wait_for_device(After after) {
    i64 idle_at = free_at[DEVICE], until = std::max(idle_at, after.end);
    if (until <= now) return;
    i64 idle = until - std::max(now, idle_at);
    if (idle > 0 && until > idle_at) idle_in_wait += idle, waited_for = after.cause;
    now = until;
    start_queued();
  }

  static uint64_t hashed(uint64_t sizes, i64 more) {
    sizes = (sizes ^ (uint64_t)more) * 0x9E3779B97F4A7C15ull;
    return sizes ^ (sizes >> 29);
  }

  // `submit` of experts on the device, as one operation; notes them as read (`Transfers.computed`)
  After experts(i64 layer, const i64 *which, i64 n, After after) {
    double time = 0;
    for (i64 i = 0; i < n; i++) time += b->device_products[rows_E[which[i]]];
    if (s.waits_each_layer) wait_for_device(after);
    i64 since = now + s.launch_ns;
    now += s.expert_control_ns * n;
    i64 duration = std::max<i64>(1, std::nearbyint(time));
    Span &span = place(EXPERT, DEVICE, layer, since, duration, after, now, 0);
    span.experts = n;
    After done{span.end, BY_DEVICE};
    device_ns.add((double)(span.end - span.start) / n);
    tell_cost(0, (double)(span.end - span.start) / n);
    name_and_tell(DEVICE, which, n);
    return done;
  }

  void name_and_tell(int lane, const i64 *which, i64 n) {
    uint64_t sizes = hashed(0xCBF29CE484222325ull, n);
    for (i64 i = 0; i < n; i++) {
      named.push_back({which[i], rows_E[which[i]]});
      sizes = hashed(sizes, rows_E[which[i]]);
    }
    tell(lane, sizes | 1ull << 63);
  }

  void on_host(double took, double rows, bool first) {
    host_ns.add(took), host_row_ns.add(took / rows), host_first.push_back(first);
    if ((i64)host_first.size() > COSTS_KEPT) host_first.pop_front();
  }

  // `Operations.host_expert` and `host_experts`: on the host, then its output's way back
  After on_host(i64 layer, const i64 *which, i64 n) {
    double time = 0.0 + ((double)(n * s.host_dispatch_ns) + s.host_handoff_ns);
    i64 most = 0;
    for (i64 i = 0; i < n; i++) {
      time += b->host_products[rows_E[which[i]]];
      most = std::max(most, rows_E[which[i]]);
    }
    i64 since = now + s.copy_submit_ns;
    now += s.host_control_ns * n + s.copy_submit_ns;
    i64 duration = std::max<i64>(1, std::nearbyint(time));
    Span &span = place(EXPERT, HOST, layer, since, duration, {}, now, 0);
    span.experts = n;
    After computed_at{span.end, BY_HOST};
    on_host((double)(span.end - span.start) / n, rows_E[which[0]], layer != host_layer);
    tell_cost(2, (double)(span.end - span.start) / n, rows_E[which[0]], layer != host_layer);
    host_layer = layer;
    name_and_tell(HOST, which, n);
    since = now + s.copy_submit_ns;
    now += s.copy_submit_ns;
    Span &back = place(RETURN, D2H, layer, since, b->return_ns[most], computed_at, now, 0);
    back.experts = n;
    After done{back.end, BY_HOST};
    for (i64 i = 0; i < n; i++) named.push_back({which[i], n == 1 ? rows_E[which[i]] : most});
    return done;
  }

  // `_carry`, `Transfers.under_way` and `arrived`
  After carry(i64 key, i64 since, After after) {
    Span &span = place(LOAD, H2D, key / s.experts, since, s.record_ns, after, 0, s.record_bytes);
    span.experts = 1;
    named.push_back({key % s.experts, 0});
    arrival[key] = ready[key] = span.end;
    if (speculative[key]) speculative[key] = 0;
    else load_ns.add(span.end - span.start), tell_cost(1, span.end - span.start);
    return {span.end, BY_LOAD};
  }

  After load(i64 key, After after) {
    now += s.load_submit_ns;
    start_queued();
    After done = carry(key, now, after);
    if (s.blocking_copies) wait(done.end, H2D, BY_LOAD);
    return done;
  }

  void next_upload(i64 since) {
    Upload first = uploads.front();
    uploads.pop_front();
    carry(first.key, since, first.after);
  }

  // `Transfers._arrival`; an upload that has not begun becomes a needed load
  i64 arrival_of(i64 key) {
    if (arrival[key] >= 0) return arrival[key];
    auto is_queued = [&](const Upload &one) { return one.key == key; };
    while (std::any_of(uploads.begin(), uploads.end(), is_queued)) next_upload(now);
    return arrival[key];
  }

  void start_queued() {
    while (!queue.empty() || !uploads.empty()) {
      if (!uploads.empty()) {
        const Upload &first = uploads.front();
        i64 start = std::max({free_at[H2D], first.since, first.after.end});
        if (!s.overlaps) start = std::max(start, last.end);
        if (start >= now) return;
        next_upload(start);
        continue;
      }
      auto [key, since] = queue.front();
      i64 start = std::max(free_at[H2D], since);
      if (!s.overlaps) start = std::max(start, last.end);
      if (start >= now) return;
      queue.pop_front();
      // `Transfers.claim`
      After after;
      purpose = SPECULATIVE;
      bool claimed = !held[key] && claim(wishes_now[key], start, true, after);
      purpose = NEEDED;
      if (!claimed) continue;
      started[key / s.experts].push_back(key % s.experts);
      speculative[key] = 1;
      arrival[key] = -1;
      carry(key, start, after);
    }
  }

  // ------------------------------------------------------------ slots (memory.cache, transfers)

  bool evictable(i64 key, i64 at_ns) const {
    return held[key] && !pinned[key] && ready[key] <= at_ns && reader[key] <= at_ns;
  }

  // `ExpertCache.evictable_soon`
  bool evictable_soon(i64 key, i64 at_ns) const {
    return held[key] && (pinned[key] ? computed[key] && ready[key] != NEVER : ready[key] <= at_ns);
  }

  void claim_slot(i64 key, i64 victim) {
    i64 slot;
    if (victim < 0) {
      auto &free = free_slots[pool_of(key)];
      slot = free.back();
      free.pop_back();
      if (!charged[slot]) charged[slot] = 1, slots_used++;
    } else {
      slot = slot_of[victim];
      forget(victim);
    }
    held[key] = 1, slot_of[key] = slot, owner[slot] = key, reader[key] = -1;
  }

  void forget(i64 key) {
    held[key] = computed[key] = 0;
    slot_of[key] = -1, ready[key] = NEVER;
  }

  // `Transfers._let_go`
  void let_go(i64 key, After use) {
    if (!passing[key]) return;
    passing[key] = 0, passing_count--, holding--;
    draining.push_back({slot_of[key], pool_of(key), use});
    forget(key);
    reader[key] = -1;
  }

  bool has_free_slot(i64 key, i64 at_ns) {
    i64 pool = pool_of(key);
    if (free_slots[pool].empty())
      for (size_t i = 0; i < draining.size(); i++)
        if (draining[i].pool == pool && draining[i].use.end <= at_ns) {
          free_slots[pool].push_back(draining[i].slot);
          draining.erase(draining.begin() + i);
          break;
        }
    return !free_slots[pool].empty();
  }

  // `Transfers._give`
  void give(const Fetch &fetch, i64 victim, i64 at_ns) {
    i64 key = fetch.key;
    claim_slot(key, victim);
    if (victim < 0) {
      holding++;
    } else {
      if (passing[victim]) passing[victim] = 0, passing_count--;
      else if (is_unheard(victim)) hear(victim);
      else left(victim);
      if (b->notes) events.push_back({EVICT, at_ns, victim / s.experts, victim % s.experts, noted});
    }
    if (!fetch.keep) passing[key] = 1, passing_count++;
    else if (purpose != UPLOAD) arrived(key);
  }

  bool is_unheard(i64 key) const {
    return std::find(unheard.begin(), unheard.end(), key) != unheard.end();
  }

  void hear(i64 key) { unheard.erase(std::find(unheard.begin(), unheard.end(), key)); }

  // `Transfers.upload` and `Engine._upload`
  void upload(const std::vector<Fetch> &fetches) {
    i64 queued = 0;
    for (auto &fetch : fetches) {
      if (held[fetch.key]) continue;
      i64 pending = 0;
      for (i64 key : unheard) pending += ready[key] > now;
      if (s.most_queued >= 0 && pending >= s.most_queued) break;
      After after;
      purpose = UPLOAD;
      bool claimed = claim(fetch, now, false, after) || claim_soon(fetch, now, after);
      purpose = NEEDED;
      if (!claimed) continue;
      unheard.push_back(fetch.key);
      speculative[fetch.key] = 1, arrival[fetch.key] = -1;
      uploads.push_back({fetch.key, now, after});
      queued++;
    }
    counts[phase][UPLOADS_DONE] += queued;
    counts[phase][UPLOADS_REFUSED] += fetches.size() - queued;
  }

  // `Transfers.take_uploaded` and `Admission.uploaded`
  void take_uploaded() {
    Experts done;
    for (i64 key : unheard) {
      if (ready[key] > now) break;
      done.push_back(key);
    }
    purpose = UPLOAD;
    for (i64 key : done) hear(key), arrived(key);
    purpose = NEEDED;
    for (i64 key : done) ask(UPLOADED, key);
  }

  // `Transfers._may_grow`
  bool may_grow(const Fetch &fetch) const {
    return !s.transient || !fetch.keep || holding - passing_count < s.capacity - s.transient;
  }

  i64 named_by(const Fetch &fetch) const {
    return fetch.instead_of >= 0 && held[fetch.instead_of] ? fetch.instead_of : -1;
  }

  // `Transfers._claim`: a slot at this instant; false if no expert can be evicted
  bool claim(const Fetch &fetch, i64 at_ns, bool spares, After &after) {
    i64 key = fetch.key, victim = named_by(fetch);
    after = {};
    if (victim >= 0) {
      if (!evictable(victim, at_ns)) return false;
      give(fetch, victim, at_ns);
      return true;
    }
    bool free = may_grow(fetch) && has_free_slot(key, at_ns);
    if (!(free && (!s.asks_growth || ask(GROWS, key, purpose)))) {
      victim = choose(key, [&](i64 k) { return evictable(k, at_ns); });
      if (spares && victim >= 0 && wanted_now[victim])
        victim = choose(key, [&](i64 k) { return evictable(k, at_ns) && !wanted_now[k]; });
      if (victim < 0 && !free) return false;
    }
    if (failed) return false;
    give(fetch, victim, at_ns);
    return true;
  }

  // `Transfers._claim_soon`: a slot that submitted computations will free
  bool claim_soon(const Fetch &fetch, i64 at_ns, After &after) {
    i64 key = fetch.key, pool = pool_of(key), victim = named_by(fetch);
    bool is_named = victim >= 0, grows = !is_named && may_grow(fetch);
    for (size_t i = 0; grows && i < draining.size(); i++)
      if (draining[i].pool == pool) {
        after = draining[i].use;
        free_slots[pool].push_back(draining[i].slot);
        draining.erase(draining.begin() + i);
        give(fetch, -1, at_ns);
        return true;
      }
    if (is_named) {
      if (!evictable_soon(victim, at_ns)) return false;
    } else {
      i64 idle_at = at_ns + std::max<i64>(0, free_at[H2D] - now);
      auto idle = [&](i64 k) { return evictable_soon(k, at_ns) && reader[k] <= idle_at; };
      if (s.evict != IN_PYTHON || any(pool, idle)) victim = choose(key, idle);
      if (victim < 0) victim = choose(key, [&](i64 k) { return evictable_soon(k, at_ns); });
      if (victim < 0 && grows && passing_count)
        victim = least(pool, [&](i64 k) { return passing[k] && evictable_soon(k, at_ns); },
                       [](i64) { return 0; });
    }
    if (victim < 0 || failed) return false;
    i64 read_until = reader[victim];
    after = {};
    if (read_until >= 0) after = {read_until, BY_DEVICE};
    give(fetch, victim, std::max(at_ns, read_until));
    return true;
  }

  // `Transfers.demand_when_free`; false where nothing can be claimed and `waits` is not set
  bool demand_when_free(const Fetch &fetch, bool waits, int why, After &done) {
    i64 key = fetch.key;
    while (!failed) {
      if (held[key]) {
        done = {arrival_of(key), BY_LOAD};
        return true;
      }
      After after;
      purpose = why;
      bool claimed = claim(fetch, now, false, after) || claim_soon(fetch, now, after);
      purpose = NEEDED;
      if (claimed) {
        done = load(key, after);
        return true;
      }
      if (failed) return false;
      if (!waits) return false;
      // `ExpertCache.arriving`
      i64 first = least(pool_of(key), [&](i64 k) {
        return ready[k] > now && (!pinned[k] || (computed[k] && ready[k] == NEVER));
      },
                        [](i64) { return 0; });
      if (first < 0) failed = key / s.experts + 1;
      else wait(arrival_of(first), H2D, BY_LOAD);
    }
    return false;
  }

  // ------------------------------------------------------------ evictions (systems.policies)

  // The allowed key of a pool with the least of two values; ties to the lowest key
  template <class Allowed, class Value>
  i64 least(i64 pool, Allowed allowed, Value of) const {
    i64 found = -1;
    auto smallest = of(0);
    for (i64 slot = s.pool_ends[pool]; slot < s.pool_ends[pool + 1]; slot++) {
      i64 k = owner[slot];
      if (k < 0 || slot_of[k] != slot || !allowed(k)) continue;
      auto v = of(k);
      if (found < 0 || v < smallest || (!(smallest < v) && k < found)) found = k, smallest = v;
    }
    return found;
  }

  template <class Allowed>
  bool any(i64 pool, Allowed allowed) const {
    return least(pool, allowed, [](i64) { return 0; }) >= 0;
  }

  template <class Allowed>
  i64 first_of(const Order &order, const Links &of, Allowed allowed) const {
    for (i64 k = order.head; k >= 0; k = of.next[k])
      if (allowed(k)) return k;
    return -1;
  }

  // `Eviction.victim`
  template <class Allowed>
  i64 choose(i64 incoming, Allowed allowed) {
    i64 pool = pool_of(incoming);
    auto by_value = [&](i64 k) { return value[k]; };
    switch (s.evict) {
      case IN_PYTHON:
        std::fill(s.allowed, s.allowed + s.layers * s.experts, 0);
        for (i64 slot = s.pool_ends[pool]; slot < s.pool_ends[pool + 1]; slot++) {
          i64 k = owner[slot];
          if (k >= 0 && slot_of[k] == slot) s.allowed[k] = allowed(k);
        }
        return ask(VICTIM, incoming, purpose);
      case NEVER_EVICT:
        return least(pool, [&](i64 k) { return inside[k] && allowed(k); }, [](i64) { return 0; });
      case FIFO:
      case LRU:
        return first_of(orders[pool], links, allowed);
      case LFU:
        return least(
            pool, [&](i64 k) { return inside[k] && allowed(k); },
            [&](i64 k) { return std::make_pair(count[k], s.oldest_first ? stamp[k] : 0); });
      case AVERAGE_SCORE: {
        if (left_until) {
          i64 found =
              least(pool, [&](i64 k) { return k < left_until && allowed(k); }, by_value);
          if (found >= 0) return found;
          i64 last = least(pool, allowed, [](i64 k) { return -k; });
          if (last < 0) return -1;
          i64 from = last / s.experts * s.experts;
          return least(pool, [&](i64 k) { return k >= from && allowed(k); }, by_value);
        }
        return least(pool, allowed, by_value);
      }
      case RECENT_SCORE:
        return least(pool, allowed, by_value);
      case WINDOW: {
        count_before(incoming);
        i64 found = first_of(orders[pool], links, allowed);
        return found >= 0 ? found : first_of(held_orders[pool], held_links, allowed);
      }
    }
    return -1;
  }

  void arrived(i64 key) {
    Order &order = orders[pool_of(key)];
    switch (s.evict) {
      case IN_PYTHON: ask(ARRIVED, key, purpose); break;
      case NEVER_EVICT: inside[key] = 1; break;
      case FIFO:
      case LRU: order.append(links, key); break;
      case LFU:
        if (!s.survive) count[key] = std::min<i64>(count[key], 1);
        inside[key] = 1, stamp[key] = ++clock;
        break;
      case WINDOW:
        count_before(key);
        counted = std::max(counted, at[key] + 1);
        inside[key] = 1;
        held_orders[pool_of(key)].append(held_links, key);
        hit(key);
        break;
    }
  }

  void left(i64 key) {
    if (s.evict == IN_PYTHON) ask(LEFT, key, purpose);
    inside[key] = 0;
    i64 pool = pool_of(key);
    if (s.evict == FIFO || s.evict == LRU || s.evict == WINDOW) orders[pool].remove(links, key);
    if (s.evict == WINDOW) held_orders[pool].remove(held_links, key);
    if (s.evict == LFU && !s.survive) count[key] = 0;
  }

  void used(i64 layer) {
    i64 base = layer * s.experts;
    Order &order = orders[s.pool_of[layer]];
    if (s.evict == IN_PYTHON) {
      ask(USED, layer);
    } else if (s.evict == LRU) {
      for (i64 e : active)
        if (links.in[base + e]) order.remove(links, base + e), order.append(links, base + e);
    } else if (s.evict == LFU) {
      for (i64 e : active) {
        count[base + e]++;
        if (inside[base + e]) stamp[base + e] = ++clock;
      }
    } else if (s.evict == WINDOW) {
      order_accesses(base);
    }
  }

  // `LowestAverageScore.observe`, `MinusRecentScore.observe`
  void observe(i64 layer) {
    const float *mean = b->mean;
    if (s.evict != AVERAGE_SCORE && s.evict != RECENT_SCORE) return;
    mean += (pass * moe_layers() + s.moe_row[layer]) * s.experts;
    double *of = &value[layer * s.experts];
    if (s.evict == RECENT_SCORE) {
      Experts order(s.experts);
      for (i64 e = 0; e < s.experts; e++) order[e] = e, of[e] *= 1 - s.smoothing;
      i64 top = std::min(s.top, s.experts);
      std::partial_sort(order.begin(), order.begin() + top, order.end(), [&](i64 x, i64 y) {
        return mean[x] != mean[y] ? mean[x] > mean[y] : x < y;
      });
      for (i64 i = 0; i < top; i++) of[order[i]] += (float)s.smoothing * mean[order[i]];
      return;
    }
    left_until = phase ? 0 : (layer + 1) * s.experts;
    i64 terms = s.window + 1, iteration = seen[layer]++;
    double *history = &scores[layer * terms * s.experts];
    for (i64 e = 0; e < s.experts; e++) history[iteration % terms * s.experts + e] = mean[e];
    for (i64 e = 0; e < s.experts; e++) of[e] = history[e];
    for (i64 t = 1; t < terms; t++)
      for (i64 e = 0; e < s.experts; e++) of[e] += history[t * s.experts + e];
    if (iteration + 1 < terms)
      for (i64 e = 0; e < s.experts; e++) of[e] *= (double)terms / (iteration + 1);
  }

  // systems.policies.evict_engines: `AccessOrder` and `_Window`
  void order_accesses(i64 base) {
    count_until(turn.size());
    for (i64 key : turn) at[key] = -1;
    turn.clear();
    const i64 *ids = chosen(base / s.experts);
    i64 places = b->rows[pass] * s.top_k;
    std::vector<char> seen_E(s.experts, 0);
    Experts ranked;
    for (i64 i = 0; i < places; i++)
      if (!seen_E[ids[i]]) seen_E[ids[i]] = 1, ranked.push_back(base + ids[i]);
    if (b->rows[pass] == 1) {
      for (i64 key : ranked)
        if (inside[key]) turn.push_back(key);
      for (i64 key : ranked)
        if (!inside[key]) turn.push_back(key);
    } else {
      turn = ranked;
    }
    for (size_t i = 0; i < turn.size(); i++) at[turn[i]] = i;
    counted = 0;
  }

  void count_before(i64 key) { count_until(at[key] < 0 ? (i64)turn.size() : at[key]); }

  void count_until(i64 end) {
    for (i64 i = counted; i < end; i++)
      if (inside[turn[i]]) hit(turn[i]);
    counted = std::max(counted, end);
  }

  void hit(i64 key) {
    auto &recent = windows[pool_of(key)];
    if ((i64)recent.size() == s.window) {
      times_in[recent.front()]--;
      recent.pop_front();
    }
    recent.push_back(key);
    times_in[key]++;
    Order &cold = orders[pool_of(key)];
    cold.remove(links, key);
    if (times_in[key] < s.hot) cold.append(links, key);
  }

  // ------------------------------------------------------------ assignments (systems)

  double best(i64 layer, i64 e) const {
    return b->best[(pass * moe_layers() + s.moe_row[layer]) * s.experts + e];
  }

  // policies.latency: ns, tokens and whether it was its layer's first, newest first
  Times measured(i64 history) const {
    i64 n = std::min<i64>(history, host_ns.values.size()), size = host_ns.values.size();
    double ns = 0, tokens = 0, all_ns = 0, all_tokens = 0;
    i64 others = 0;
    for (i64 i = 0; i < n; i++) {
      double took = host_ns.values[size - 1 - i], rows = took / host_row_ns.values[size - 1 - i];
      all_ns += took, all_tokens += rows;
      if (!host_first[size - 1 - i]) ns += took, tokens += rows, others++;
    }
    double per_token = others ? ns / tokens : all_ns / all_tokens, more = 0;
    i64 firsts = 0;
    for (i64 i = 0; i < n; i++)
      if (host_first[size - 1 - i]) {
        double took = host_ns.values[size - 1 - i], rows = took / host_row_ns.values[size - 1 - i];
        more += took - rows * per_token, firsts++;
      }
    double first = firsts ? std::max(0.0, more / firsts) : 0.0;
    return {per_token, first, device_ns.mean(history), load_ns.mean(history)};
  }

  double host_per_token(i64 history) const {
    i64 size = host_ns.values.size(), n = std::min<i64>(history, size);
    double ns = 0, tokens = 0;
    for (i64 i = 0; i < n; i++) {
      double took = host_ns.values[size - 1 - i];
      ns += took, tokens += took / host_row_ns.values[size - 1 - i];
    }
    return ns / tokens;
  }

  // `split`
  void split(Plan &plan) const {
    auto there = [&](i64 e) {
      return std::find(plan.host.begin(), plan.host.end(), e) == plan.host.end();
    };
    for (i64 e : resident)
      if (there(e)) plan.device.push_back(e);
    for (i64 e : in_flight)
      if (there(e)) plan.device.push_back(e);
    plan.device.insert(plan.device.end(), plan.load.begin(), plan.load.end());
  }

  i64 backlog() const { return std::max<i64>(0, free_at[H2D] - now); }

  Plan assign(i64 layer) {
    Plan plan;
    switch (s.assign) {
      case IN_PYTHON: {
        if (ask(ASSIGN, layer) < 0) return plan;
        const i64 *at = s.talk;
        plan.device.assign(at + 1, at + 1 + at[0]), at += 1 + at[0];
        plan.host.assign(at + 1, at + 1 + at[0]), at += 1 + at[0];
        plan.fetches = fetches_at(at);
        for (auto &fetch : plan.fetches) plan.load.push_back(fetch.key % s.experts);
        return plan;
      }
      case LOAD_ALL: plan.load = absent; break;
      case HOST_ALL: (phase ? plan.host : plan.load) = absent; break;
      case BALANCED:
      case OPTIMAL: {
        if (!phase && s.load_prompts) plan.load = absent;
        else if (!absent.empty()) link_or_host(layer, plan);
        break;
      }
      case FIDDLER: fiddler(plan); break;
      case MAKESPAN: makespan(layer, plan); return plan;
      case GREEDY: greedy(plan); break;
    }
    split(plan);
    return plan;
  }

  // `Balanced.divide` and `Optimal.divide`
  void link_or_host(i64 layer, Plan &plan) const {
    Experts queued = absent;
    bool by_rows = s.assign == BALANCED && s.by_rows;
    std::sort(queued.begin(), queued.end(), [&](i64 x, i64 y) {
      double bx = best(layer, x), by = best(layer, y);
      i64 rx = rows_E[x], ry = rows_E[y];
      if (by_rows && rx != ry) return rx > ry;
      if (bx != by) return bx > by;
      return rx != ry ? rx > ry : x < y;
    });
    double free_ns = s.from_backlog ? backlog() : 0, each_load = load_ns.mean(s.history);
    double each_host = (by_rows ? host_row_ns : host_ns).mean(s.history);
    i64 n = queued.size();
    if (s.assign == OPTIMAL) {
      std::vector<double> ends(n + 1);
      for (i64 loads = 0; loads <= n; loads++)
        ends[loads] = std::max(loads ? free_ns + loads * each_load : 0.0, (n - loads) * each_host);
      double least_ns = *std::min_element(ends.begin(), ends.end());
      i64 loads = n;
      while (!(ends[loads] <= least_ns + SAME_NS)) loads--;
      plan.load.assign(queued.begin(), queued.begin() + loads);
      plan.host.assign(queued.rbegin(), queued.rend() - loads);
      return;
    }
    double t_load = free_ns, t_cpu = 0;
    for (i64 l = 0, r = n - 1; l <= r;) {
      bool equal = std::fabs(t_load - t_cpu) <= SAME_NS;
      if (equal ? !s.tie_host : t_load < t_cpu) {
        plan.load.push_back(queued[l++]);
        t_load += each_load;
      } else {
        plan.host.push_back(queued[r]);
        t_cpu += each_host * (by_rows ? rows_E[queued[r]] : 1);
        r--;
      }
    }
  }

  // systems.fiddler: `least_sum`, `least_max`
  void fiddler(Plan &plan) const {
    plan.keep = false;
    double token = host_per_token(s.history), device = device_ns.mean(s.history);
    double one_load = load_ns.mean(s.history);
    std::vector<char> is_absent(s.experts, 0), on_host_E(s.experts, 0);
    for (i64 e : absent) is_absent[e] = 1;
    if (s.minimise_sum) {
      for (i64 e : active)
        if (rows_E[e] * token < device + (is_absent[e] ? one_load : 0)) plan.host.push_back(e);
    } else {
      Experts ranked = active, here, away;
      std::stable_sort(ranked.begin(), ranked.end(),
                       [&](i64 x, i64 y) { return rows_E[x] < rows_E[y]; });
      for (i64 e : ranked) (is_absent[e] ? away : here).push_back(e);
      double least_ns = INFINITY;
      i64 all = ranked.size(), cut_i = 0, cut_j = 0, more = 0;
      for (i64 i = 0; i <= (i64)here.size(); i++) {
        i64 others = 0;
        for (i64 j = 0; j <= (i64)away.size(); j++) {
          double there = (all - i - j) * device + ((i64)away.size() - j) * one_load;
          double larger = std::max((more + others) * token, there);
          if (larger < least_ns) least_ns = larger, cut_i = i, cut_j = j;
          if (j < (i64)away.size()) others += rows_E[away[j]];
        }
        if (i < (i64)here.size()) more += rows_E[here[i]];
      }
      plan.host.assign(here.begin(), here.begin() + cut_i);
      plan.host.insert(plan.host.end(), away.begin(), away.begin() + cut_j);
    }
    for (i64 e : plan.host) on_host_E[e] = 1;
    for (i64 e : absent)
      if (!on_host_E[e]) plan.load.push_back(e);
  }

  // systems.hybrimoe.MakespanSchedule
  void makespan(i64 layer, Plan &plan) const {
    Experts order;
    Experts loads[3];
    const Experts *kinds[3] = {&resident, &in_flight, &absent};
    for (int kind = 0; kind < 3; kind++) {
      Experts sorted = *kinds[kind];
      std::sort(sorted.begin(), sorted.end(), [&](i64 x, i64 y) {
        if (rows_E[x] != rows_E[y]) return rows_E[x] > rows_E[y];
        double bx = best(layer, x), by = best(layer, y);
        return bx != by ? bx > by : x < y;
      });
      for (i64 e : sorted) order.push_back(e), loads[kind].push_back(rows_E[e]);
    }
    double link_ns = in_flight.empty() && absent.empty() ? 0 : backlog();
    Schedule found = schedule(loads[0], loads[2], measured(s.history), loads[1], link_ns);
    for (i64 n : found.gpu) plan.device.push_back(order[n]);
    for (i64 n : found.cpu) plan.host.push_back(order[n]);
    for (i64 n : found.pcie) plan.load.push_back(order[n]);
    if (s.fill)
      for (i64 e : plan.host)
        if (std::find(absent.begin(), absent.end(), e) != absent.end()) plan.load.push_back(e);
  }

  // systems.dali: `greedy`
  void greedy(Plan &plan) const {
    Times times = measured(s.history);
    i64 n = active.size();
    std::vector<double> device(n), host(n);
    Experts order(n);
    std::vector<char> is_absent(s.experts, 0);
    for (i64 e : absent) is_absent[e] = 1;
    for (i64 i = 0; i < n; i++) {
      device[i] = times.gpu + times.pcie * (is_absent[active[i]] ? 1 : 0);
      host[i] = times.token * rows_E[active[i]], order[i] = i;
    }
    std::stable_sort(order.begin(), order.end(), [&](i64 x, i64 y) {
      return std::fabs(device[x] - host[x]) > std::fabs(device[y] - host[y]);
    });
    double device_end = 0, host_end = 0;
    for (i64 i : order) {
      if (device_end + device[i] <= host_end + host[i] + SAME_NS) {
        device_end += device[i];
        if (is_absent[active[i]]) plan.load.push_back(active[i]);
      } else {
        host_end += host[i];
        plan.host.push_back(active[i]);
      }
    }
  }

  // ------------------------------------------------------------ prefetches (systems, engine)

  const i64 *wishes(i64 layer, i64 ahead, bool rows = false) const {
    i64 row = (pass * moe_layers() + s.moe_row[layer]) * b->ahead + ahead;
    return (rows ? b->wished_rows : b->wished) + row * b->wishes;
  }

  // `Prefetching.prefetch`
  std::vector<Fetch> prefetch(i64 layer, bool predicted) {
    std::vector<Fetch> found;
    i64 next = s.next_moe[layer];
    if (s.prefetch == IN_PYTHON) return ask(FETCH, layer, predicted) < 0 ? found : fetches_at(s.talk);
    if (!phase && s.whole_prompt_layers)
      for (i64 e = 0; e < s.experts; e++) found.push_back({next * s.experts + e});
    if (!predicted) return found;
    if (s.prefetch == IMPACT) return impact(layer);
    const i64 *wished = wishes(layer, 0);
    for (i64 i = 0; i < b->wishes && wished[i] >= 0; i++) {
      i64 key = next * s.experts + wished[i];
      if (s.prefetch == ABSENT_WISHES && (held[key] || (i64)found.size() == s.fetches)) continue;
      found.push_back({key});
    }
    return found;
  }

  // systems.hybrimoe.ImpactDriven
  std::vector<Fetch> impact(i64 layer) {
    Times times = measured(s.impact_history);
    std::vector<LaterLayer> later;
    i64 next = layer;
    for (i64 a = 0; a < b->ahead && (next = s.next_moe[next]) >= 0; a++) {
      LaterLayer one(next, times);
      const i64 *experts = wishes(layer, a), *rows = wishes(layer, a, true);
      for (i64 i = 0; i < b->wishes && experts[i] >= 0; i++) {
        bool here = held[next * s.experts + experts[i]];
        (here ? one.cached_rows : one.absent_rows).push_back(rows[i]);
        if (!here) one.absent.push_back(experts[i]);
      }
      one.weigh();
      later.push_back(one);
    }
    std::vector<Fetch> found;
    for (i64 i = 0; i < s.fetches; i++) {
      double most = 0;
      for (auto &one : later) most = std::max(most, one.impact);
      LaterLayer *taken = nullptr;
      for (auto &one : later)
        if (!taken && one.impact >= most - SAME_NS) taken = &one;
      if (!taken || taken->impact <= 0) break;
      i64 of = taken->layer;
      found.push_back({of * s.experts + taken->take()});
    }
    return found;
  }

  // `Transfers.speculate` and `SimulatedMachine.prefetch`
  void speculate(const std::vector<Fetch> &fetches, i64 since = 0) {
    std::vector<i64> dropped;
    if (b->notes)
      for (auto &entry : queue) dropped.push_back(entry.key);
    // Fetches that are new begin once their prediction has ended; the others keep their instant.
    std::unordered_map<i64, i64> waited;
    bool waits = since > now || !waiting_since.empty();
    for (i64 key : wanted) {
      auto at = waiting_since.find(key);
      if (waits) waited[key] = at == waiting_since.end() ? 0 : at->second;
      wanted_now[key] = 0;
    }
    if (waits) waiting_since.clear();
    wanted.clear(), wishes_now.clear(), queue.clear();
    for (auto &fetch : fetches) {  // of two of one expert, the first's place and the last's options
      i64 key = fetch.key, from = now;
      wishes_now[key] = fetch;
      if (wanted_now[key]) continue;
      wanted_now[key] = 1, wanted.push_back(key);
      if (waits) {
        auto at = waited.find(key);
        i64 ns = at == waited.end() ? since : at->second;
        if (ns > now) waiting_since[key] = ns;
        from = std::max(now, ns);
      }
      if (!held[key]) queue.push_back({key, from});
    }
    for (i64 key : dropped)
      if (!(wanted_now[key] && !held[key])) note_cancelled(key);
  }

  void note_cancelled(i64 key) {
    events.push_back({CANCEL, now, key / s.experts, key % s.experts, noted});
  }

  // `SimulatedMachine.cancel`
  void cancel(i64 layer) {
    std::deque<Queued> kept;
    for (auto &entry : queue) {
      if (entry.key / s.experts > layer) kept.push_back(entry);
      else if (b->notes) note_cancelled(entry.key);
    }
    queue.swap(kept);
  }

  // `Transfers.commit`
  void commit(const std::vector<Fetch> &fetches) {
    std::vector<Fetch> lacking;
    for (auto &fetch : fetches)
      if (!held[fetch.key]) lacking.push_back(fetch);
    for (auto &fetch : lacking) {
      After done;
      if (held[fetch.key] || !demand_when_free(fetch, true, COMMITTED, done)) continue;
      started[fetch.key / s.experts].push_back(fetch.key % s.experts);
    }
  }

  // `Tally.ask`: speculative requests replace earlier ones, committed ones add up
  void note_asked(const std::vector<Fetch> &fetches, i64 next) {
    std::vector<char> seen_layers(s.layers, 0);
    auto begin = [&](i64 layer) {
      if (!seen_layers[layer] && !(s.commits && !asked[layer].empty()))
        asked[layer].assign(s.experts, 0);
      seen_layers[layer] = 1;
    };
    begin(next);
    for (auto &fetch : fetches) {
      begin(fetch.key / s.experts);
      asked[fetch.key / s.experts][fetch.key % s.experts] = 1;
    }
  }

  // `Prefetches.open`
  void open() {
    std::vector<Fetch> opening;
    if (s.prefetch == IN_PYTHON && ask(OPEN, phase) >= 0) opening = fetches_at(s.talk);
    if (opening.empty() && phase) return;
    if (s.commits) commit(opening);
    else speculate(opening);
    note_asked(opening, first_moe);
  }

  // ------------------------------------------------------------ a layer (engine.loop)

  const i64 *chosen(i64 layer) const {
    return b->ids + b->ids_at[pass] + s.moe_row[layer] * b->rows[pass] * s.top_k;
  }

  void moe(i64 layer) {
    i64 base = layer * s.experts, rows = b->rows[pass], next = s.next_moe[layer];
    wait(common(GATE, layer, GATE), DEVICE, BY_DEVICE);
    cancel(layer);

    // `_decide`
    if (s.asks_uploads) take_uploaded();
    observe(layer);
    const i64 *ids = chosen(layer);
    rows_E.assign(s.experts, 0), own_E.assign(s.experts, 0);
    for (i64 i = 0; i < rows * s.top_k; i++) rows_E[ids[i]]++, own_E[ids[i]] = 1;
    top_E = own_E;
    if (s.asks_layers && ask(LAYER, layer, pass) >= 0 && s.asks_routing) {
      std::copy(s.talk, s.talk + s.experts, rows_E.begin());
      for (i64 e = 0; e < s.experts; e++) top_E[e] = s.talk[s.experts + e];
    }
    active.clear(), resident.clear(), in_flight.clear(), absent.clear();
    for (i64 e = 0; e < s.experts; e++) {
      if (!rows_E[e]) continue;
      active.push_back(e);
      (ready[base + e] <= now ? resident : held[base + e] ? in_flight : absent).push_back(e);
    }
    Experts coming = in_flight, missed = absent, here = resident;
    Plan plan = assign(layer);
    if (failed) return;
    if (plan.fetches.empty())
      for (i64 e : plan.load) plan.fetches.push_back({base + e, plan.keep});
    for (i64 e : plan.device) pinned[base + e] = 1;
    used(layer);
    now += s.decision_ns;
    start_queued();
    std::vector<char> is_ready(s.experts, 0), on_device(s.experts, 0);
    for (i64 e : here) is_ready[e] = 1;
    for (i64 e : plan.device) on_device[e] = 1;
    i64 leading = 0;
    while (leading < (i64)plan.device.size() && is_ready[plan.device[leading]]) leading++;

    // `_load`
    std::vector<i64> arrivals(s.experts, -1);
    for (i64 e : coming)
      if (on_device[e]) arrivals[e] = arrival_of(base + e);
    size_t loaded = 0;
    for (; loaded < plan.load.size(); loaded++) {
      i64 e = plan.load[loaded];
      After after;
      if (!claim(plan.fetches[loaded], now, false, after)) break;
      arrivals[e] = load(base + e, after).end;
    }

    // `_compute_on_host`, `_compute_here`, `_compute_shared`
    After due;
    if (s.host_together && !plan.host.empty())
      due = on_host(layer, plan.host.data(), plan.host.size());
    else
      for (i64 e : plan.host) due = on_host(layer, &e, 1);
    std::vector<std::pair<i64, After>> reads;
    if (leading) {
      After done = experts(layer, plan.device.data(), leading, {});
      for (i64 i = 0; i < leading; i++) reads.emplace_back(base + plan.device[i], done);
    }
    if (s.has_shared) common(SHARED, layer, SHARED);

    // predictions and prefetches
    bool predicts = s.has_predictor && next >= 0 && phase, background = false;
    i64 predicted_end = 0;
    int predicted_on = DEVICE;
    if (s.asks_predictions) {
      predicted_on = ask(FORESEE, layer);
      predicts = predicted_on >= 0;
      if (predicts) {
        background = s.talk[4];
        predicted_end = predicted(layer, predicted_on);
      }
    } else if (predicts) {
      i64 later = 0;
      for (i64 at_layer = layer; later < b->ahead && (at_layer = s.next_moe[at_layer]) >= 0;) later++;
      predicted_end = common(FORECAST, layer, 5 + later);
    }
    bool asks = s.prefetch != NO_PREFETCH && (next >= 0 || predicts);
    i64 after = next >= 0 ? next : first_moe;  // predictions of the last layer are of the next pass
    int cause = cause_of(FORECAST, predicted_on);
    if (asks && !s.commits) {
      if (predicts && !background) wait(predicted_end, predicted_on, cause);
      std::vector<Fetch> found = prefetch(layer, predicts);
      speculate(found, predicted_end);
      note_asked(found, after);
    }

    // `_compute_arrivals`
    std::deque<i64> due_here;
    for (size_t i = leading; i < plan.device.size(); i++) {
      i64 e = plan.device[i];
      if (arrivals[e] >= 0 || is_ready[e]) due_here.push_back(e);
    }
    auto compute = [&](i64 e) {
      After after;
      if (arrivals[e] >= 0) after = {arrivals[e], BY_LOAD};
      return experts(layer, &e, 1, after);
    };
    if (loaded == plan.load.size()) {
      for (i64 e : due_here) reads.emplace_back(base + e, compute(e));
      computed_by(reads);
    } else {  // `_compute_in_turn`
      computed_by(reads);
      while (!failed && (!due_here.empty() || loaded < plan.load.size())) {
        while (loaded < plan.load.size()) {
          i64 e = plan.load[loaded];
          After done;
          if (!demand_when_free(plan.fetches[loaded], due_here.empty(), NEEDED, done)) break;
          loaded++;
          if (on_device[e]) arrivals[e] = done.end, due_here.push_back(e);
        }
        if (due_here.empty()) continue;
        i64 e = due_here.front();
        due_here.pop_front();
        computed_by({{base + e, compute(e)}});
      }
    }
    common(COMBINE, layer, COMBINE, due);
    drop_unused(base);
    if (asks && s.commits) {
      if (predicts) wait(predicted_end, predicted_on, cause);
      std::vector<Fetch> found = prefetch(layer, predicts);
      commit(found);
      note_asked(found, after);
    }
    close(layer, missed, here, coming, plan);
    if (s.asks_uploads && ask(MISSED, layer) >= 0) upload(fetches_at(s.talk));
  }

  // `Transfers.computed`
  void computed_by(const std::vector<std::pair<i64, After>> &reads) {
    for (auto &[key, done] : reads) reader[key] = done.end, computed[key] = 1;
    if (passing_count)
      for (auto &[key, done] : reads) let_go(key, done);
  }

  // `Transfers.drop_unused`
  void drop_unused(i64 base) {
    if (!passing_count) return;
    for (i64 key = base; key < base + s.experts; key++)
      if (passing[key]) let_go(key, {arrival[key], BY_LOAD});
  }

  // `Engine._close`, `Tally.experts` and `Tally.prefetches`
  void close(i64 layer, const Experts &missed, const Experts &here, const Experts &coming,
             const Plan &plan) {
    i64 base = layer * s.experts, *c = counts[phase];
    for (i64 e : active) pinned[base + e] = computed[base + e] = 0;
    auto is_in = [](const Experts &list, i64 e) {
      return std::find(list.begin(), list.end(), e) != list.end();
    };
    i64 lacking = missed.size();
    c[ACTIVE] += active.size(), c[HITS] += here.size(), c[IN_FLIGHT] += coming.size();
    c[BEGUN] += here.size() + coming.size();
    for (i64 e : plan.host) {
      c[ON_HOST]++;
      if (is_in(missed, e)) lacking--;
      else if (is_in(coming, e)) c[IN_FLIGHT]--;
      else c[HITS]--, c[HOST_RESIDENT]++;
    }
    c[LOADS] += lacking;
    if ((i64)plan.load.size() > lacking)
      for (i64 e : plan.load) c[UNCHOSEN] += !rows_E[e];

    i64 rows = b->rows[pass], used_at = pass * moe_layers() + s.moe_row[layer];
    b->used_count[used_at] = active.size();
    for (size_t i = 0; i < active.size(); i++) b->used[used_at * b->most + i] = base + active[i];

    Experts began;
    began.swap(started[layer]);
    std::vector<char> wish;
    wish.swap(asked[layer]);
    c[PREFETCHED] += began.size();
    std::sort(began.begin(), began.end());
    began.erase(std::unique(began.begin(), began.end()), began.end());
    for (i64 e : began) {
      c[PREFETCHED_ACTIVE] += own_E[e], c[PREFETCHED_TOP_SCORE] += top_E[e];
      c[PREFETCHED_USED] += rows_E[e] && !is_in(missed, e);
    }
    if (!phase || std::find(wish.begin(), wish.end(), 1) == wish.end()) return;
    const i64 *ids = chosen(layer);
    for (i64 t = 0; t < rows; t++) {
      i64 right = 0;
      for (i64 k = 0; k < s.top_k; k++) right += wish[ids[t * s.top_k + k]];
      c[ASKED]++, c[ASKED_ANY] += right > 0, c[ASKED_ALL] += right == s.top_k;
    }
  }
};

// `Engine.steps`; 0, or one more than the layer for whose expert no other can be evicted.
i64 Replay::run(const Batch &batch) {
  b = &batch;
  spans.clear(), named.clear(), events.clear(), alike.clear();
  first_moe = 0;
  while (s.moe_row[first_moe] < 0) first_moe++;
  for (pass = 0; pass < batch.passes && !failed; pass++) {
    if (pass <= 1) known[0].clear(), known[1].clear();
    phase = pass > 0, noted = pass;
    open();
    for (i64 layer = 0; layer < s.layers && !failed; layer++) {
      common(ATTEND, layer, ATTEND);
      if (s.moe_row[layer] >= 0) moe(layer);
      else common(DENSE, layer, DENSE);
    }
    wait(common(HEAD, -1, HEAD), DEVICE, BY_DEVICE);
    batch.ends[pass] = now;
    noted = pass + 1;
    if (s.asks_uploads && ask(PASS_ENDS, phase) >= 0) upload(fetches_at(s.talk));
  }
  return failed;
}

extern "C" {

i64 size_of_setup() { return sizeof(Setup); }
i64 size_of_batch() { return sizeof(Batch); }
void *replay_new(const Setup *setup) { return new Replay(*setup); }
void replay_delete(void *replay) { delete (Replay *)replay; }
void replay_place(void *replay, const i64 *keys, i64 n) {
  for (i64 i = 0; i < n; i++) ((Replay *)replay)->place(keys[i]);
}
i64 replay_run(void *replay, const Batch *batch) { return ((Replay *)replay)->run(*batch); }

// Where a part of the results is, and how many entries of how many numbers it has.
const void *replay_part(void *replay, i64 part, i64 *length) {
  Replay &r = *(Replay *)replay;
  switch (part) {
    case 0: *length = r.spans.size(); return r.spans.data();
    case 1: *length = r.named.size(); return r.named.data();
    case 2: *length = r.events.size(); return r.events.data();
    case 3: *length = r.alike.size(); return r.alike.data();
    case 4: *length = 2 * LANES; return r.busy;
    case 5: *length = 2 * CAUSES; return r.stall;
    case 6: *length = 2 * CAUSES; return r.stalled;
    case 7: *length = 2 * LANES; return r.moved;
    case 8: *length = 2 * COUNTS; return r.counts;
    case 9: *length = 1; return &r.now;
    case 10: *length = 1; return &r.slots_used;
  }
  return nullptr;
}

}  // extern "C"
