// h() makes elements from text alone: content of documents is never parsed as markup.
const h = (tag, attributes, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
};
const byId = (id) => document.getElementById(id);

// Unpacks JSON that Python's zlib compressed.
const unpack = async (id) => {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
};
const unpacked = {};
const later = (id) => (unpacked[id] ??= unpack(id));

const words = (badge) => badge.split(", ").map((part) => part.split(" on ")[0]);
const chip = (badge) => h("span", { class: `chip ${words(badge)[0]}` }, badge);
const plural = (count, one) => `${count} ${one}${count === 1 ? "" : "s"}`;

const command = (run) => {
  const text = run.command;
  return text === null
    ? h("p", { class: "caption" }, `moebench show ${run.id} prints the command of this run.`)
    : h("div", { class: "command" }, h("code", {}, text),
        h("button", { type: "button", onclick: () => copyText(text) }, "copy"));
};

// Makes a table sortable by its headers: by each cell's data-v, or by its text.
// `sorted` is told of the column and the direction; `from` is the order to begin with.
const sortable = (table, sorted = () => {}, from = null) => {
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, at) => {
    const cell = row.cells[at];
    const value = cell?.dataset.v ?? cell?.textContent.trim() ?? "";
    const number = value === "" || value === "–" ? NaN : Number(value.replace("−", "-"));
    return [number, value];
  };
  heads.forEach((head, at) => {
    if (head.textContent.trim() === "") return;
    const button = h("button", { type: "button", title: "sort" }, ...head.childNodes);
    head.replaceChildren(button);
    const sort = (down) => {
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      for (const body of table.tBodies) {
        const rows = [...body.rows].map((row) => [key(row, at), row]);
        const gone = ([number, text]) => Number.isNaN(number) && (text === "" || text === "–");
        rows.sort(([a], [b]) => {
          if (gone(a) !== gone(b)) return gone(a) ? 1 : -1; // missing values stay last
          const order = Number.isNaN(a[0]) || Number.isNaN(b[0]) ? a[1].localeCompare(b[1]) : a[0] - b[0];
          return down ? -order : order;
        });
        body.append(...rows.map(([, row]) => row));
      }
    };
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      sort(down);
      sorted(at, down);
    });
    if (from?.at === at) sort(from.down);
  });
  return table;
};

const theme = () => {
  const dark = document.documentElement.dataset.theme === "dark" ||
    (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  return dark ? "dark" : "light";
};
