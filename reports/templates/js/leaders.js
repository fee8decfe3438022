// Charts of many lines: the leaders are coloured and named at their ends, the others are grey.
// figures/leaders.py defines the rule, and applies it to files.
const MOST = 6, LABEL = 15, LETTER = 6.6, SYMBOL = 28, SHARE = 0.36;
const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

const ranked = (rows, meta) => {
  const { field, value, better, over, first } = meta, sign = better === "less" ? 1 : -1;
  const lines = new Map();
  for (const row of rows) lines.set(row[field], [...(lines.get(row[field]) ?? []), row]);
  const ends = [...lines.values()].map((own) => Math.max(...own.map((row) => row[over]))).sort((a, b) => a - b);
  const end = ends[Math.floor((ends.length - 1) / 2)]; // a line ends early if more than half go on
  const keys = [...lines].map(([name, own]) => {
    const last = over && Math.max(...own.map((row) => row[over]));
    const values = own.filter((row) => !over || row[over] === last).map((row) => row[value]);
    return [name, Number(!own.some((row) => row[first])), Number(over !== null && last < end), sign * average(values)];
  });
  keys.sort((a, b) => a[1] - b[1] || a[2] - b[2] || a[3] - b[3] || (String(a[0]) < String(b[0]) ? -1 : 1));
  return keys.map(([name]) => name);
};

// The colours of a chart's leaders: their own, but for the second of one colour, and for grey, the others' colour.
const toldApart = (leading, colours) => {
  const free = data.palette.slice(0, -1), found = {};
  for (const name of leading) {
    const at = free.indexOf(colours[name]);
    if (at >= 0) [found[name]] = free.splice(at, 1);
  }
  return Object.fromEntries(leading.map((name) => [name, found[name] ?? free.shift()]));
};

// Moves increasing places from 0 to 1 apart to a gap, and leaves others alone.
const spread = (places, wanted) => {
  const n = places.length, gap = Math.min(wanted, 1 / Math.max(n - 1, 1));
  const free = places.map((place, at) => place - at * gap);
  return free.map((_, at) => {
    const middle = (Math.max(...free.slice(0, at + 1)) + Math.min(...free.slice(at))) / 2;
    return Math.min(Math.max(middle, 0), 1 - (n - 1) * gap) + at * gap;
  });
};

// The layers of labels at the right edge; the vertical scale is fixed, to place them.
const endsOf = (spec, rows, leading, meta) => {
  const { field, value, over, extent } = meta, y = spec.encoding.y, scale = y.scale ?? {};
  const logarithmic = scale.type === "log", to = logarithmic ? Math.log : Number, back = logarithmic ? Math.exp : Number;
  const values = rows.flatMap((row) => extent.map((name) => row[name])).filter((one) => one !== undefined && one !== null);
  let low = to(Math.min(...values)), high = to(Math.max(...values));
  if (!logarithmic && scale.zero !== false) low = Math.min(low, 0);
  else low -= 0.04 * (high - low) || 0.04 * Math.abs(high) || 1;
  high += new Set(values).size > 1 || low === 0 ? 0.04 * (high - low) : 0;
  const { zero: _, padding: __, ...rest } = scale;
  y.scale = { ...rest, domain: [back(low), back(high)], nice: false };
  const ends = leading.map((name) => {
    const own = rows.filter((row) => row[field] === name && row.last);
    return { [field]: name, [over]: own[0][over], [value]: average(own.map((row) => row[value])) };
  }).sort((a, b) => a[value] - b[value]);
  const places = spread(ends.map((one) => (to(one[value]) - low) / (high - low)), LABEL / spec.height);
  ends.forEach((one, at) => { one.place = back(low + places[at] * (high - low)); });
  const edge = { value: "width" }, place = { field: "place", type: "quantitative" }, tooltip = { value: null };
  return [
    { name: "ends rule", data: { values: ends }, mark: { type: "rule", opacity: 0.5, strokeDash: [2, 2] },
      encoding: { x: { field: over, type: spec.encoding.x.type }, x2: edge, y: { field: value, type: "quantitative" }, y2: { field: "place" }, tooltip } },
    { name: "ends point", data: { values: ends }, mark: { type: "point", filled: true, size: 55, opacity: 1, xOffset: 14 },
      encoding: { x: edge, y: place, tooltip, shape: { field, type: "nominal", legend: null } } },
    { name: "ends text", data: { values: ends }, mark: { type: "text", align: "left", dx: 22, fontSize: 12 },
      encoding: { x: edge, y: place, text: { field }, tooltip, color: { value: "var(--ink)" } } },
  ];
};

// Names a chart's leaders, at the ends of their lines or in a legend, and returns its rows with their flags.
const led = (spec, meta, given, width) => {
  const { field, over } = meta, along = over ?? meta.value;
  const known = (value) => value !== undefined && value !== null;
  const rows = given.filter((row) => known(row[meta.value]) && known(row[along]));
  const names = ranked(rows, meta), leading = names.slice(0, MOST), last = new Map();
  for (const row of rows) last.set(row[field], Math.max(last.get(row[field]) ?? -Infinity, row[along]));
  const found = rows.map((row) => ({ ...row, leads: leading.includes(row[field]), last: row[along] === last.get(row[field]) }));
  if (names.length > MOST) {
    spec.title = { text: `grey: ${names.length - MOST} others`, anchor: "start", fontSize: 11, fontWeight: "normal", color: "var(--muted)" };
  } else spec.layer = spec.layer.filter((layer) => layer.name !== "rest"); // an empty layer has no scale
  const labelled = over !== null && LETTER * Math.max(...leading.map((name) => String(name).length)) + SYMBOL <= SHARE * width;
  for (const one of [spec, ...spec.layer]) for (const channel of ["color", "shape"]) {
    const encoding = one.encoding?.[channel];
    if (encoding?.legend) encoding.legend = labelled ? null : { ...encoding.legend, values: leading };
  }
  if (labelled) spec.layer.push(...endsOf(spec, found, leading, meta));
  return found;
};
