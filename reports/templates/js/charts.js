// Charts: specs without data, drawn with the filtered rows and scales that fit them.
const DRAWN = new WeakMap();

// Returns a spec with its rows, and scales for their names and values; see figures/style.py.
const fitted = (given, rows, width) => {
  const spec = structuredClone(given), meta = spec.usermeta ?? {};
  if (rows === null) return spec; // the spec contains its data
  spec.data = { values: rows };
  if (meta.colours) {
    const { field, known, spare } = meta.colours;
    const found = new Set(rows.map((row) => row[field]));
    const names = [...Object.keys(known).filter((name) => found.has(name)), ...[...found].filter((name) => !(name in known))];
    let next = 0;
    const range = names.map((name) => known[name] ?? spare[next++ % spare.length]);
    spec.encoding.color.scale = { domain: names, range };
    const shapes = names.map((name) => data.shapes[name] ?? "circle");
    for (const layer of spec.layer ?? []) {
      if (layer.encoding?.shape) layer.encoding.shape.scale = { domain: names, range: shapes };
    }
  }
  for (const [channel, field] of Object.entries(meta.sort ?? {})) {
    spec.encoding[channel].sort = [...new Set(rows.toSorted((a, b) => a.rank - b.rank).map((row) => row[field]))];
  }
  // A layer of values that no row has would break the axis.
  const has = (field) => field === undefined || rows.some((row) => row[field] !== undefined);
  if (spec.layer) spec.layer = spec.layer.filter((layer) => has(layer.encoding?.y?.field));
  for (const [channel, field] of Object.entries(meta.room ?? {})) {
    spec.encoding[channel].scale = { ...spec.encoding[channel].scale, domainMax: (width < 480 ? 2.2 : 1.3) * Math.max(...rows.map((row) => row[field])) };
  }
  for (const [channel, fields] of Object.entries(meta.log ?? {})) {
    const values = rows.flatMap((row) => fields.map((field) => row[field])).filter((value) => value > 0);
    if (Math.max(...values) / Math.min(...values) >= 10) {
      const { zero, ...rest } = spec.encoding[channel].scale ?? {};
      const scale = { ...rest, type: "log", nice: false, ...(channel === "y" ? { padding: 8 } : { padding: 12 }) };
      spec.encoding[channel].scale = scale;
      spec.encoding[channel].axis = { ...spec.encoding[channel].axis, tickCount: 6, format: "~g" };
      spec.encoding[channel].axis.title += ", logarithmic";
    }
  }
  // Bars have a fixed height.
  if (spec.height.step) spec.height = given.height.step * new Set(rows.map((row) => row[spec.encoding.y.field])).size;
  if (width < 480) {
    for (const one of [spec, ...(spec.layer ?? [])]) for (const channel of Object.values(one.encoding ?? {})) {
      if (channel.legend) channel.legend = { ...channel.legend, columns: 2 };
    }
    if (spec.encoding.y?.axis) spec.encoding.y.axis = { ...spec.encoding.y.axis, labelLimit: 130 };
  }
  return spec;
};

// CSS variables as colours, so that charts follow the page's theme.
const CONFIG = {
  background: "transparent",
  axis: { labelColor: "var(--ink)", titleColor: "var(--muted)", gridColor: "var(--rule)", domainColor: "var(--rule)", tickColor: "var(--rule)", labelLimit: 200 },
  legend: { labelColor: "var(--ink)", titleColor: "var(--ink)" },
  header: { labelColor: "var(--ink)", titleColor: "var(--ink)" },
  title: { color: "var(--ink)" },
};

const draw = async (chart) => {
  const figure = DRAWN.get(chart);
  if (!figure || chart.dataset.state) return;
  chart.dataset.state = "drawing";
  const actions = { export: true, source: false, compiled: false, editor: false };
  const renderer = (figure.rows?.length ?? 0) > data.svgLimit ? "canvas" : "svg";
  try {
    const spec = fitted(figure.spec, figure.rows, chart.clientWidth);
    const result = await vegaEmbed(chart, spec, { mode: "vega-lite", renderer, actions, config: CONFIG });
    result.view.addEventListener("click", (event, item) => { if (item?.datum && figure.click) figure.click(item.datum); });
    chart.dataset.state = "drawn";
  } catch (error) {
    chart.dataset.state = "failed";
    chart.textContent = `This figure cannot be drawn: ${error.message}`;
    console.error(error);
  }
};
// Charts are drawn when they come near the screen, so that large pages open at once.
const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => { near.unobserve(entry.target); draw(entry.target); }),
  { rootMargin: "400px" },
);
addEventListener("beforeprint", () => document.querySelectorAll(".chart").forEach(draw));

const chartOf = (name, spec, rows, click) => {
  const chart = h("div", { class: "chart", "data-figure": name });
  DRAWN.set(chart, { spec, rows: typeof rows === "function" ? rows() : rows, click });
  near.observe(chart);
  return chart;
};
const figure = ({ name, title, rows, note, click, spec = data.specs[name] }) =>
  h("figure", {}, title ? h("h3", {}, title) : null, chartOf(name, spec, rows, click), note ? h("figcaption", { class: "caption" }, note) : null);
