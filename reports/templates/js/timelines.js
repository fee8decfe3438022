// Timelines of one decoded token of two systems on one axis.
const spansOf = (picture, prefix, rank) => {
  let start = 0;
  return picture.kind.map((kind, i) => {
    start += picture.start[i];
    const lane = picture.lanes[picture.lane[i]], at = data.lanes.indexOf(lane);
    return { row: prefix + lane, rank: rank * 100 + (at < 0 ? 99 : at), kind: picture.kinds[kind], layer: picture.layer[i],
      experts: picture.experts[i].join(", ") || "none", start: start / 1000, end: (start + picture.ns[i]) / 1000, us: picture.ns[i] / 1000 };
  });
};
const PAN = "Point at a bar for its layer and experts; drag to move, Ctrl and wheel to zoom, double-click to reset.";
const basisOf = (run) => (run.simulated ? "simulated" : "measured");

const timelineSection = (found) => {
  const within = found.map((table) => [table, table.rows.filter((row) => !row.missing && row.runs.some((at) => data.pictured[at]))]).filter(([, rows]) => rows.length);
  if (!within.length) return null;
  const place = h("div", {}), pick = (options, chosen) => h("select", {}, options.map((text, at) => h("option", { value: at, selected: at === chosen }, text)));
  const where = pick(within.map(([table]) => label(table)), 0), a = h("select", {}), b = h("select", {});
  const fill = () => {
    const rows = within[where.value][1];
    const other = rows.findIndex((row, at) => at && row.base !== rows[0].base);
    a.replaceChildren(...rows.map((row, at) => h("option", { value: at, selected: at === 0 }, row.system)));
    b.replaceChildren(...rows.map((row, at) => h("option", { value: at, selected: at === Math.max(other, 0) }, row.system)));
    show();
  };
  const show = async () => {
    const rows = within[where.value][1], chosen = [...new Set([a.value, b.value])].map((at) => rows[at]);
    const workloads = chosen.map((row) => row.runs.filter((at) => data.pictured[at]));
    // Choose a workload that both systems have, if there is one.
    const same = workloads[0].find((at) => workloads.every((ones) => ones.some((other) => data.runs[other].workload === data.runs[at].workload))) ?? workloads[0][0];
    const runs = workloads.map((ones) => ones.find((at) => data.runs[at].workload === data.runs[same].workload) ?? ones[0]);
    const pictures = await later("pictures");
    const spans = runs.flatMap((at, i) => spansOf(pictures[at], runs.length > 1 ? `${"AB"[i]} ` : "", i));
    place.replaceChildren(figure({ name: "timeline", rows: spans,
      note: runs.map((at, i) => `${"AB"[i]}: ${data.runs[at].system}, ${data.runs[at].workload}, run ${data.runs[at].id}, ${data.runs[at].badge}`).join("; ") + `. ${PAN}` }));
  };
  where.addEventListener("change", fill);
  a.addEventListener("change", show);
  b.addEventListener("change", show);
  fill();
  return h("section", { id: "timelines" }, h("h2", {}, "One decoded token, two systems"),
    h("div", { class: "pickers" }, h("label", {}, "in ", where), h("label", {}, "A: ", a), h("label", {}, "B: ", b)), place,
    h("p", { class: "caption" }, "Each row is a lane, each bar an operation. device: computation; h2d: loads of experts; d2h: results of the host. Operations that were under way when the token began are cut at its beginning."));
};
