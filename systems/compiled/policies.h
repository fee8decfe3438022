// The policies that are compiled: evictions, assignments and prefetches.

#pragma once

#include "parts.h"

struct Policies : State {
  using State::State;

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
    mean += (pass * moe_layers + s.moe_row[layer]) * s.experts;
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
    return b->best[(pass * moe_layers + s.moe_row[layer]) * s.experts + e];
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
        plan.fetches = fetches_at(at), at += 1 + 3 * at[0];
        plan.again.assign(at + 1, at + 1 + at[0]);
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

  struct Wish { i64 expert, tokens; double score; };

  // The experts that the rows are predicted to choose in a later layer, best first.
  //
  // `systems.hybrimoe.expected`, `systems.dali.most_tokens`: by tokens, then by the highest score.
  // `systems.smoe.TopScorePrefetch`: those that score a band above the best other one, by score.
  // `policies.prefetch.ranked`: all, by the highest score.
  std::vector<Wish> wishes(i64 layer, i64 ahead) const {
    i64 row = ((pass - 1) * b->ahead + ahead) * moe_layers + s.moe_row[layer];
    const double *predicted = b->predicted + row * b->texts * s.experts;
    std::vector<Wish> of(s.experts, Wish{0, 0, -INFINITY});
    for (i64 e = 0; e < s.experts; e++) of[e].expert = e;
    Experts order(s.experts);
    i64 k = s.prefetch == NEXT_GATE ? s.experts : s.top_k;
    for (i64 t = 0; t < b->texts; t++) {
      const double *score = predicted + t * s.experts;
      for (i64 e = 0; e < s.experts; e++) order[e] = e;
      i64 read = std::min(k + 1, s.experts);
      std::partial_sort(order.begin(), order.begin() + read, order.end(), [&](i64 x, i64 y) {
        return score[x] != score[y] ? score[x] > score[y] : x < y;
      });
      double least_score = -INFINITY;
      if (s.prefetch == TOP_SCORES) least_score = k < read ? s.band * score[order[k]] : 0;
      for (i64 i = 0; i < k && score[order[i]] >= least_score; i++) {
        of[order[i]].tokens++;
        if (s.prefetch == TOP_SCORES)
          of[order[i]].score = std::max(of[order[i]].score, score[order[i]]);
      }
      if (s.prefetch != TOP_SCORES)
        for (i64 e = 0; e < s.experts; e++) of[e].score = std::max(of[e].score, score[e]);
    }
    bool by_tokens = s.prefetch == MOST_TOKENS || s.prefetch == IMPACT;
    if (b->worth)
      for (i64 e = 0; e < s.experts; e++) of[e].score = b->worth[row * s.experts + e];
    of.erase(std::remove_if(of.begin(), of.end(), [](const Wish &w) { return !w.tokens; }),
             of.end());
    std::sort(of.begin(), of.end(), [&](const Wish &x, const Wish &y) {
      if (by_tokens && x.tokens != y.tokens) return x.tokens > y.tokens;
      return x.score != y.score ? x.score > y.score : x.expert < y.expert;
    });
    return of;
  }

  // `Prefetching.prefetch`
  std::vector<Fetch> prefetch(i64 layer, bool predicted) {
    std::vector<Fetch> found;
    i64 next = s.next_moe[layer];
    if (s.prefetch == IN_PYTHON)
      return ask(FETCH, layer, predicted) < 0 ? found : fetches_at(s.talk);
    if (!phase && s.whole_prompt_layers)
      for (i64 e = 0; e < s.experts; e++) found.push_back({next * s.experts + e});
    if (!predicted) return found;
    if (s.prefetch == IMPACT) return impact(layer);
    if (s.next_only && next != layer + 1) return found;
    for (const Wish &wish : wishes(layer, 0)) {
      i64 key = next * s.experts + wish.expert;
      bool full = s.prefetch != TOP_SCORES && (i64)found.size() == s.fetches;
      if (!full && !(s.prefetch == MOST_TOKENS && held[key])) found.push_back({key});
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
      for (const Wish &wish : wishes(layer, a)) {
        bool here = held[next * s.experts + wish.expert];
        (here ? one.cached_rows : one.absent_rows).push_back(wish.tokens);
        if (!here) one.absent.push_back(wish.expert);
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
};
