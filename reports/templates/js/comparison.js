// The heat map, and for each group its table of systems; tables that are not comparable are below it.
const figureOf = Object.fromEntries(data.figures.map((figure) => [figure.key, figure]));
const unitOf = (figure) => (figure.unit ? ` ${figure.unit}` : "");

// The tooltip of a value: unit, number of cells, interval, runs.
const told = (figure, row) => {
  const value = row.v[figure.key];
  const runs = row.runs.map((at) => data.runs[at].id);
  return [`${row.system}: ${figure.label} ${value.text}${unitOf(figure)}`,
    value.n > 1 ? `mean over ${value.n} cells` : null,
    value.half === undefined ? null : `95 % interval ± ${value.half}`,
    value.ends === undefined ? null : `${value.ends.join(" to ")}${unitOf(figure)} over the ranges of the hardware profile`,
    value.stderr === undefined ? null : `standard error ${value.stderr}`,
    `${row.badge}; ${runs.length > 3 ? plural(runs.length, "run") : `run ${runs.join(", ")}`}`,
    "click to copy"].filter(Boolean).join("\n");
};

// Dialog with a row's runs, their values, and the commands that repeat them.
const detail = (table, row) => {
  const dialog = byId("detail");
  const figures = data.figures.filter((figure) => row.v[figure.key]);
  const lines = figures.map((figure) => {
    const value = row.v[figure.key];
    const ofRun = (at) => copyable(h("td", { class: "number" }, data.runs[at].v[figure.key] ?? ""),
      () => runLineOf(data.runs[at], `${figure.label} ${data.runs[at].v[figure.key]}${unitOf(figure)}`));
    return h("tr", {}, h("th", { scope: "row" }, figure.label),
      copyable(h("td", { class: "number" }, value.text), () => rowLine(table, row, quantity(figure, value))),
      h("td", {}, figure.unit), h("td", { class: "number" }, value.half === undefined ? "" : `± ${value.half}`), row.runs.map(ofRun));
  });
  dialog.replaceChildren(h("div", {},
    h("button", { type: "button", onclick: () => dialog.close(), autofocus: true }, "close"),
    h("h3", {}, `${row.system}, ${table.title}`), h("p", { class: "caption" }, table.said),
    h("div", { class: "copied", role: "status", "aria-live": "polite" }),
    row.reference ? h("p", { class: "note" }, `A bound, not a competitor: ${row.reference}.`) : null,
    h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["figure", "mean", "unit", "95 % interval"].map((text) => h("th", { scope: "col" }, text)),
        row.runs.map((at) => h("th", { scope: "col", class: "number" }, `${data.runs[at].workload}, seed ${data.runs[at].seed}`)))),
      h("tbody", {}, lines))),
    h("h4", {}, "Runs and the commands that repeat them"),
    row.runs.map((at) => h("div", {}, h("a", { href: `#run-${at}`, onclick: () => { dialog.close(); openRun(at); } }, `run ${data.runs[at].id}`),
      ` ${data.runs[at].workload}, seed ${data.runs[at].seed} `, chip(data.runs[at].badge), command(data.runs[at])))));
  stops();
  dialog.showModal();
};

const MAIN = ["tpot_ms", "ratio_best"];

// A table of systems in the order that the page's address names.
const ordered = (table, made) => {
  const [index, at, down] = state.sort.split(".").map(Number);
  const from = state.sort && index === table.index ? { at, down: Boolean(down) } : null;
  return sortable(made, (column, falling) => { state.sort = `${table.index}.${column}.${Number(falling)}`; writeView(); }, from);
};

const systemsTable = (table) => {
  const rows = table.rows.filter((row) => !row.missing);
  const figures = data.figures.filter((figure) => rows.some((row) => row.v[figure.key]));
  const badges = [...new Set(rows.map((row) => row.badge))];
  const mark = (figure, row) => {
    const marks = table.marks[figure.key];
    if (!marks) return "";
    return marks[0].includes(row.system) ? " best" : marks[1].includes(row.system) ? " second" : "";
  };
  const cell = (figure, row) => {
    const value = row.v[figure.key];
    if (!value) return h("td", { class: "number none" }, "–");
    const some = value.n < table.cells.length ? ` (${value.n} of ${table.cells.length})` : "";
    return copyable(h("td", { class: `number${mark(figure, row)}`, "data-v": value.mean, title: told(figure, row) },
      value.text, value.stderr === undefined ? null : h("small", {}, ` ± ${value.stderr}`),
      value.sure ? h("small", { class: MAIN.includes(figure.key) ? null : "interval" }, ` ± ${value.half}`) : null, some && h("small", {}, some)),
      () => rowLine(table, row, quantity(figure, value)), () => detail(table, row));
  };
  const remark = (row) => [row.reference && `a bound: ${row.reference}`,
    ...Object.entries(row.differs).map(([name, text]) => `${name} ${text} ≠`), ...row.remarks].filter(Boolean).join("; ");
  const remarks = rows.some((row) => remark(row));
  const lines = rows.map((row) => h("tr", { class: row.reference ? "reference" : null },
    h("th", { scope: "row" }, h("button", { type: "button", onclick: () => detail(table, row) }, row.system), lossy(row)),
    figures.map((figure) => cell(figure, row)),
    badges.length > 1 ? h("td", {}, chip(row.badge)) : null, remarks ? h("td", {}, remark(row)) : null));
  const missing = table.rows.filter((row) => row.missing);
  const hidden = table.all - rows.length;
  return h("div", { class: "comparison", "data-table": table.index },
    h("p", { class: "caption" }, badges.length === 1 ? [chip(badges[0]), " "] : null, table.said, "."),
    table.reason ? h("p", { class: "note" }, `This table is ${table.reason}.`) : null,
    because(table) ? h("p", { class: "caption why" }, because(table)) : null,
    hidden ? h("p", { class: "caption" }, `${plural(hidden, "system")} hidden by the filters; ratios and marks refer to all systems.`) : null,
    h("div", { class: "scroll" }, ordered(table, h("table", { class: "systems" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "system"),
        figures.map((figure) => h("th", { scope: "col", class: "number" }, figure.label, figure.unit ? h("small", {}, ` ${figure.unit}`) : null)),
        badges.length > 1 ? h("th", { scope: "col" }, "badge") : null, remarks ? h("th", { scope: "col" }, "remark") : null)),
      h("tbody", {}, lines)))),
    missing.length ? h("p", { class: "caption" }, missing.map((row) => `${row.system}: ${row.missing}`).join("; "), ".") : null);
};

// A mark beside systems whose tokens differ from the lossless model's.
const lossy = (row) => {
  if (row.lossless !== false) return null;
  const kl = row.v?.kl?.text;
  return h("span", { class: "lossy", title: `lossy: its tokens are not the lossless model's${kl ? `; KL ${kl} nats/token` : ""}` }, "≈");
};

// The fastest of some rows of a table, and all that cannot be told from it; bounds do not compete.
const leaders = (rows) => {
  const racing = rows.filter((row) => row.v?.tpot_ms && !row.reference).sort((a, b) => a.v.tpot_ms.mean - b.v.tpot_ms.mean);
  const [first] = racing;
  return first ? racing.filter((row) => row === first || first.ties?.includes(row.rank)) : [];
};
const named = (rows) => (rows.length > 1 ? `tied: ${rows.map((row) => row.system).join(", ")}` : `fastest ${rows[0].system}`);

// What a system's decoded token is spent on, largest part first, as shares of its TPOT.
const BOUND_BY = { "device busy": "computing", "waits for load": "waiting for the link", "waits for host": "waiting for the host",
  "waits for disk": "waiting for the disk", "waits for control": "waiting for the control thread" };
const spent = (row) => {
  if (!row.parts) return null;
  const total = Object.values(row.parts).reduce((a, b) => a + b, 0);
  const [first, second] = Object.entries(row.parts).sort((a, b) => b[1] - a[1]).filter(([, ms]) => ms > 0.1 * total);
  return [first, second].filter(Boolean).map(([name, ms]) => `${ms.toPrecision(3)} ms ${BOUND_BY[name] ?? name} (${Math.round((100 * ms) / total)} %)`).join(", ");
};
// Why the fastest system is faster than the next one that can be told from it.
const because = (table) => {
  const first = leaders(table.rows);
  const other = leaders(table.rows.filter((row) => !first.includes(row)))[0];
  const said = [first[0], other].filter((row) => row && spent(row)).map((row) => `${row.system}: ${spent(row)}`);
  return said.length ? `Largest parts of a token. ${said.join("; ")}.` : "";
};

// Main tables are open, up to OPEN of them; tables that are not comparable are folded below.
const OPEN = 6;
const places = (tables) => {
  const found = Map.groupBy ? Map.groupBy(tables, (table) => table.place + table.model + table.machine + table.simulated) : new Map();
  if (!Map.groupBy) for (const table of tables) {
    const key = table.place + table.model + table.machine + table.simulated;
    found.set(key, [...(found.get(key) ?? []), table]);
  }
  return [...found.values()];
};
const folded = (summary, make, open = false, attributes = {}) => {
  const fold = h("details", { open, ...attributes }, h("summary", {}, summary));
  const fill = () => { if (fold.open && fold.children.length === 1) { fold.append(...[make()].flat()); stops(); } };
  if (open) fill();
  fold.addEventListener("toggle", fill);
  return fold;
};
const tables = (found) => places(found).map((group, at) => {
  const [first, ...others] = group;
  const best = leaders(first.rows);
  const line = [h("strong", {}, first.reason ? first.title : first.place), `, ${first.model} on ${first.machine}`,
    best.length ? `: ${named(best)}, TPOT ${best[0].v.tpot_ms.text} ms` : "", ` (${plural(first.rows.length, "system")})`];
  const apart = others.length
    ? folded(`${plural(others.length, "table")} that may not be compared with it`,
        () => others.map((table) => [h("h4", {}, table.title), systemsTable(table)]).flat())
    : null;
  return folded(h("span", {}, line), () => [systemsTable(first), apart].filter(Boolean), at < OPEN, { id: `table-${first.index}`, class: "place" });
});

// ------------------------------------------------------------------ heat map

// Light to dark, and reversed on a dark page: high ratios stand out; one hue for colour-blind readers.
const RAMPS = {
  light: ["#fffdf2", "#fff0b8", "#fedc84", "#feb54a", "#f98e25", "#e0640c", "#b54304", "#7d2c05"],
  dark: ["#1d2329", "#352b1c", "#533b15", "#7a5110", "#a86b10", "#d68a1d", "#f8b24a", "#ffe2a6"],
};
const rampColour = (t) => {
  const ramp = RAMPS[theme()], place = Math.min(Math.max(t, 0), 1) * (ramp.length - 1), low = Math.min(Math.floor(place), ramp.length - 2);
  const parts = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const [a, b] = [parts(ramp[low]), parts(ramp[low + 1])];
  const mixed = a.map((value, i) => Math.round(value + (b[i] - value) * (place - low)));
  const luminance = (0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2]) / 255;
  return { background: `rgb(${mixed.join(" ")})`, ink: luminance > 0.55 ? "#14181d" : "#ffffff" };
};

// Sorts a system's rows by how many runs chose their α; of equally frequent ones the lowest is first.
const usual = (a, b) => b.usual - a.usual || (a.alpha ?? 0) - (b.alpha ?? 0);
const lines = (table, variants) => {
  const found = new Map();
  const rows = table.rows.filter((row) => row.v?.ratio_best && (variants || !Object.keys(row.changes).length));
  for (const row of rows.sort(usual)) if (!found.has(row.line)) found.set(row.line, row);
  return found;
};
// The rows of the heat map: each table's systems, and the fastest of its competitors.
const heatRows = (found) => found.map((table) => {
  const systems = lines(table, byId("variants").checked), best = leaders([...systems.values()]);
  return { table, systems, best, least: best[0]?.v.tpot_ms.mean };
}).filter(({ systems, best }) => systems.size > 1 && best.length);

const geometric = (values) => Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
// By system: TPOT over that of the fastest in each comparison, and how often it is the fastest, alone or tied.
const standings = (rows) => {
  const found = new Map();
  for (const { systems, best, least } of rows) for (const [line, row] of systems) {
    if (!found.has(line)) found.set(line, { line, ratios: [], alone: 0, tied: 0, reference: row.reference, lossless: true });
    const one = found.get(line);
    one.ratios.push(row.v.tpot_ms.mean / least);
    one.lossless &&= row.lossless !== false;
    if (best.includes(row)) one[best.length > 1 ? "tied" : "alone"] += 1;
  }
  for (const one of found.values()) one.mean = geometric(one.ratios);
  return [...found.values()].sort((a, b) => a.mean - b.mean || a.line.localeCompare(b.line));
};

// Rows of the heat map that are shown at once.
const HEAT_ROWS = 40;
const heatMap = (rows) => {
  if (!rows.length) return null;
  const columns = standings(rows);
  const worst = Math.max(4, ...columns.flatMap((one) => one.ratios));
  const square = ({ table, best, least }, line, row) => {
    if (!row) return h("td", { class: "empty" }, "·");
    const ratio = row.v.tpot_ms.mean / least, known = row.v.ratio_best;
    // Intervals are of the ratio to the fastest of the whole table.
    const range = known.sure && Math.abs(known.mean / ratio - 1) < 1e-4 ? `${known.low.toFixed(2)}–${known.high.toFixed(2)}` : "";
    const { background, ink } = rampColour(Math.log(Math.max(ratio, 1)) / Math.log(worst));
    const text = `${row.system} in ${table.title}: TPOT ${row.v.tpot_ms.text} ms, ${ratio.toFixed(2)} times the lowest` +
      (range ? `, 95 % interval ${range}` : "") + (best.length > 1 && best.includes(row) ? `; ${named(best)}` : "") +
      (row.lossless === false ? "; lossy" : "") + (row.reference ? `; a bound: ${row.reference}` : "") + `\n${row.badge}; click to copy`;
    const place = best.includes(row) ? (best.length > 1 ? "tied" : "best") : "";
    const cell = copyable(h("td", { class: `${place}${row.reference ? " reference" : ""}`, title: text, "data-ratio": ratio },
      ratio < 100 ? ratio.toFixed(2) : ratio.toFixed(0), range ? h("small", { class: "interval" }, range) : null),
    () => rowLine(table, row, `${ratio.toFixed(2)} times the lowest TPOT, ${best[0].system}'s${range ? ` (95 % interval ${range})` : " (no interval)"}, ${quantity(figureOf.tpot_ms, row.v.tpot_ms)}`),
    () => detail(table, row));
    Object.assign(cell.style, { background, color: ink });
    return cell;
  };
  const line = (one) => h("tr", {},
    h("th", { scope: "row" }, h("a", { href: `#table-${one.table.index}`, onclick: () => reveal(one.table.index) }, one.table.title)),
    h("td", { class: "least" }, one.least.toPrecision(3)),
    columns.map(({ line }) => square(one, line, one.systems.get(line))));
  const head = ({ line, lossless, ratios }) => h("th", { scope: "col" }, line, lossy({ lossless }),
    ratios.length < rows.length ? h("small", {}, ` ${ratios.length} of ${rows.length}`) : null);
  const body = h("tbody", {}, rows.slice(0, HEAT_ROWS).map(line));
  const means = h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "geometric mean"), h("td", { class: "least" }),
    columns.map(({ mean }) => h("td", {}, mean < 100 ? mean.toFixed(2) : mean.toFixed(0)))));
  const rest = rows.length - HEAT_ROWS;
  const more = rest > 0 ? h("button", { type: "button", onclick: (event) => {
    event.target.remove();
    body.append(...rows.slice(HEAT_ROWS).map(line));
    stops();
  } }, `show ${plural(rest, "more comparison")}`) : null;
  const ramp = h("span", { class: "ramp" }, "1× (lowest)", h("i", {}), `${worst.toPrecision(2)}×, logarithmic`);
  ramp.querySelector("i").style.background = `linear-gradient(to right, ${RAMPS[theme()].join(", ")})`;
  return h("div", {}, h("div", { class: "scroll" }, h("table", { class: "heat" },
    h("thead", {}, h("tr", {}, h("th", {}, "TPOT over the lowest"), h("th", { scope: "col" }, "lowest (ms)"), columns.map(head))),
    body, rows.length > 1 ? means : null)), more, ramp);
};
const reveal = (index) => {
  const fold = byId(`table-${index}`) ?? document.querySelector(`[data-table="${index}"]`)?.closest("details");
  if (fold) fold.open = true;
};

// Who is fastest over all comparisons: of all systems, and of the lossless ones if not all are.
const NAMED = 3;
const verdict = (rows) => {
  if (!rows.length) return [];
  const sentence = (what, some) => {
    const racing = standings(some).filter((one) => !one.reference);
    const order = racing.filter((one) => one.alone + one.tied).sort((a, b) => b.alone - a.alone || b.tied - a.tied || a.mean - b.mean);
    const count = ({ line, alone, tied, lossless, mean }) => [h("strong", {}, line), lossless ? null : " (lossy)", " ",
      [alone ? `in ${alone}` : "", tied ? `tied in ${tied}` : ""].filter(Boolean).join(", "), `, ${mean.toFixed(2)}× the lowest (geometric mean)`];
    const shown = order.slice(0, NAMED).flatMap((one, at) => [at ? "; " : "", ...count(one)]);
    const others = order.length > NAMED ? `; ${plural(order.length - NAMED, "other")}` : "";
    return h("p", { class: "verdict" }, `Fastest ${what} (lowest TPOT) in ${plural(some.length, "comparison")}: `, shown, others, ".");
  };
  const lossless = rows.map((one) => {
    const systems = new Map([...one.systems].filter(([, row]) => row.lossless !== false)), best = leaders([...systems.values()]);
    return { ...one, systems, best, least: best[0]?.v.tpot_ms.mean };
  }).filter(({ best }) => best.length);
  // Runs of a sweep have no interval of their own: over fewer than three cells nothing tells systems apart.
  const blind = rows.filter(({ systems, best }) => best.length === 1 &&
    [...systems.values()].every((row) => row === best[0] || row.v.ratio_best.low === undefined)).length;
  const mixed = rows.some(({ systems }) => [...systems.values()].some((row) => row.lossless === false));
  return [sentence("system", rows), mixed && lossless.length ? sentence("lossless system", lossless) : null,
    blind ? h("p", { class: "caption" }, `In ${blind} of ${plural(rows.length, "comparison")} no interval is known, and the lowest counts as the fastest.`) : null].filter(Boolean);
};
