// The list of single runs: a folded line each, filled when it is opened.
const listOf = (pairs) => h("dl", {}, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]).flat());
const flat = (values, prefix = "") => Object.entries(values ?? {}).flatMap(([name, value]) =>
  value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length
    ? flat(value, `${prefix}${name}.`) : [[prefix + name, typeof value === "string" ? value : JSON.stringify(value)]]);

const latencyTable = (run, doc) => {
  const names = ["mean", "p50", "p90", "p99"];
  const digits = (key) => Number(figureOf[key].form[1]);
  const text = (key, value) => (value === null || value === undefined ? "–" : value.toFixed(digits(key)));
  const line = (key, value, more = "") => h("tr", {}, h("th", { scope: "row" }, figureOf[key].label + more),
    names.map((name) => {
      const cell = h("td", { class: "number", "data-v": value?.[name] }, text(key, value?.[name]));
      const known = value?.[name] === null || value?.[name] === undefined ? null : name;
      const ends = name === "mean" ? doc.interval?.[key] : null;
      const range = ends ? ` (${text(key, ends.low)} to ${ends.high === null ? "?" : text(key, ends.high)} ms over the ranges of the hardware profile)` : " (no interval)";
      return known ? copyable(cell, () => runLineOf(run, `${figureOf[key].label}${more}, ${name} ${text(key, value[name])} ms${range}`)) : cell;
    }));
  const single = (key, value, more) => line(key, { mean: value }, more);
  const interval = doc.interval?.tpot_ms;
  return [h("p", {}, `Times in ms, ${basisOf(run)} `, chip(run.badge), interval
      ? ` TPOT ${text("tpot_ms", interval.low)} to ${interval.high === null ? "?" : text("tpot_ms", interval.high)} ms over the ranges of the profile's numbers` : ""),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "ms"), names.map((name) => h("th", { scope: "col", class: "number" }, name)))),
      h("tbody", {}, line("tpot_ms", doc.metrics?.tpot_ms), line("ttft_ms", doc.metrics?.ttft_ms), single("e2e_ms", doc.metrics?.e2e_ms),
        single("load_ms", doc.metrics?.load_ms), single("bound_tpot_ms", doc.bound?.tpot_ms, run.simulated ? "" : " (computed)"))))];
};

const runBody = async (at) => {
  const run = data.runs[at], doc = (await later("documents"))[at];
  const numbers = h("p", {}, data.figures.filter((one) => run.v[one.key]).map((one) => `${one.label} ${run.v[one.key]}${unitOf(one)}`).join("; "));
  if (!doc) return [...run.notes.map((note) => h("p", { class: "note" }, note)), numbers,
    h("p", { class: "caption" }, `Its document is left out to keep the page small. moebench show ${run.id} prints it, with the command that repeats the run.`)];
  const picture = data.pictured[at] ? (await later("pictures"))[at] : null;
  const lanes = doc.metrics?.lanes ?? {}, fields = doc.interval?.fields ?? [];
  return [
    [...(doc.notes ?? []), ...run.notes].map((note) => h("p", { class: "note" }, note)),
    h("h4", {}, "Command that repeats the run"), command(run), latencyTable(run, doc),
    numbers,
    doc.accuracy ? h("p", {}, `Accuracy: ${doc.accuracy.metric}, n = ${doc.accuracy.n}, ± ${doc.accuracy.stderr}.`)
      : h("p", { class: "caption" }, "No accuracy: this run replayed recorded routing and generated no text."),
    Object.keys(lanes).length ? h("p", {}, "Busy time over the whole run: ", Object.entries(lanes).filter(([, ms]) => ms).map(([lane, ms]) => `${lane} ${ms.toFixed(1)} ms`).join(", "),
      "; waiting time of the device: ", Object.entries(doc.metrics.stall_ms ?? {}).map(([cause, ms]) => `${cause} ${ms.toFixed(1)} ms`).join(", ") || "none", ".") : null,
    fields.length ? folded("Numbers of the hardware profile with the largest effect on its latencies", () => h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["field", "low", "high", "range", "TPOT at low, high (%)", "TTFT at low, high (%)"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, fields.map((one) => h("tr", {}, [one.field, one.low, one.high, one.stated ? "stated" : "assumed", (one.tpot_ms ?? []).join(", "), (one.ttft_ms ?? []).join(", ")]
        .map((text) => h("td", {}, String(text))))))))) : null,
    picture ? figure({ name: "timeline", title: "One decoded token", rows: spansOf(picture, "", 0), note: `${basisOf(run)} times. ${PAN}` })
      : h("p", { class: "caption" }, data.withPicture[at]
        ? `Its timeline is left out to keep the page small; another run of this system here has one. moebench timeline ${run.id} writes it.`
        : "No timeline was kept for this run."),
    h("div", { class: "columns" }, h("div", {}, h("h4", {}, "Spec"), listOf(flat(doc.spec))), h("div", {}, h("h4", {}, "Provenance"), listOf(flat(doc.provenance)))),
    folded("The whole document as JSON", () => h("pre", {}, JSON.stringify(doc, null, 2))),
  ].flat().filter(Boolean);
};
const runLine = (at) => {
  const run = data.runs[at], tpot = run.v.tpot_ms;
  const fold = h("details", { class: "run", id: `run-${at}` }, h("summary", {}, h("strong", {}, run.system), ` ${run.where}, batch ${run.batch}, ${run.workload}`,
    tpot ? `: TPOT ${tpot} ms ` : " ", chip(run.badge), " ", h("code", {}, run.id)));
  fold.addEventListener("toggle", async () => {
    if (!fold.open || fold.dataset.state) return;
    fold.dataset.state = "filling";
    fold.append(h("div", {}, await runBody(at)));
    stops();
    fold.dataset.state = "filled";
  });
  return fold;
};

const STEP = 50;
const runsSection = () => {
  const chosen = data.runs.map((run, at) => at).filter((at) => runShown(data.runs[at]));
  const list = h("div", {}), more = h("p", { class: "more" });
  const grow = (upTo) => {
    list.append(...chosen.slice(list.children.length, upTo).map(runLine));
    const left = chosen.length - list.children.length;
    more.replaceChildren(...(left > 0 ? [h("button", { type: "button", onclick: () => grow(list.children.length + STEP) }, `show ${Math.min(left, STEP)} more of ${left}`)] : []));
  };
  grow(STEP);
  openRun = (at) => {
    const place = chosen.indexOf(at);
    if (place < 0) return;
    byId("runs-fold").open = true;
    grow(place + 1);
    const fold = byId(`run-${at}`);
    fold.open = true;
    fold.scrollIntoView();
  };
  return h("section", { id: "runs" }, h("h2", {}, "Single runs"),
    h("details", { id: "runs-fold" }, h("summary", {}, `${plural(chosen.length, "run")}, each with its numbers, provenance and command`), list, more));
};
let openRun = () => {};
