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
    value.stderr === undefined ? null : `standard error ${value.stderr}`,
    `${row.badge}; ${runs.length > 3 ? plural(runs.length, "run") : `run ${runs.join(", ")}`}`,
    "click for the commands"].filter(Boolean).join("\n");
};

// Dialog with a row's runs, their values, and the commands that repeat them.
const detail = (table, row) => {
  const dialog = byId("detail");
  const figures = data.figures.filter((figure) => row.v[figure.key]);
  const lines = figures.map((figure) => {
    const value = row.v[figure.key];
    return h("tr", {}, h("th", { scope: "row" }, figure.label), h("td", { class: "number" }, value.text),
      h("td", {}, figure.unit), h("td", { class: "number" }, value.half === undefined ? "" : `± ${value.half}`),
      row.runs.map((at) => h("td", { class: "number" }, data.runs[at].v[figure.key] ?? "")));
  });
  dialog.replaceChildren(h("div", {},
    h("button", { type: "button", onclick: () => dialog.close(), autofocus: true }, "close"),
    h("h3", {}, `${row.system}, ${table.title}`), h("p", { class: "caption" }, table.said),
    row.reference ? h("p", { class: "note" }, `A bound, not a competitor: ${row.reference}.`) : null,
    h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["figure", "mean", "unit", "95 % interval"].map((text) => h("th", { scope: "col" }, text)),
        row.runs.map((at) => h("th", { scope: "col", class: "number" }, `${data.runs[at].workload}, seed ${data.runs[at].seed}`)))),
      h("tbody", {}, lines))),
    h("h4", {}, "Runs and the commands that repeat them"),
    row.runs.map((at) => h("div", {}, h("a", { href: `#run-${at}`, onclick: () => { dialog.close(); openRun(at); } }, `run ${data.runs[at].id}`),
      ` ${data.runs[at].workload}, seed ${data.runs[at].seed} `, chip(data.runs[at].badge), command(data.runs[at])))));
  dialog.showModal();
};

// An interval over two values is almost useless: only the dialog shows it.
const sure = (value) => value.half !== undefined && value.n > 2 && value.low < value.high;
const MAIN = ["tpot_ms", "ratio_best"];

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
    return h("td", { class: `number${mark(figure, row)}`, "data-v": value.mean, title: told(figure, row), onclick: () => detail(table, row) },
      value.text, value.stderr === undefined ? null : h("small", {}, ` ± ${value.stderr}`),
      sure(value) ? h("small", { class: MAIN.includes(figure.key) ? null : "interval" }, ` ± ${value.half}`) : null, some && h("small", {}, some));
  };
  const remark = (row) => [row.reference && `a bound: ${row.reference}`,
    ...Object.entries(row.differs).map(([name, text]) => `${name} ${text} ≠`)].filter(Boolean).join("; ");
  const remarks = rows.some((row) => remark(row));
  const lines = rows.map((row) => h("tr", { class: row.reference ? "reference" : null },
    h("th", { scope: "row" }, h("button", { type: "button", onclick: () => detail(table, row) }, row.system)),
    figures.map((figure) => cell(figure, row)),
    badges.length > 1 ? h("td", {}, chip(row.badge)) : null, remarks ? h("td", {}, remark(row)) : null));
  const missing = table.rows.filter((row) => row.missing);
  const hidden = table.all - rows.length;
  return h("div", { class: "comparison", "data-table": table.index },
    h("p", { class: "caption" }, badges.length === 1 ? [chip(badges[0]), " "] : null, table.said, "."),
    table.reason ? h("p", { class: "note" }, `This table is ${table.reason}.`) : null,
    hidden ? h("p", { class: "caption" }, `${plural(hidden, "system")} hidden by the filters; ratios and marks refer to all systems.`) : null,
    h("div", { class: "scroll" }, sortable(h("table", { class: "systems" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "system"),
        figures.map((figure) => h("th", { scope: "col", class: "number" }, figure.label, figure.unit ? h("small", {}, ` ${figure.unit}`) : null)),
        badges.length > 1 ? h("th", { scope: "col" }, "badge") : null, remarks ? h("th", { scope: "col" }, "remark") : null)),
      h("tbody", {}, lines)))),
    missing.length ? h("p", { class: "caption" }, missing.map((row) => `${row.system}: ${row.missing}`).join("; "), ".") : null);
};

// The fastest competitors among all of a table's systems.
const winner = (table) => table.marks.tpot_ms?.[0] ?? [];

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
  const fill = () => { if (fold.open && fold.children.length === 1) fold.append(...[make()].flat()); };
  if (open) fill();
  fold.addEventListener("toggle", fill);
  return fold;
};
const tables = (found) => places(found).map((group, at) => {
  const [first, ...others] = group;
  const best = winner(first);
  const value = first.rows.find((row) => best.includes(row.system))?.v.tpot_ms;
  const line = [h("strong", {}, first.reason ? first.title : first.place), `, ${first.model} on ${first.machine}`,
    value ? `: fastest ${best.join(", ")}, TPOT ${value.text} ms` : "", ` (${plural(first.rows.length, "system")})`];
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
// The rows of the heat map: each table's systems, and the lowest TPOT of its competitors.
const heatRows = (found) => found.filter((table) => !table.reason || byId("apart").checked).map((table) => {
  const systems = lines(table, byId("variants").checked);
  const racing = [...systems.values()].filter((row) => !row.reference).map((row) => row.v.tpot_ms.mean);
  return { table, systems, best: Math.min(...racing) };
}).filter(({ systems, best }) => systems.size > 1 && best < Infinity);

const heatMap = (rows) => {
  if (!rows.length) return null;
  const columns = new Map();
  for (const { systems, best } of rows) for (const [line, row] of systems) {
    columns.set(line, [...(columns.get(line) ?? []), Math.log(row.v.tpot_ms.mean / best)]);
  }
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const order = [...columns].sort(([a, x], [b, y]) => y.length - x.length || mean(x) - mean(y) || a.localeCompare(b)).map(([name]) => name);
  const worst = Math.max(4, ...[...columns.values()].flat().map(Math.exp));
  const square = ({ table, best }, line, row) => {
    if (!row) return h("td", { class: "empty" }, "·");
    const ratio = row.v.tpot_ms.mean / best;
    const { background, ink } = rampColour(Math.log(Math.max(ratio, 1)) / Math.log(worst));
    const text = `${row.system} in ${table.title}: TPOT ${row.v.tpot_ms.text} ms, ${ratio.toFixed(2)} times the lowest` +
      (row.reference ? `; a bound: ${row.reference}` : "") + `\n${row.badge}; click for runs and commands`;
    const cell = h("td", { class: `${ratio === 1 ? "best" : ""}${row.reference ? " reference" : ""}`, title: text, "data-ratio": ratio,
      onclick: () => detail(table, row) }, ratio < 100 ? ratio.toFixed(2) : ratio.toFixed(0));
    Object.assign(cell.style, { background, color: ink });
    return cell;
  };
  const body = rows.map((one) => h("tr", {},
    h("th", { scope: "row" }, h("a", { href: `#table-${one.table.index}`, onclick: () => reveal(one.table.index) }, one.table.reason ? one.table.title : one.table.place)),
    h("td", { class: "least" }, one.best.toPrecision(3)),
    order.map((line) => square(one, line, one.systems.get(line)))));
  const ramp = h("span", { class: "ramp" }, "1× (best)", h("i", {}), `${worst.toPrecision(2)}×, logarithmic`);
  ramp.querySelector("i").style.background = `linear-gradient(to right, ${RAMPS[theme()].join(", ")})`;
  return h("div", {}, h("div", { class: "scroll" }, h("table", { class: "heat" },
    h("thead", {}, h("tr", {}, h("th", {}, "TPOT over the lowest"), h("th", { scope: "col" }, "lowest (ms)"), order.map((line) => h("th", { scope: "col" }, line)))),
    h("tbody", {}, body))), ramp);
};
const reveal = (index) => {
  const fold = byId(`table-${index}`) ?? document.querySelector(`[data-table="${index}"]`)?.closest("details");
  if (fold) fold.open = true;
};

// One line: the fastest systems, and in how many rows of the heat map.
const verdict = (rows) => {
  const counts = new Map();
  for (const { systems, best } of rows) for (const [line, row] of systems) {
    if (row.v.tpot_ms.mean === best && !row.reference) counts.set(line, (counts.get(line) ?? 0) + 1);
  }
  if (!rows.length) return "";
  const order = [...counts].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]));
  return `Fastest system (lowest TPOT) in ${plural(rows.length, "comparison")}: ${order.map(([line, n]) => `${line} in ${n}`).join(", ")}.`;
};
