// The monotone cubic through points at x, constant outside of them: harness/advise/interpolation.py.
const monotone = (xs, ys, x) => {
  const last = xs.length - 1;
  if (x <= xs[0] || last === 0) return ys[0];
  if (x >= xs[last]) return ys[last];
  const widths = xs.slice(1).map((right, i) => right - xs[i]);
  const rises = widths.map((width, i) => (ys[i + 1] - ys[i]) / width);
  const end = (w0, w1, r0, r1) => {
    const slope = ((2 * w0 + w1) * r0 - w0 * r1) / (w0 + w1);
    if (slope * r0 <= 0) return 0;
    return r0 * r1 < 0 && Math.abs(slope) > 3 * Math.abs(r0) ? 3 * r0 : slope;
  };
  const slopeAt = (i) => {
    if (last === 1) return rises[0];
    if (i === 0) return end(widths[0], widths[1], rises[0], rises[1]);
    if (i === last) return end(widths[last - 1], widths[last - 2], rises[last - 1], rises[last - 2]);
    if (rises[i - 1] * rises[i] <= 0) return 0;
    const a = 2 * widths[i] + widths[i - 1], b = widths[i] + 2 * widths[i - 1];
    return (a + b) / (a / rises[i - 1] + b / rises[i]);
  };
  const at = xs.findLastIndex((left, i) => i < last && left <= x);
  const width = widths[at], t = (x - xs[at]) / width;
  return ys[at] * (1 + 2 * t) * (1 - t) ** 2 + width * slopeAt(at) * t * (1 - t) ** 2
    + ys[at + 1] * t * t * (3 - 2 * t) - width * slopeAt(at + 1) * t * t * (1 - t);
};

// A rate at a context between two computed ones, from a curve of [context, rate]; null if a neighbour has none.
const rateBetween = (curve, low, high, context) => {
  const known = curve.filter(([, rate]) => rate);
  if (![low, high].every((end) => known.some(([at]) => at === end))) return null;
  return 1e3 / monotone(known.map(([at]) => Math.log2(at)), known.map(([, rate]) => 1e3 / rate), Math.log2(context));
};
