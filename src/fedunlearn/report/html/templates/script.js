"use strict";
(() => {
{% include "reading.js" %}

  const values = JSON.parse(document.getElementById("values").textContent);
  const hidden = new Set();

  // Tables: a click or Enter sorts, another one reverses the order; missing values stay last.
  for (const button of all(".sortable th button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th"), body = head.closest("table").tBodies[0];
      const place = head.cellIndex, sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      const key = (row) => row.cells[place].dataset.value ?? row.cells[place].textContent.trim();
      const rows = [...body.rows].sort((one, two) => {
        const [a, b] = [key(one), key(two)];
        if (a === "" || b === "") return (a === "") - (b === "");
        return sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b, "en") : a - b);
      });
      all("th[aria-sort]", head.parentElement).forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      body.append(...rows);
    });
  }

  // Show and hide rows in all figures.
  const toggle = (row, shown) => {
    shown ? hidden.delete(row) : hidden.add(row);
    all(`.plot [data-row="${row}"]`).forEach((mark) => mark.classList.toggle("off", !shown));
  };
  const boxes = all("[data-toggle]");
  for (const box of boxes) {
    const row = Number(box.dataset.toggle), label = box.closest("label");
    box.addEventListener("change", () => toggle(row, box.checked));
    const others = (on) => all(".plot [data-row]").forEach((mark) =>
      mark.classList.toggle("dim", on && Number(mark.dataset.row) !== row));
    label.addEventListener("pointerenter", () => others(box.checked));
    label.addEventListener("pointerleave", () => others(false));
  }
  for (const button of all("[data-all]")) {
    button.addEventListener("click", () => boxes.forEach((box) => {
      box.checked = Boolean(button.dataset.all);
      toggle(Number(box.dataset.toggle), box.checked);
    }));
  }

  // What figures tell about the place under the pointer.
  const write = (y, percent) => percent ? (100 * y).toFixed(1) + " %" : String(Number(y.toPrecision(3)));
  const swatch = (row) => all(`[data-toggle="${row}"] + .swatch`).map((mark) => mark.cloneNode(true));
  const curves = (plot, data) => ({
    steps: () => data.places,
    nearest: (x) => data.places.reduce((best, at, n) =>
      Math.abs(at - x) < Math.abs(data.places[best] - x) ? n : best, 0),
    point: (n) => {
      const cursor = plot.querySelector(".cursor");
      cursor.setAttribute("x1", data.places[n] + "%");
      cursor.setAttribute("x2", data.places[n] + "%");
      const seen = data.curves.filter((curve) => curve.y[n] !== null && !hidden.has(curve.row))
        .sort((one, two) => two.y[n] - one.y[n]);
      return { x: data.places[n], y: 50, parts: [text("strong", `Round ${data.x[n]}`), ...seen.map((curve) =>
        text("span", text("i", ...swatch(curve.row), curve.name + " "), text("b", write(curve.y[n], data.percent))))] };
    },
  });
  const points = (plot) => {
    const shown = () => values.points.filter((point) => !hidden.has(point.row));
    return {
      steps: shown,
      nearest: (x, y, box) => shown().reduce((best, point, n, list) => {
        const far = (p) => Math.hypot((p.x - x) * box.width, (100 - p.y - y) * box.height);
        return far(point) < far(list[best]) ? n : best;
      }, 0),
      point: (n) => {
        const point = shown()[n], ring = plot.querySelector(".ring");
        ring.setAttribute("cx", point.x + "%");
        ring.setAttribute("cy", 100 - point.y + "%");
        return { x: point.x, y: 100 - point.y, parts: [point.text] };
      },
    };
  };
  for (const plot of all("[data-plot]")) {
    const data = values.plots[plot.dataset.plot];
    follow(plot, data ? curves(plot, data) : points(plot));
  }

  for (const button of all(".copy")) {
    const code = button.parentElement.querySelector("code, pre");
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(code); button.textContent = "Selected"; }
    });
  }
})();
