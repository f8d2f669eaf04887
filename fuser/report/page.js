"use strict";
// What the page can do beyond links: mark the chosen kernel, keys, sorting, zoom.
const panelOf = () => /^#k\d+$/.test(location.hash) && document.getElementById(location.hash.slice(1));

let opener = null;
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#k"]');
  if (link && !link.closest(".kernel")) opener = link;
});

function choose() {
  for (const mark of document.querySelectorAll("a.chosen")) mark.classList.remove("chosen");
  const panel = panelOf();
  if (!panel) return;
  for (const mark of document.querySelectorAll(`svg a[href="#${panel.id}"]`)) mark.classList.add("chosen");
  panel.querySelector("h3").focus({ preventScroll: true });
}
window.addEventListener("hashchange", choose);
choose();

document.addEventListener("keydown", (event) => {
  const panel = panelOf();
  if (!panel || event.ctrlKey || event.metaKey || event.altKey) return;
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
  const tools = document.createElement("div");
  tools.className = "tools";
  const fit = () => zoom(Math.min(1, (box.clientWidth - 2) / width));
  for (const [name, said, act] of [
    ["−", "Smaller", () => zoom(scale / 1.25)],
    ["+", "Larger", () => zoom(scale * 1.25)],
    ["fit", "As wide as the page", fit],
    ["whole", "The whole graph", () => zoom(Math.min((box.clientWidth - 2) / width, box.clientHeight / height))],
  ]) {
    const button = document.createElement("button");
    button.textContent = name;
    button.setAttribute("aria-label", said);
    button.addEventListener("click", act);
    tools.append(button);
  }
  box.before(tools);
  fit();
}
