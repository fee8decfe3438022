// Filters: one workload or the mean over all, the most loss, and the values that each other dimension excludes.
const state = { workload: "", loss: "", variants: false, sort: "", out: { where: new Set(), batch: new Set(), base: new Set(), badge: new Set() } };

// The page's address names the view, so that it can be sent: #?workload=facts&out.where=S1&loss=0.
const readView = () => {
  if (!location.hash.startsWith("#?")) return;
  for (const [key, value] of new URLSearchParams(location.hash.slice(2))) {
    const [name, dimension] = key.split(".");
    if (name === "out" && dimension in state.out) state.out[dimension].add(value);
    else if (name === "workload" && data.views.some((one) => one.workload === value)) state.workload = value;
    else if (name === "loss" && LOSSES.some(([limit]) => limit === value)) state.loss = value;
    else if (name === "sort") state.sort = value;
    else if (name === "variants") state.variants = true;
  }
};
const writeView = () => {
  const found = new URLSearchParams();
  for (const name of ["workload", "loss", "sort"]) if (state[name]) found.append(name, state[name]);
  if (state.variants) found.append("variants", "1");
  for (const [name, values] of Object.entries(state.out)) for (const value of values) found.append(`out.${name}`, value);
  const text = found.toString();
  if (text) history.replaceState(null, "", `#?${text}`);
  else if (location.hash.startsWith("#?")) history.replaceState(null, "", "#");
};

// Limits of loss that can be chosen: nats per token, or no loss at all.
const LOSSES = [["", "all systems"], ["0", "lossless only"], ...["0.001", "0.01", "0.1"].map((limit) => [limit, `KL up to ${limit}`])];
const lossAllowed = ({ lossless, v }) => {
  if (state.loss === "" || lossless !== false) return true;
  return state.loss !== "0" && Number(v?.kl?.mean ?? v?.kl ?? NaN) <= Number(state.loss);
};
const DIMENSIONS = { where: "setting", batch: "batch", base: "system", badge: "badge" };

const allowed = (name, value) => !state.out[name].has(String(value));
const badgeAllowed = (badge) => words(badge).some((word) => allowed("badge", word));
const view = () => data.views.find((one) => one.workload === state.workload);
const tableShown = (table) => allowed("where", table.where) && allowed("batch", table.batch);
const rowShown = (row) => row.missing ? allowed("base", row.base.split(" ")[0]) : allowed("base", row.base) && badgeAllowed(row.badge) && lossAllowed(row);
const runShown = (run) => allowed("where", run.where) && allowed("batch", run.batch) && allowed("base", run.base) &&
  badgeAllowed(run.badge) && (state.workload === "" || run.workload === state.workload) && lossAllowed(run);

// The tables of the chosen view with their filtered rows, without empty tables.
const shown = () => {
  const { tables, rows } = view();
  const found = tables.map((table, index) => ({ ...table, index, rows: [], all: 0 }));
  for (const row of rows) {
    const table = found[row.t];
    table.all += row.missing ? 0 : 1;
    if (tableShown(table) && rowShown(row)) table.rows.push(row);
  }
  return found.filter((table) => table.rows.some((row) => !row.missing));
};

const choices = () => {
  const found = { where: new Set(), batch: new Set(), base: new Set(), badge: new Set() };
  for (const run of data.runs) {
    found.where.add(run.where); found.batch.add(run.batch); found.base.add(run.base);
    words(run.badge).forEach((word) => found.badge.add(word));
  }
  return Object.fromEntries(Object.entries(found).map(([name, values]) => [name,
    [...values].sort((a, b) => typeof a === "number" ? a - b : String(a).localeCompare(String(b)))]));
};

const filterBar = (changed) => {
  const bar = h("form", { class: "filters", "aria-label": "filters", onsubmit: (event) => event.preventDefault() });
  const refresh = () => {
    for (const menu of bar.querySelectorAll("details")) {
      const gone = state.out[menu.dataset.name].size;
      menu.classList.toggle("active", gone > 0);
      const total = menu.querySelectorAll("input").length;
      menu.firstChild.textContent = `${DIMENSIONS[menu.dataset.name]}: ${gone ? `${total - gone} of ${total}` : "all"}`;
    }
    byId("workload")?.classList.toggle("active", state.workload !== "");
    byId("loss")?.classList.toggle("active", state.loss !== "");
    changed();
  };
  for (const [name, values] of Object.entries(choices())) {
    if (values.length < 2) continue;
    const boxes = values.map((value) => h("input", { type: "checkbox", checked: allowed(name, value), value: String(value),
      onchange: (event) => {
        if (event.target.checked) state.out[name].delete(String(value));
        else state.out[name].add(String(value));
        refresh();
      } }));
    const all = (checked) => h("button", { type: "button", onclick: () => {
      boxes.forEach((box) => { box.checked = checked; });
      state.out[name] = new Set(checked ? [] : values.map(String));
      refresh();
    } }, checked ? "all" : "none");
    bar.append(h("details", { "data-name": name },
      h("summary", {}, `${DIMENSIONS[name]}: all`),
      h("div", { class: "menu" }, all(true), all(false), boxes.map((box) => h("label", {}, box, ` ${box.value}`)))));
  }
  if (data.views.length > 1) {
    bar.append(h("label", {}, "workload: ", h("select", { id: "workload", onchange: (event) => {
      state.workload = event.target.value;
      refresh();
    } }, data.views.map((one) => h("option", { value: one.workload, selected: one.workload === state.workload }, one.workload || "mean over all")))));
  }
  if (data.runs.some((run) => run.lossless === false)) {
    bar.append(h("label", {}, "loss: ", h("select", { id: "loss", onchange: (event) => {
      state.loss = event.target.value;
      refresh();
    } }, LOSSES.map(([limit, text]) => h("option", { value: limit, selected: limit === state.loss }, text)))));
  }
  bar.append(h("button", { type: "button", class: "reset", onclick: () => {
    Object.assign(state, { workload: "", loss: "", sort: "", variants: false });
    Object.keys(state.out).forEach((name) => { state.out[name] = new Set(); });
    bar.querySelectorAll("input").forEach((box) => { box.checked = true; });
    for (const name of ["workload", "loss"]) if (byId(name)) byId(name).value = "";
    byId("variants").checked = false;
    refresh();
  } }, "reset"), h("span", { id: "counted", role: "status" }));
  // One menu at a time; Escape and a click elsewhere close it.
  const close = (but) => bar.querySelectorAll("details[open]").forEach((menu) => { if (menu !== but) menu.open = false; });
  bar.addEventListener("toggle", (event) => { if (event.target.open) close(event.target); }, true);
  document.addEventListener("click", (event) => { if (!bar.contains(event.target)) close(null); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(null); });
  return bar;
};
