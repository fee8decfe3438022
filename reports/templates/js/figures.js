// Charts of the shown tables; a section without charts is omitted.
const joined = (table, rows) => rows.filter((row) => !row.missing).map((row) => {
  const flat = { ...row, table: table.title, batch: table.batch, short: row.line + (row.alpha === null ? "" : ` α=${row.alpha}`) };
  for (const [key, value] of Object.entries(row.v)) {
    flat[key] = value.mean;
    if (value.sure && value.low > 0) [flat[`${key}_low`], flat[`${key}_high`]] = [value.low, value.high];
  }
  if (flat.bound_ratio) flat.least = flat.tpot_ms / flat.bound_ratio;
  return flat;
});
// Main tables, and if the box is checked also those that are not comparable with them.
const main = (found) => found.filter((table) => !table.reason);
// One row per system, with its usual α; changed decisions only if the box is checked.
const chosen = (table) => joined(table, [...lines(table, byId("variants").checked).values()].sort((a, b) => a.rank - b.rank));
// Marks the Pareto front: rows that no other competitor beats in both speed and accuracy.
const markFront = (rows, measure) => {
  const less = figureOf[measure].better === "less" ? (a, b) => a < b : (a, b) => a > b;
  let best = null;
  for (const row of rows.toSorted((a, b) => a.tpot_ms - b.tpot_ms || (less(a[measure], b[measure]) ? -1 : 1))) {
    row.front = !row.reference && (best === null || less(row[measure], best));
    if (row.front) best = row[measure];
  }
  return rows;
};
const opens = (found) => (datum) => {
  const table = found.find((one) => one.index === datum.t);
  const row = table?.rows.find((one) => one.system === datum.system);
  if (row) detail(table, row);
};
const label = (table) => (table.reason ? table.title : table.place);

// Lines over batch, α or capacity, without lines of a single point.
const overs = (found, over, name = `over-${over}`) => {
  const group = { batch: "overBatch", ratio: "overRatio" }[over];
  const groups = new Map();
  for (const table of found) {
    const key = group ? table[group] : table.index;
    groups.set(key, [...(groups.get(key) ?? []), table]);
  }
  return [...groups.values()].map((all) => {
    // Of several tables of one batch, which differ in the number of prompts, take the one with most systems.
    const tables = over !== "batch" ? all : all.filter((table) => table === all.filter((one) => one.batch === table.batch)
      .sort((a, b) => b.rows.length - a.rows.length)[0]);
    const taken = (table) => over !== "alpha" ? [...lines(table, over === "ratio" || byId("variants").checked).values()]
      : table.rows.filter((row) => !row.missing && (byId("variants").checked || !Object.keys(row.changes).length));
    const rows = tables.flatMap((table) => joined(table, taken(table))).filter((row) => row[over] !== null && (over !== "ratio" || !row.reference));
    const alphas = new Map();
    for (const row of rows) alphas.set(row.line, (alphas.get(row.line) ?? new Set()).add(row.alpha));
    const named = rows.map((row) => ({ ...row, line: over === "alpha" || alphas.get(row.line).size === 1 ? row.line : row.system }));
    const at = new Map();
    for (const row of named) at.set(row.line, (at.get(row.line) ?? new Set()).add(row[over]));
    const kept = named.filter((row) => at.get(row.line).size > 1);
    const title = over === "alpha" ? label(tables[0]) : over === "batch" ? tables[0].where : `${tables[0].where}, batch ${tables[0].batch}`;
    return { name, title: `${title}, ${tables[0].model}`, rows: kept, click: opens(found) };
  }).filter((one) => one.rows.length);
};

const trades = (measure) => (found) => main(found).map((table) => {
  const rows = joined(table, table.rows).filter((row) => row[measure] !== undefined && row.tpot_ms !== undefined && (byId("variants").checked || !Object.keys(row.changes).length));
  const values = new Set(rows.map((row) => row[measure]));
  return { name: `trade-${measure}`, title: label(table), rows: values.size > 1 ? markFront(rows, measure) : [], click: opens(found) };
}).filter((one) => one.rows.length > 1);

const times = (form) => (found) => main(found).map((table) => {
  const rows = chosen(table).filter((row) => row.parts);
  const parts = () => rows.flatMap((row) => {
    const total = Object.values(row.parts).reduce((a, b) => a + b, 0);
    return Object.entries(row.parts).filter(([, ms]) => ms > 0).map(([part, ms]) => ({
      t: row.t, system: row.system, badge: row.badge, rank: row.rank, part, ms, share: ms / total, order: (data.parts.indexOf(part) + 99) % 99 }));
  });
  return { name: `time-${form}`, title: label(table), rows: parts, some: rows.length > 1, click: opens(found) };
}).filter((one) => one.some);

// Ablations: chains of systems in which each has fewer changed decisions than the one before, down to none.
const ablations = (found) => found.flatMap((table) => {
  const families = new Map();
  for (const row of table.rows.filter((one) => !one.missing && one.v.tpot_ms)) families.set(row.base, [...(families.get(row.base) ?? []), row]);
  return [...families].map(([base, rows]) => {
    // Steps have the whole system's usual α, or none if they route exactly.
    const whole = rows.filter((row) => !Object.keys(row.changes).length).sort(usual)[0];
    if (!whole) return null;
    const part = (row) => row.alpha === whole.alpha || row.alpha === null;
    const less = (a, b) => Object.entries(a.changes).every(([key, value]) => b.changes[key] === value) &&
      Object.keys(a.changes).length < Object.keys(b.changes).length;
    const sorted = rows.filter((row) => row === whole || (Object.keys(row.changes).length && part(row)))
      .sort((a, b) => Object.keys(a.changes).length - Object.keys(b.changes).length);
    // Find the longest chain down to the whole system.
    const chains = new Map();
    for (const row of sorted) {
      const best = sorted.filter((one) => less(one, row) && chains.has(one)).map((one) => chains.get(one)).sort((a, b) => b.length - a.length)[0];
      if (row === whole || best) chains.set(row, [row, ...(best ?? [])]);
    }
    const chain = [...chains.values()].sort((a, b) => b.length - a.length)[0];
    if (!chain || chain.length < 3) return null;
    const others = sorted.filter((row) => !chain.includes(row));
    const named = (row) => Object.entries(row.changes).map(([key, value], at) => `${at ? (at === 2 ? "|" : " ") : ""}${key}=${value}`).join("");
    const steps = [...others.map((row) => ({ row, step: `other base: ${named(row)}`, before: null })),
      ...chain.map((row, at) => ({ row, before: at ? chain[at - 1] : null,
        step: at ? `+ its own ${Object.keys(chain[at - 1].changes).filter((key) => !(key in row.changes)).join(" and ")}` : named(row) }))];
    const drawn = steps.map(({ row, step, before }, rank) => {
      const tpot = row.v.tpot_ms.mean, change = before ? tpot / before.v.tpot_ms.mean - 1 : null;
      const percent = change === null ? "" : `, ${change > 0 ? "+" : "−"}${Math.abs(100 * change).toFixed(1)} %`;
      return { t: row.t, system: row.system, badge: row.badge, step, rank, tpot, text: `${row.v.tpot_ms.text} ms${percent}`,
        kind: change === null ? "base" : change <= 0 ? "faster" : "slower" };
    });
    return { name: "ablation", title: `${base}, ${label(table)}`, rows: drawn, click: opens(found) };
  }).filter(Boolean);
});

const throughputs = (found) => main(found).map((table) => {
  const drawn = chosen(table).map((row) => [row, row.runs.filter((at) => data.speeds[at])]).filter(([, runs]) => runs.length);
  const rows = () => drawn.flatMap(([row, runs]) => runs.flatMap((at) =>
    data.speeds[at].map((speed, step, all) => ({ t: row.t, system: row.system, line: row.line, badge: row.badge, workload: data.runs[at].workload,
      run: data.runs[at].id, speed, portion: all.length > 1 ? step / (all.length - 1) : 1 }))));
  const read = [...new Set(drawn.flatMap(([, runs]) => runs.map((at) => data.runs[at].workload)))].sort();
  const note = read.length > 1 ? read.map((name, at) => `${["solid", "dashed", "dotted", "dashes and dots"][at % 4]}: ${name}`).join("; ") + "." : null;
  return { name: "throughput", title: label(table), rows, note, some: drawn.length, click: opens(found) };
}).filter((one) => one.some);

const bounds = (found) => main(found).map((table) => ({ name: "bound", title: label(table), click: opens(found),
  rows: chosen(table).filter((row) => row.bound_ratio && row.tpot_ms) })).filter((one) => one.rows.length > 1);

const GREY = (what) => ` Of more than ${MOST} systems, the first ${MOST} by ${what} are coloured; the others are grey, and pointing at one shows its name.`;
const SECTIONS = [
  { id: "trade", title: "Speed against accuracy", forms: Object.fromEntries(["kl", "agreement", "score"].map((key) => [key, [figureOf[key].label, trades(key)]])),
    caption: "Each point is a system; a line joins its values of α. Dashed: the Pareto front; no other system is both faster and closer to the lossless model than one on it. Bounds are excluded." + GREY("TPOT, those on the front before the others,") },
  { id: "over", title: "TPOT over batch, α and capacity", forms: { batch: ["batch", (t) => [overs(main(t), "batch"), overs(t, "batch")].find((ones) => ones.length) ?? []], alpha: ["α", (t) => overs(t, "alpha")], ratio: ["capacity", (t) => overs(t, "ratio")] },
    caption: "Mean TPOT of each system; bars are 95 % intervals over workloads and seeds, if there are several. All conditions are equal at each value of the horizontal axis; along it, device memory (capacity) or the number of prompts (batch) may differ." + GREY("TPOT at the end of the horizontal axis") },
  { id: "time", title: "Parts of TPOT", forms: { share: ["share of TPOT", times("share")], ms: ["ms per token", times("ms")] },
    caption: "The device's time per decoded token: it computes, or waits for loads of experts, for experts computed on the host, or for the control thread, which launches its work." },
  { id: "ablation", title: "Ablation", forms: { steps: ["steps", ablations] },
    caption: "TPOT from the most reduced system (top) to the complete one (bottom). Each step restores a decision of the system; the percentage is the change from the step before. Other reduced systems are listed first." },
  { id: "hits", title: "Hit ratio by capacity", forms: { ratio: ["capacity", (t) => overs(t, "ratio", "hits")] },
    caption: "Share of the experts used by a decoded layer that were complete on the device when the layer's gate was known." + GREY("hit ratio at the end of the horizontal axis") },
  { id: "throughput", title: "Distribution of decode throughput over tokens", forms: { all: ["all", throughputs] },
    caption: "Each curve is a run: the share of its decoded tokens at this throughput or less (DuoServe-MoE, Fig. 6). Further right is faster, steeper is more uniform; dash patterns distinguish workloads. A token's throughput is batch / step time; prefill is excluded." + GREY("mean throughput") },
  { id: "bound", title: "TPOT and its lower bound", forms: { all: ["all", bounds] },
    caption: "Tick: the least TPOT that machine and routing allow with the system's own slots. Point: its TPOT. Number: their ratio. A system with fewer slots has a higher bound." },
];

const SHOWN = 4;
const chartSection = (section, found) => {
  const forms = Object.entries(section.forms).map(([key, [title, make]]) => [key, title, make(found)]).filter(([, , figures]) => figures.length);
  if (!forms.length) return null;
  const place = h("div", { class: "grid" }), more = h("p", { class: "more" });
  const show = (figures, all = false) => {
    place.replaceChildren(...figures.slice(0, all ? figures.length : SHOWN).map(figure));
    more.replaceChildren(...(figures.length > SHOWN && !all
      ? [h("button", { type: "button", onclick: () => show(figures, true) }, `show all ${figures.length} charts`)] : []));
  };
  show(forms[0][2]);
  const choice = forms.length < 2 ? null : h("fieldset", { class: "choice", "aria-label": `${section.title}: what is shown` },
    forms.map(([key, title, figures], at) => h("label", {},
      h("input", { type: "radio", name: `form-${section.id}`, value: key, checked: at === 0, onchange: () => show(figures) }), ` ${title}`)));
  return h("section", { id: section.id }, h("h2", {}, section.title), choice, place, more, h("p", { class: "caption" }, section.caption));
};
