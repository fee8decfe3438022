// Charts: specs without data, drawn with the filtered rows and scales that fit them.
const DRAWN = new WeakMap();

// Returns a spec with its rows, and scales for their names and values; see figures/style.py.
const fitted = (given, rows, width) => {
  const spec = structuredClone(given), meta = spec.usermeta ?? {};
  if (rows === null) return spec; // the spec contains its data
  spec.data = { values: rows };
  const colour = () => {
    const { field, known, spare } = meta.colours;
    const found = new Set(rows.map((row) => row[field]));
    const names = [...Object.keys(known).filter((name) => found.has(name)), ...[...found].filter((name) => !(name in known))];
    let next = 0;
    const colours = Object.fromEntries(names.map((name) => [name, known[name] ?? spare[next++ % spare.length]]));
    if (meta.leaders) {
      const leading = new Set(spec.data.values.filter((row) => row.leads).map((row) => row[field]));
      Object.assign(colours, toldApart(names.filter((name) => leading.has(name)), colours));
    }
    spec.encoding.color.scale = { domain: names, range: names.map((name) => colours[name]) };
    const shapes = names.map((name) => (meta.colours.shapes ?? data.shapes)[name] ?? "circle");
    for (const layer of spec.layer ?? []) {
      if (layer.encoding?.shape) layer.encoding.shape.scale = { domain: names, range: shapes };
    }
  };
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
  if (meta.leaders) spec.data.values = led(spec, meta.leaders, rows, width);
  if (meta.colours) colour();
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

// A canvas cannot read CSS variables: its colours are those of the theme at the time.
const resolved = (spec) => {
  const probe = h("i");
  document.body.append(probe);
  const text = JSON.stringify({ ...spec, config: { ...CONFIG, ...spec.config } }).replace(/var\(--\w+\)/g, (name) => {
    probe.style.color = name;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  return JSON.parse(text);
};

const isFolded = (element) => element.closest("details:not([open])") !== null;
const draw = async (chart) => {
  const figure = DRAWN.get(chart);
  if (!figure || chart.dataset.state || isFolded(chart)) return;
  chart.dataset.state = "drawing";
  const actions = { export: true, source: false, compiled: false, editor: false };
  const renderer = (figure.rows?.length ?? 0) > data.svgLimit ? "canvas" : "svg";
  try {
    const spec = fitted(figure.spec, figure.rows, chart.clientWidth);
    const result = await vegaEmbed(chart, renderer === "canvas" ? resolved(spec) : spec, { mode: "vega-lite", renderer, actions, config: CONFIG });
    result.view.addEventListener("click", (event, item) => {
      const datum = item?.datum?.datum ?? item?.datum; // the nearest point is wrapped
      if (datum && figure.click) figure.click(datum);
    });
    chart.dataset.state = "drawn";
  } catch (error) {
    chart.dataset.state = "failed";
    chart.textContent = `This figure cannot be drawn: ${error.message}`;
    console.error(error);
  }
};

// Charts near the screen are drawn first, then all others one by one while the browser is idle: a
// capture of the whole page has them.  What is folded is drawn when the reader opens it.
const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
  { rootMargin: "400px" },
);
const waiting = () => [...document.querySelectorAll(".chart:not([data-state])")].filter((chart) => DRAWN.has(chart) && !isFolded(chart));
const idle = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
let drawing = false;
const drawRest = () => {
  if (drawing) return;
  drawing = true;
  document.documentElement.dataset.charts = "drawing";
  const next = async () => {
    const [chart] = waiting();
    if (chart) await draw(chart);
    drawing = waiting().length > 0 || document.querySelector(".chart[data-state=drawing]") !== null;
    if (drawing) idle(next, { timeout: 200 });
    else document.documentElement.dataset.charts = "drawn";
  };
  idle(next, { timeout: 200 });
};
document.addEventListener("toggle", (event) => { if (event.target.open) drawRest(); }, true);
addEventListener("beforeprint", () => waiting().forEach(draw));

const chartOf = (name, spec, rows, click) => {
  const chart = h("div", { class: "chart", "data-figure": name });
  DRAWN.set(chart, { spec, rows: typeof rows === "function" ? rows() : rows, click });
  near.observe(chart);
  drawRest();
  return chart;
};
const figure = ({ name, title, rows, note, click, spec = data.specs[name] }) =>
  h("figure", {}, title ? h("h3", {}, title) : null, chartOf(name, spec, rows, click), note ? h("figcaption", { class: "caption" }, note) : null);
