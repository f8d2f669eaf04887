"use strict";
// What the page can do beyond links: mark the chosen kernel, keys, search, copying, sorting, zoom.
const panelOf = () => /^#k\d+$/.test(location.hash) && document.getElementById(location.hash.slice(1));

let opener = null;
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#k"]');
  if (link && !link.closest(".kernel")) opener = link;
});

function choose() {
  for (const mark of document.querySelectorAll(".chosen")) mark.classList.remove("chosen");
  const panel = panelOf();
  if (!panel) return;
  for (const mark of document.querySelectorAll(`svg a[href="#${panel.id}"]`)) mark.classList.add("chosen");
  const row = document.querySelector(`#all a[href="#${panel.id}"]`)?.closest("tr");
  row?.classList.add("chosen");
  if (row && !opener) row.scrollIntoView({ block: "center" }); // the address named the kernel
  panel.querySelector("h3").focus({ preventScroll: true });
}
window.addEventListener("hashchange", choose);

document.addEventListener("keydown", (event) => {
  const panel = panelOf();
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input");
  const search = document.querySelector("input[type=search]");
  if (event.key === "/" && !typing && search) {
    event.preventDefault();
    search.focus();
  }
  if (!panel || typing) return;
  if (event.key === "Escape") {
    location.hash = "#none";
    if (opener) opener.focus({ preventScroll: true });
  } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    if (event.target.closest("pre")) return;
    const side = event.key === "ArrowLeft" ? "previous" : "next";
    const next = panel[`${side}ElementSibling`];
    if (next?.matches(".kernel")) location.hash = `#${next.id}`;
  }
});

function element(name, text, attributes) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  return made;
}

// Kernels by name, node or kind: rows of the table, and their marks in the drawings.
const all = document.getElementById("all");
if (all) {
  const search = element("input", "", { type: "search", placeholder: "name, node or kind ( / )", "aria-label": "Search kernels" });
  const found = element("output", "", { "aria-live": "polite" });
  const tools = element("div", "", { class: "tools" });
  tools.append(search, found);
  all.parentElement.before(tools);
  let rows = null;
  const read = () => [...all.tBodies[0].rows].map((row) => {
    const panels = [...row.querySelectorAll('a[href^="#k"]')].map((link) => document.getElementById(link.hash.slice(1)));
    const nodes = panels.flatMap((panel) => [...panel.querySelectorAll("h3, .nodes li")].map((node) => node.textContent));
    return { row, ids: panels.map((panel) => panel.id), text: [row.textContent, ...nodes].join("\n").toLowerCase() };
  });
  search.addEventListener("input", () => {
    rows ??= read();
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const like = new Set();
    let count = 0;
    for (const { row, ids, text } of rows) {
      const matches = words.every((word) => text.includes(word));
      row.hidden = !matches;
      count += matches;
      if (matches) ids.forEach((id) => like.add(id));
    }
    for (const mark of document.querySelectorAll('svg a[href^="#k"]')) mark.classList.toggle("unlike", !like.has(mark.getAttribute("href").slice(1)));
    found.textContent = words.length ? `${count} of ${rows.length} rows` : "";
  });
}

// Buttons that copy a text.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", text, {});
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
for (const pre of document.querySelectorAll("pre")) {
  const button = element("button", "copy", { class: "copy", type: "button", "aria-label": `Copy: ${pre.previousElementSibling?.textContent ?? "text"}` });
  pre.before(button);
  button.addEventListener("click", async () => {
    button.textContent = (await copied(pre.textContent)) ? "copied" : "not allowed";
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
}

// A number as it is printed, with its unit.
const UNITS = { s: 1e6, ms: 1e3, "µs": 1, TB: 1e12, GB: 1e9, MB: 1e6, kB: 1e3, T: 1e12, G: 1e9, M: 1e6, k: 1e3 };
function worth(text) {
  const found = /^([-−+]?)([\d.,]+)(?:e([+-]\d+))?\s*(\S*)/.exec(text.trim());
  if (!found) return null;
  const size = Number(found[2].replaceAll(",", "")) * 10 ** Number(found[3] ?? 0);
  return (found[1] === "−" || found[1] === "-" ? -size : size) * (UNITS[found[4]] ?? 1);
}

for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    if (!head.textContent) return;
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      for (const other of table.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows].map((row) => [row.cells[column].textContent, row]);
      rows.sort(([a], [b]) => {
        const [x, y] = [worth(a), worth(b)];
        const order = x === null || y === null ? b.localeCompare(a) : y - x;
        return up ? -order : order;
      });
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}

const drawing = document.getElementById("drawing");
if (drawing) {
  const [width, height] = ["width", "height"].map((name) => Number(drawing.getAttribute(name)));
  const box = drawing.parentElement;
  let scale = 1;
  const zoom = (to) => {
    scale = Math.min(4, Math.max(0.05, to));
    drawing.setAttribute("width", width * scale);
    drawing.setAttribute("height", height * scale);
  };
  const tools = element("div", "", { class: "tools" });
  const fit = () => zoom(Math.min(1, (box.clientWidth - 2) / width));
  for (const [name, said, act] of [
    ["−", "Smaller", () => zoom(scale / 1.25)],
    ["+", "Larger", () => zoom(scale * 1.25)],
    ["fit", "As wide as the page", fit],
    ["whole", "The whole graph", () => zoom(Math.min((box.clientWidth - 2) / width, box.clientHeight / height))],
  ]) {
    const button = element("button", name, { type: "button", "aria-label": said });
    button.addEventListener("click", act);
    tools.append(button);
  }
  box.before(tools);
  fit();
}

// What is folded is printed, the texts of kernels left out; search and folds come back afterwards.
let folded = [];
window.addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")].filter((each) => !each.querySelector("pre"));
  for (const each of folded) each.open = true;
});
window.addEventListener("afterprint", () => {
  for (const each of folded) each.open = false;
});

choose();
