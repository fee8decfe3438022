// Renders everything that depends on the filters again when they change.
const refresh = () => {
  const found = shown();
  const runs = data.runs.filter(runShown).length;
  byId("counted").textContent = `${plural(found.length, "table")}, ${runs} of ${plural(data.runs.length, "run")}`;
  const rows = heatRows(found), heat = heatMap(rows);
  byId("verdict").replaceChildren(...verdict(rows));
  writeView();
  byId("heat").replaceChildren(heat ?? h("p", { class: "note" }, found.length
    ? "Nothing to compare: no two systems ran under equal conditions. The tables state the differences."
    : "No run matches the filters."));
  byId("tables").replaceChildren(...tables(found));
  byId("left-out").replaceChildren(...view().leftOut.map((text) => h("p", { class: "note" }, text)));
  byId("charts").replaceChildren(...[...SECTIONS.map((section) => chartSection(section, found)), timelineSection(found)].filter(Boolean));
  byId("single").replaceChildren(runsSection());
  stops();
  byId("contents").replaceChildren(...[...document.querySelectorAll("main section[id]")]
    .filter((one) => !one.hidden && !one.parentElement.closest("section"))
    .map((one) => h("a", { href: `#${one.id}` }, one.querySelector("h2").textContent)));
};
readView();
byId("filters").replaceWith(filterBar(refresh));
byId("variants").closest("label").hidden = !data.views[0].rows.some((row) => Object.keys(row.changes ?? {}).length);
byId("variants").checked = state.variants;
byId("variants").addEventListener("change", (event) => { state.variants = event.target.checked; refresh(); });
byId("intervals").addEventListener("change", (event) => document.querySelector("main").classList.toggle("wide", event.target.checked));
byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
  const heat = heatMap(heatRows(shown())); // its colours follow the theme
  if (heat) byId("heat").replaceChildren(heat);
  stops();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
document.querySelectorAll("table.text").forEach((table) => sortable(table));
document.querySelectorAll(".chart[data-drawn]").forEach((chart) => {
  DRAWN.set(chart, data.drawn[chart.dataset.drawn]);
  near.observe(chart);
});
refresh();
// An address may name what is folded.
const unfold = () => {
  const target = location.hash.startsWith("#?") ? null : byId(location.hash.slice(1));
  for (let fold = target?.closest("details:not([open])"); fold; fold = fold.parentElement.closest("details:not([open])")) fold.open = true;
};
addEventListener("hashchange", unfold);
unfold();
if (/^#run-\d+$/.test(location.hash)) openRun(Number(location.hash.slice(5)));
drawRest();
document.documentElement.dataset.state = "ready";
