// ------------------------------------------------------------------------------ data
const FIELDS = Object.keys(grid.rows);
const TEXTS = ["engine", "config", "quality", "binds", "verdict", "remarks", "command", "notes"];
const { points, texts } = grid;
const starts = [0];
points.rows.forEach((count) => starts.push(starts.at(-1) + count));

// Points of a machine, model and format, ascending in context.
const keyOf = (machine, model, quant) => `${machine}\n${model}\n${quant}`;
const INDEX = new Map();
points.machine.forEach((machine, at) => {
  const key = keyOf(machine, texts[points.model[at]], texts[points.quant[at]]);
  INDEX.set(key, [...(INDEX.get(key) ?? []), at]);
});
INDEX.forEach((all) => all.sort((a, b) => points.context[a] - points.context[b]));

// Rows with their key: the engine, and which of the engine's rows.
const rowsOf = (point) => {
  const seen = {};
  return Array.from({ length: points.rows[point] }, (_, i) => {
    const row = Object.fromEntries(FIELDS.map((name) => {
      const value = grid.rows[name][starts[point] + i];
      return [name, TEXTS.includes(name) ? texts[value] : value];
    }));
    seen[row.engine] = (seen[row.engine] ?? 0) + 1;
    return { ...row, key: seen[row.engine] === 1 ? row.engine : `${row.engine} ${seen[row.engine]}`, between: false };
  });
};

const unique = (values) => [...new Set(values)];
const ENGINES = unique(grid.rows.engine.map((at) => texts[at])).sort();
const CARDS = unique(grid.machines.map(([card]) => card));
const MODELS = unique(points.model.map((at) => texts[at]));
const machineOf = (card, memory) => grid.machines.findIndex((one) => one[0] === card && one[1] === memory);
const memoriesOf = (card) => grid.machines.filter((one) => one[0] === card).map((one) => one[1]);
const quantsOf = (machine, model) => unique(points.quant.filter((_, at) => points.machine[at] === machine && texts[points.model[at]] === model).map((at) => texts[at]));
const pointsOf = (choice) => INDEX.get(keyOf(machineOf(choice.card, choice.memory), choice.model, choice.quant)) ?? [];
const isBetween = (choice, context) => !pointsOf(choice).some((at) => points.context[at] === context);
const contextsOf = (choice) => {
  const known = pointsOf(choice).map((at) => points.context[at]);
  const added = grid.between.filter((context) => !known.includes(context) && context > known[0] && context < known.at(-1));
  return [...known, ...added].sort((a, b) => a - b);
};

// ------------------------------------------------------------------------------ choices
// Lengths that are null fill the context, as in the grid.
const choice = { lossless: false, without: new Set(), row: null, sort: null, prompt: null, answer: null };
const LISTS = ["card", "memory", "model", "quant", "context"];

// Returns the wanted value if it is allowed, else the preferred or first one.
const allowed = (wanted, values, preferred = values[0]) =>
  values.includes(wanted) ? wanted : values.includes(preferred) ? preferred : values[0];
const settle = () => {
  choice.card = allowed(choice.card, CARDS, "RTX 4090 24 GB");
  choice.memory = allowed(choice.memory, memoriesOf(choice.card));
  choice.model = allowed(choice.model, MODELS);
  choice.quant = allowed(choice.quant, quantsOf(machineOf(choice.card, choice.memory), choice.model));
  choice.context = allowed(choice.context, contextsOf(choice), 8192);
};

const number = (text) => (/^\d{1,8}$/.test(text ?? "") && Number(text) > 0 ? Number(text) : null);
const readHash = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of ["card", "memory", "model", "quant"]) choice[name] = given.get(name);
  choice.context = number(given.get("context"));
  for (const name of ["prompt", "answer"]) choice[name] = number(given.get(name));
  choice.lossless = given.get("lossless") === "1";
  choice.without = new Set((given.get("without") ?? "").split(",").filter((name) => ENGINES.includes(name)));
  choice.row = given.get("row");
};
let written = null;
const writeHash = () => {
  const kept = new URLSearchParams();
  for (const name of [...LISTS, "prompt", "answer"]) if (choice[name] !== null) kept.set(name, choice[name]);
  if (choice.lossless) kept.set("lossless", "1");
  if (choice.without.size) kept.set("without", [...choice.without].join(","));
  if (choice.row) kept.set("row", choice.row);
  written = `#${kept}`;
  if (location.hash !== written) history.replaceState(null, "", written);
};

// ------------------------------------------------------------------------------ answers
const isKept = (row) => !(choice.lossless && !row.lossless) && !choice.without.has(row.engine);
// Interpolates the best row of each engine that both neighbours have; all but rates is the larger one's.
const interpolated = (all, context) => {
  const low = all.findLast((at) => points.context[at] < context), high = all.find((at) => points.context[at] > context);
  const best = (at) => rowsOf(at).filter(isKept)
    .reduce((found, row) => (found.has(row.engine) ? found : found.set(row.engine, row)), new Map());
  const curves = all.map((at) => [points.context[at], best(at)]);
  const at = (end) => curves.find(([context]) => context === points.context[end])[1];
  const rate = (engine, name) => rateBetween(
    curves.map(([context, rows]) => [context, rows.get(engine)?.[name]]), points.context[low], points.context[high], context);
  const rows = [...at(high).values()].filter((row) => at(low).has(row.engine)).map((row) => {
    const found = { ...row, key: row.engine, between: true }, other = at(low).get(row.engine);
    for (const phase of ["decode", "prefill"]) {
      found[phase] = rate(row.engine, phase);
      // Each end of the interval keeps its ratio to the rate, in the mean of both neighbours.
      for (const end of ["low", "high"]) {
        const name = `${phase}_${end}`, ratio = Math.sqrt((row[name] / row[phase]) * (other[name] / other[phase]));
        found[name] = row[name] && other[name] && found[phase] ? found[phase] * ratio : null;
      }
    }
    return found;
  });
  return { low, high, missing: at(low).size - rows.length, rows, hidden: rowsOf(high).filter((row) => !isKept(row)).length };
};

// Lengths of the request, its times, and the order of rows by them.
const lengths = () => {
  const answer = choice.answer ?? Math.max(1, Math.min(512, Math.floor(choice.context / 4)));
  return { answer, prompt: choice.prompt ?? Math.max(1, choice.context - answer) };
};
const firstToken = (row) => (row.prefill ? lengths().prompt / row.prefill : null);
const request = (row) => (row.decode ? (firstToken(row) ?? 0) + lengths().answer / row.decode : null);
// The factor within which 80 % of the ratios of two requests' times are: harness/advise/answer.py.
const ratioError = (row, best) => {
  const [decode, prefill, same, paging] = grid.ties, pages = [row, best].map((one) => one.disk_gib > 0);
  if (row.engine === best.engine && pages[0] === pages[1]) return same;
  const share = (firstToken(row) ?? 0) / request(row);
  return prefill ** share * decode ** (1 - share) * (pages.some(Boolean) ? paging : 1);
};

const answersOf = () => {
  const all = pointsOf(choice), exact = all.find((at) => points.context[at] === choice.context);
  const found = exact === undefined ? interpolated(all, choice.context) : { point: exact, rows: rowsOf(exact).filter(isKept) };
  const shown = found.rows
    .sort((a, b) => (request(a) ?? Infinity) - (request(b) ?? Infinity));
  const [best, ...others] = shown;
  others.forEach((row) => { row.tied = request(row) !== null && request(row) / request(best) < ratioError(row, best); });
  return { ...found, rows: shown.slice(0, 8), hidden: found.hidden ?? points.rows[exact] - shown.length };
};

// ------------------------------------------------------------------------------ texts
const lines = (text) => text.split("\n").filter((one) => one.trim());
const grouped = (value) => value.toLocaleString("en-US");
const short = (value) => {
  if (value === null || value === undefined) return "–";
  return value >= 100 ? grouped(Math.round(value)) : String(Number(value.toPrecision(value < 1 ? 2 : 3)));
};
const seconds = (value) => (value === null ? "–" : value < 120 ? `${short(value)} s` : value < 7200 ? `${short(value / 60)} min` : `${short(value / 3600)} h`);
const range = (row, phase) => {
  const ends = [row[`${phase}_low`], row[`${phase}_high`]];
  return ends.every((end) => end) ? `${short(ends[0])} to ${short(ends[1])}` : null;
};
const about = (row, text) => (row.between && text !== "–" ? `≈ ${text}` : text);
const memoryText = (row) => [["device", row.device_gib], ["host", row.host_gib], ["disk", row.disk_gib]]
  .filter(([, gib]) => gib).map(([place, gib]) => `${place} ${short(gib)}`).join(", ") || "–";

const largestOf = (at) => points.largest_context[at];
const verdictOf = (found) => {
  const said = (at) => texts[points.verdict[at]];
  if (found.point !== undefined) return said(found.point);
  if (points.fits[found.high]) return said(found.high); // what needs more memory fits
  return [found.high, found.low].map((at) => `At ${grouped(points.context[at])} tokens: ${said(at)}`).join(" ");
};
const remarksOf = (found) => {
  const largest = largestOf(found.point ?? found.high) ?? (found.low === undefined ? null : largestOf(found.low));
  const notes = [];
  if (largest) notes.push(h("p", { class: "caption", id: "largest" }, `Largest context that fits: ${grouped(largest)} tokens.`));
  if (found.point === undefined) notes.push(h("p", { class: "note", id: "between" },
    h("span", { class: "chip datasheet" }, "interpolated"),
    ` Rates between ${grouped(points.context[found.low])} and ${grouped(points.context[found.high])} tokens, marked ≈; `
    + `verdict, configuration, memory and commands are those of ${grouped(points.context[found.high])}.`
    + (found.missing ? ` Left out: ${plural(found.missing, "engine")} without a row at the larger context.` : "")));
  const needed = lengths().prompt + lengths().answer;
  if (needed > choice.context) notes.push(h("p", { class: "note", id: "too-long" },
    `Prompt and answer have ${grouped(needed)} tokens, more than the context of ${grouped(choice.context)}.`));
  if (found.hidden) notes.push(h("p", { class: "caption", id: "hidden-rows" }, `${plural(found.hidden, "row")} hidden by the filters.`));
  return notes;
};

const leftOut = (found) => {
  const reasons = lines(texts[points.left_out[found.point ?? found.high]]);
  return reasons.length === 0 ? null : h("details", { id: "without-row", open: found.rows.length + found.hidden === 0 },
    h("summary", {}, `engines without a row: ${reasons.length}`), h("ul", { class: "said" }, reasons.map((one) => h("li", {}, one))));
};

// ------------------------------------------------------------------------------ table, chart, commands
const HEADS = ["engine and configuration", "decode, tokens/s", "prefill, tokens/s", "time to first token", "whole request", "memory, GiB", "quality", "limited by"];
const line = (row, chosen) => {
  const rate = (phase) => h("td", { class: `number${row.between ? " between" : ""}`, "data-v": row[phase] ?? "" },
    about(row, short(row[phase])), range(row, phase) ? h("small", {}, range(row, phase)) : null);
  const time = (value) => h("td", { class: `number${row.between ? " between" : ""}`, "data-v": value ?? "" }, about(row, seconds(value)));
  return h("tr", { class: chosen ? "chosen" : null },
    h("th", { scope: "row" }, h("label", {},
      h("input", { type: "radio", name: "row", value: row.key, checked: chosen, "aria-label": `show the commands of ${row.key}` }),
      h("span", {}, h("b", {}, row.engine), " ", row.tied ? h("span", { class: "chip" }, "tied") : null, " ",
        row.checked ? h("span", { class: "chip measured" }, "checked") : null,
        h("small", {}, row.config)))),
    rate("decode"), rate("prefill"), time(firstToken(row)), time(request(row)),
    h("td", { class: "words", "data-v": row.device_gib ?? "" }, memoryText(row), row.verdict && row.verdict !== "fits" ? h("small", {}, row.verdict) : null),
    h("td", { class: "words" }, row.quality), h("td", { class: "words" }, row.binds));
};
const tableOf = (found, chosen) => {
  const table = h("table", { class: "answers" },
    h("thead", {}, h("tr", {}, HEADS.map((head, at) => h("th", { scope: "col", class: at > 0 && at < 5 ? "number" : null }, head)))),
    h("tbody", {}, found.rows.map((row) => line(row, row.key === chosen.key))));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "table of answers" },
    sortable(table, (at, down) => { choice.sort = { at, down }; }, choice.sort));
};

const SVG = "http://www.w3.org/2000/svg";
const s = (tag, attributes, ...children) => {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const STEP = 46, ABOVE = 4, EDGE = 8;
const ticksOf = (most) => {
  const raw = most / 4, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
};
const chartWidth = () => Math.max(240, byId("chart").clientWidth);
const chartOf = (rows, chosen) => {
  const drawn = rows.filter((row) => row.decode);
  if (!drawn.length) return h("p", { class: "none" }, "No rates to draw.");
  const width = chartWidth(), bottom = ABOVE + STEP * drawn.length;
  const most = Math.max(...drawn.map((row) => row.decode_high ?? row.decode));
  const x = (value) => EDGE + (value / most) * (width - 2 * EDGE);
  const said = drawn.map((row) => `${row.key}: ${about(row, short(row.decode))}${range(row, "decode") ? `, ${range(row, "decode")}` : ""}`).join("; ");
  const svg = s("svg", { role: "img", viewBox: `0 0 ${width} ${bottom + 20}`, height: bottom + 20, "aria-label": `Decode rate in tokens per second with intervals. ${said}` });
  for (const tick of ticksOf(most)) {
    const anchor = tick === 0 ? "start" : x(tick) > width - 24 ? "end" : "middle";
    svg.append(s("path", { class: "line", d: `M${x(tick).toFixed(1)} ${ABOVE}V${bottom}` }),
      s("text", { class: "scale", x: x(tick).toFixed(1), y: bottom + 15, "text-anchor": anchor }, short(tick) === "–" ? "0" : short(tick)));
  }
  drawn.forEach((row, i) => {
    const top = ABOVE + STEP * i, middle = top + 30;
    const group = s("g", { class: `${row.key === chosen.key ? "chosen" : ""}${row.between ? " between" : ""}` },
      s("text", { x: EDGE, y: top + 15 }, `${row.engine}: ${about(row, short(row.decode))}`),
      s("rect", { class: "bar", x: EDGE, y: top + 22, width: Math.max(1, x(row.decode) - EDGE).toFixed(1), height: 16 }));
    if (range(row, "decode")) {
      const [low, high] = [x(row.decode_low).toFixed(1), x(row.decode_high).toFixed(1)];
      group.append(s("path", { class: "whisker", d: `M${low} ${middle - 5}v10M${low} ${middle}H${high}M${high} ${middle - 5}v10` }));
    }
    svg.append(group);
  });
  return svg;
};

const copy = async (text, block) => {
  let copied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copied = false; // no clipboard, or no permission
    getSelection().selectAllChildren(block);
  }
  const close = () => byId("copied").replaceChildren();
  byId("copied").replaceChildren(
    h("span", {}, copied ? "Copied the commands." : "This browser does not let the page copy. The commands are selected: copy them by Ctrl+C."),
    h("button", { type: "button", class: "close", onclick: close, "aria-label": "close this message" }, "×"));
};
const commandOf = (row) => {
  const text = row.command.replaceAll("{context}", String(choice.context));
  const block = h("pre", { tabindex: 0 }, h("code", {}, text));
  const notes = lines(row.notes), remarks = lines(row.remarks);
  return [
    h("div", { class: "top" }, h("span", {}, h("b", {}, row.engine), row.config ? `: ${row.config}` : ""),
      text ? h("button", { type: "button", id: "copy", onclick: () => copy(text, block) }, "copy") : null),
    text ? block : h("p", { class: "none" }, "No commands are known for this engine."),
    notes.length ? h("ul", {}, notes.map((one) => h("li", {}, one))) : null,
    remarks.length ? h("details", {}, h("summary", {}, "assumptions of the prediction"), h("ul", {}, remarks.map((one) => h("li", {}, one)))) : null,
  ].filter(Boolean);
};

// ------------------------------------------------------------------------------ the page
const fill = (id, values, label = String) => {
  const list = byId(id), wanted = values.map((value) => [String(value), label(value)]);
  if (wanted.some(([value, text], i) => list.options[i]?.value !== value || list.options[i].text !== text) || list.options.length !== wanted.length) {
    list.replaceChildren(...wanted.map(([value, text]) => h("option", { value }, text)));
  }
  list.value = String(choice[id]);
};
const showChoices = () => {
  fill("card", CARDS);
  fill("memory", memoriesOf(choice.card));
  fill("model", MODELS);
  fill("quant", quantsOf(machineOf(choice.card, choice.memory), choice.model));
  fill("context", contextsOf(choice), (context) => grouped(context) + (isBetween(choice, context) ? " (interpolated)" : ""));
};
const showFields = () => {
  for (const name of ["prompt", "answer"]) byId(name).value = choice[name] ?? "";
  byId("lossless").checked = choice.lossless;
  byId("engines").querySelectorAll("input").forEach((box) => { box.checked = !choice.without.has(box.value); });
};
const refresh = (focusRow = false) => {
  const begun = performance.now();
  settle();
  showChoices();
  for (const name of ["prompt", "answer"]) byId(name).placeholder = grouped(lengths()[name]);
  const found = answersOf();
  const chosen = found.rows.find((row) => row.key === choice.row) ?? found.rows[0] ?? {};
  byId("machine").textContent = `${grid.machines[machineOf(choice.card, choice.memory)][2]}; ${choice.model} in ${choice.quant}, context ${grouped(choice.context)}`;
  const verdict = verdictOf(found);
  if (byId("verdict").textContent !== verdict) byId("verdict").textContent = verdict;
  byId("remarks").replaceChildren(...remarksOf(found));
  byId("table").replaceChildren(found.rows.length ? tableOf(found, chosen)
    : h("p", { class: "note" }, found.hidden ? "All rows are hidden by the filters." : "No engine has a predicted rate here."),
    leftOut(found) ?? "");
  byId("chart").replaceChildren(chartOf(found.rows, chosen));
  byId("command").replaceChildren(...(chosen.key ? commandOf(chosen) : [h("p", { class: "none" }, "No commands.")]));
  if (focusRow) byId("table").querySelector("input:checked")?.focus({ preventScroll: true });
  writeHash();
  document.documentElement.dataset.ms = (performance.now() - begun).toFixed(1);
};

byId("engines").append(...ENGINES.map((name) => h("label", {}, h("input", { type: "checkbox", value: name, checked: true }), name)));
LISTS.forEach((name) => byId(name).addEventListener("change", (event) => {
  choice[name] = name === "context" ? Number(event.target.value) : event.target.value;
  refresh();
}));
["prompt", "answer"].forEach((name) => byId(name).addEventListener("input", (event) => {
  const value = number(event.target.value);
  if (value !== null || event.target.value === "") { choice[name] = value; refresh(); }
}));
byId("lossless").addEventListener("change", (event) => { choice.lossless = event.target.checked; refresh(); });
byId("engines").addEventListener("change", (event) => {
  choice.without[event.target.checked ? "delete" : "add"](event.target.value);
  refresh();
});
byId("table").addEventListener("change", (event) => { choice.row = event.target.value; refresh(true); });
byId("form").addEventListener("submit", (event) => event.preventDefault());
byId("theme").addEventListener("click", () => { document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark"; });
addEventListener("hashchange", () => {
  if (location.hash === written) return;
  readHash();
  showFields();
  refresh();
});
addEventListener("keydown", (event) => { if (event.key === "Escape") byId("copied").replaceChildren(); });
new ResizeObserver(() => {
  const drawn = byId("chart").querySelector("svg")?.viewBox.baseVal.width;
  if (drawn && drawn !== chartWidth()) refresh();
}).observe(byId("chart"));
readHash();
showFields();
refresh();
document.documentElement.dataset.state = "ready";
