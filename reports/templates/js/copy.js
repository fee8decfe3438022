// Copies the number of a table's cell with its conditions, as one line of plain text.
// A cell of a comparison or of a run has its own line; the line of any other cell is its row.
const LINES = new WeakMap();
const one = (text) => String(text).replace(/\s+/g, " ").trim();
const copyable = (cell, line, more = null) => { LINES.set(cell, { line, more }); cell.dataset.copy = ""; return cell; };

const settingOf = (run) => [
  run.model, run.where, run.capacity === null ? "capacity unknown" : `capacity ${Number((100 * run.capacity).toPrecision(4))} % of experts`,
  `batch ${run.batch}`];
const madeOf = (runs) => [
  `workload ${[...new Set(runs.map((run) => run.workload))].join(" and ")}`, `machine ${runs[0].machine}`,
  [...new Set(runs.map((run) => `${basisOf(run)} (${run.badge})`))].join(" and "),
  `run ${runs.map((run) => run.id).join(" ")}`, `moebench ${[...new Set(runs.map((run) => run.code))].join(" and ")}`];

// "97.64 ms ± 3.2 (95 % interval over 5 workloads and seeds)".
const quantity = (figure, value) => `${figure.label} ${value.text}${unitOf(figure)}` + (
  value.sure ? ` ± ${value.half} (95 % interval over ${value.n} workloads and seeds)`
    : value.stderr !== undefined ? ` ± ${value.stderr} (standard error)`
      : value.ends ? ` (${value.ends.join(" to ")}${unitOf(figure)} over the ranges of the hardware profile)` : " (no interval)");
const rowLine = (table, row, said) => {
  const runs = row.runs.map((at) => data.runs[at]);
  return [said, row.system + (row.lossless === false ? " (lossy)" : ""), ...settingOf(runs[0]), ...madeOf(runs)].map(one).join(", ");
};
const runLineOf = (run, said) => [said, run.system + (run.lossless === false ? " (lossy)" : ""), ...settingOf(run), ...madeOf([run])].map(one).join(", ");

// A number in a table of text: its row, the headings above, and where the table is from.
const headingOf = (table) => {
  let found = table.closest(".scroll");
  while (found && !found.matches("h3, h4, h5, summary")) found = found.previousElementSibling;
  return found;
};
const textLine = (cell) => {
  const table = cell.closest("table"), grid = table.matches(".alpha"), section = cell.closest("section");
  const heads = [...table.tHead.rows[0].cells].map((head) => one(head.textContent));
  const named = (other) => `${heads[other.cellIndex]} ${one(other.textContent)}`.trim();
  const own = grid ? `${one(cell.textContent)} at α = ${heads[cell.cellIndex].replace("α = ", "")}` : named(cell);
  // A row of the table by α holds a value for each α: the others are not conditions of this one.
  const others = [...cell.parentElement.cells].filter((other) => other !== cell && one(other.textContent) && !(grid && other.querySelector("data, .none")));
  const heading = headingOf(table), origin = grid ? heading?.nextElementSibling?.textContent : null;
  return [own, ...others.map(named), cell.closest("tbody").querySelector("th[scope=rowgroup]")?.textContent, heading?.textContent,
    section?.querySelector("h2, h3").textContent, origin, cell.closest("#appendix") ? "from the appendix: shipped with moebench, not of this store" : null]
    .filter(Boolean).map(one).join(", ");
};

// The confirmation: visible, and read out. Inside an open dialog, as all else is inert then.
const confirm = (line, copied, more) => {
  const place = document.querySelector("dialog[open] .copied") ?? byId("copied"), before = document.activeElement;
  const close = () => { place.replaceChildren(); before?.focus({ preventScroll: true }); };
  const text = h("textarea", { readonly: true, rows: 3, "aria-label": "text to copy" });
  text.value = line;
  place.replaceChildren(
    copied ? h("span", {}, "Copied: ", h("span", { class: "line" }, line))
      : h("span", {}, "This browser does not let the page copy. Press Ctrl+C to copy the selected text: ", text),
    more ? h("button", { type: "button", onclick: () => { close(); more(); } }, "runs and commands") : "",
    h("button", { type: "button", class: "close", onclick: close, "aria-label": "close this message" }, "×"));
  if (!copied) { text.focus({ preventScroll: true }); text.select(); }
};
addEventListener("keydown", (event) => { if (event.key === "Escape") byId("copied").querySelector(".close")?.click(); });
const copyText = async (line, more = null) => {
  let copied = false;
  try {
    await navigator.clipboard.writeText(line);
    copied = true;
  } catch { /* no clipboard, or no permission: the text is shown, selected */ }
  confirm(line, copied, more);
};

const cellOf = (target) => {
  const cell = target.closest?.("td");
  if (!cell || target.closest("button, a, summary, textarea")) return null;
  return "copy" in cell.dataset || (cell.closest("main table.text, main table.alpha") && /\d/.test(cell.textContent)) ? cell : null;
};
const copyCell = (cell) => {
  const own = LINES.get(cell);
  copyText(own ? own.line() : textLine(cell), own?.more);
};
document.addEventListener("click", (event) => {
  const cell = cellOf(event.target);
  if (cell && getSelection().isCollapsed) { focusCell(cell); copyCell(cell); }
});

// By keyboard: a table is one stop, arrows move between its cells, Enter copies.
const cells = (table) => [...table.querySelectorAll("tbody td, tfoot td")].filter((cell) => cellOf(cell));
const focusCell = (cell) => {
  cell.closest("table").querySelectorAll("td[tabindex]").forEach((other) => other.removeAttribute("tabindex"));
  cell.tabIndex = 0;
  cell.focus({ preventScroll: true });
};
const stops = () => document.querySelectorAll("main table").forEach((table) => {
  if (!table.querySelector("td[tabindex]")) cells(table)[0]?.setAttribute("tabindex", "0");
});
document.addEventListener("keydown", (event) => {
  const cell = event.target.matches?.("td[tabindex]") ? event.target : null;
  if (!cell) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    copyCell(cell);
    return;
  }
  const [across, down] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
  if (!across && !down) return;
  event.preventDefault();
  const table = cell.closest("table"), rows = [...table.querySelectorAll("tbody tr, tfoot tr")];
  const all = cells(table);
  if (across) {
    const next = all.filter((other) => other.parentElement === cell.parentElement);
    focusCell(next[next.indexOf(cell) + across] ?? cell);
  } else {
    for (let at = rows.indexOf(cell.parentElement) + down; rows[at]; at += down) {
      const next = rows[at].cells[cell.cellIndex];
      if (next && all.includes(next)) { focusCell(next); break; }
    }
  }
  document.activeElement.scrollIntoView({ block: "nearest", inline: "nearest" });
});
