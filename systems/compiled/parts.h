// Data of a replay: what Python passes in and reads, and the state of a run.

#pragma once

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
  FORESEE, PASS
};
// Decisions that are asked in Python have the number 0.
enum AssignKind { IN_PYTHON, LOAD_ALL, HOST_ALL, BALANCED, OPTIMAL, FIDDLER, MAKESPAN, GREEDY };
enum EvictKind { NEVER_EVICT = 1, NO_VICTIM, FIFO, LRU, LFU, AVERAGE_SCORE, RECENT_SCORE, WINDOW };
enum PrefetchKind { NO_PREFETCH = 1, TOP_SCORES, NEXT_GATE, MOST_TOKENS, IMPACT };
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
  i64 fetches, impact_history, whole_prompt_layers, next_only, commits;            // prefetch
  double band;                                                                     // prefetch
  i64 asks_layers, asks_routing, asks_growth, asks_predictions, asks_uploads;
  i64 most_queued, transient;
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
  i64 passes, texts, ahead;
  i64 notes;               // how many passes' spans and events are kept
  i64 most_spans;          // how many there may be before others are dropped
  const i64 *rows;         // [passes]
  const i64 *prices;       // [passes, 6 + ahead, 3]: first launch, submission, time on the lane
  const double *device_products, *host_products;  // [rows + 1] an expert's by its rows
  const i64 *return_ns;    // [rows + 1] the host's output by its rows
  const i64 *ids;          // the chosen experts [MoE layers, rows, k] of each pass
  const i64 *ids_at;       // [passes] where each pass begins
  const float *best, *mean;  // [passes, MoE layers, E] over rows; null if not read
  const double *predicted;   // [decoded tokens, ahead, MoE layers, texts, E]; null if not read
  const double *worth;       // [decoded tokens, ahead, MoE layers, E]: in place of highest scores
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
  Experts device, host, load, again;
  std::vector<Fetch> fetches;
  bool keep = true;
};

// The state of a run: the clock, the slots, the policies and the layer at hand.
struct State {
  std::vector<Span> spans;
  std::vector<Named> named;
  std::vector<Event> events;
  std::vector<Computed> alike;
  i64 now = 0, busy[2][LANES] = {}, stall[2][CAUSES] = {}, stalled[2][CAUSES] = {};
  i64 moved[2][LANES] = {}, counts[2][COUNTS] = {}, slots_used = 0;

  Setup s;
  const Batch *b = nullptr;
  i64 first_moe = 0, moe_layers = 0, pass = 0, phase = 0;
  i64 noted = 0;  // the pass of events: after its end, the next one
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
  Experts unheard;  // keys of uploads of which the eviction has not heard, in their order
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

  // The gate's choice [rows, k] in a layer of the pass.
  const i64 *chosen(i64 layer) const {
    return b->ids + b->ids_at[pass] + s.moe_row[layer] * b->rows[pass] * s.top_k;
  }

  i64 pool_of(i64 key) const { return s.pool_of[key / s.experts]; }
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

  explicit State(const Setup &setup) : s(setup) {
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
    add_host_cost(s.host_estimate, 1, false);
    orders.resize(s.pools), links = Links(keys);
    count.assign(keys, 0), stamp.assign(keys, 0), inside.assign(keys, 0);
    value.assign(keys, 0);
    if (s.evict == AVERAGE_SCORE) scores.assign(s.layers * (s.window + 1) * s.experts, 0);
    seen.assign(s.layers, 0);
    held_orders.resize(s.pools), held_links = Links(keys);
    while (s.moe_row[first_moe] < 0) first_moe++;
    for (i64 l = 0; l < s.layers; l++) moe_layers += s.moe_row[l] >= 0;
    windows.resize(s.pools), times_in.assign(keys, 0), at.assign(keys, -1);
  }

  void add_host_cost(double took, double rows, bool first) {
    host_ns.add(took), host_row_ns.add(took / rows), host_first.push_back(first);
    if ((i64)host_first.size() > COSTS_KEPT) host_first.pop_front();
  }
};
