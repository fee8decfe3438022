// Replays recorded routing on the simulated machine, as the engine in Python does.
//
// The engine in Python is the definition; this file repeats it, bit for bit and span for span
// (tests/systems/compiled).  Functions name what they repeat.  Times are integer nanoseconds.
// Floating-point sums have the same order as in Python, so the compiler must not contract or
// rearrange them (-ffp-contract=off, no -ffast-math).
//
//   parts.h      what Python passes in and reads, and the state of a run
//   policies.h   the policies of twins.py
//   replay.cpp   the clock, the slots and a layer: Engine, Transfers, ExpertCache, Machine
//
// Decisions that have no twin here are asked in Python, once a layer or a slot (`Ask`).
//
// Not repeated, and refused in twins.py: experts on the disk, non-expert weights on the host,
// records in several forms, routing ahead, deferred outputs, prefetches in chunks.

#include "policies.h"

class Replay : public Policies {
 public:
  using Policies::Policies;

  // engine.transfers._place
  void place(i64 key) {
    claim_slot(key, -1), holding++;
    if (s.evict != NEVER_EVICT && s.evict != IN_PYTHON) arrived(key);
    ready[key] = 0;
  }

  i64 run(const Batch &batch);
  void compact();

 private:
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
    add_host_cost((double)(span.end - span.start) / n, rows_E[which[0]], layer != host_layer);
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

  // `Transfers.again`: the record is copied once more
  After again(i64 key) {
    i64 since = now + s.copy_submit_ns;
    now += s.copy_submit_ns;
    start_queued();
    Span &span = place(LOAD, H2D, key / s.experts, since, s.record_ns, {}, now, s.record_bytes);
    span.experts = 1;
    After done{span.end, BY_LOAD};
    named.push_back({key % s.experts, 0});
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
      if (noted < b->notes)
        events.push_back({EVICT, at_ns, victim / s.experts, victim % s.experts, noted});
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

  // ------------------------------------------------------------ prefetches (engine)

  // `Transfers.speculate` and `SimulatedMachine.prefetch`
  void speculate(const std::vector<Fetch> &fetches, i64 since = 0) {
    std::vector<i64> dropped;
    if (noted < b->notes)
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
      else if (noted < b->notes) note_cancelled(entry.key);
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

    for (i64 e : plan.again) {
      After copied = again(base + e);
      if (arrivals[e] >= 0) arrivals[e] = copied.end;
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
      for (i64 l = layer; later < b->ahead && (l = s.next_moe[l]) >= 0;) later++;
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

    i64 rows = b->rows[pass], used_at = pass * moe_layers + s.moe_row[layer];
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

// Drops the spans without a reader: all but those to keep, one of each size, and those not ended.
void Replay::compact() {
  std::vector<char> read(spans.size(), 0);
  for (auto &one : alike) read[one.span] = 1;
  std::vector<Span> kept;
  std::vector<Named> names;
  std::vector<i64> place_of(spans.size(), -1);
  for (size_t i = 0; i < spans.size(); i++) {
    Span span = spans[i];
    if (!read[i] && span.pass >= b->notes && span.end <= now) continue;
    place_of[i] = kept.size();
    i64 first = span.first;
    if (span.experts) span.first = names.size();
    for (i64 n = 0; n < span.experts; n++) names.push_back(named[first + n]);
    kept.push_back(span);
  }
  for (auto &one : alike) one.span = place_of[one.span];
  spans.swap(kept), named.swap(names);
}

// `Engine.steps`; 0, or one more than the layer for whose expert no other can be evicted.
i64 Replay::run(const Batch &batch) {
  b = &batch;
  spans.clear(), named.clear(), events.clear(), alike.clear();
  for (pass = 0; pass < batch.passes && !failed; pass++) {
    if (pass <= 1) known[0].clear(), known[1].clear();
    phase = pass > 0, noted = pass;
    ask(PASS, pass, batch.passes);
    open();
    for (i64 layer = 0; layer < s.layers && !failed; layer++) {
      common(ATTEND, layer, ATTEND);
      if (s.moe_row[layer] >= 0) moe(layer);
      else common(DENSE, layer, DENSE);
    }
    wait(common(HEAD, -1, HEAD), DEVICE, BY_DEVICE);
    batch.ends[pass] = now;
    noted = pass + 1;
    if ((i64)spans.size() > batch.most_spans) compact();
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
