"use strict";
(() => {
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const tip = document.getElementById("tip");
  const values = JSON.parse(document.getElementById("values").textContent);
  const hidden = new Set();

  // One floating box for explanations and values; Escape closes it.
  const show = (parts, x, y) => {
    tip.replaceChildren(...parts);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
    const top = y + 16 + box.height > innerHeight ? y - 12 - box.height : y + 16;
    tip.style.left = Math.max(8, Math.min(left, innerWidth - box.width - 8)) + "px";
    tip.style.top = Math.max(8, top) + "px";
  };
  const hide = () => { tip.hidden = true; all(".live").forEach((plot) => plot.classList.remove("live")); };
  const text = (tag, ...words) => { const made = document.createElement(tag); made.append(...words); return made; };
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", hide, { passive: true });
  addEventListener("pointerdown", (event) => { if (!event.target.closest(".frame")) hide(); });

  for (const word of all("[data-tip]")) {
    const explain = () => {
      const box = word.getBoundingClientRect();
      show([document.getElementById(word.dataset.tip).textContent], box.left, box.bottom - 8);
    };
    word.addEventListener("pointerenter", explain);
    word.addEventListener("focus", () => { if (word.matches(":focus-visible")) explain(); });
    word.addEventListener("pointerleave", hide);
    word.addEventListener("blur", hide);
  }

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

  // Values under the pointer, or step by step with the arrow keys.
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
    const source = data ? curves(plot, data) : points(plot);
    let at = -1;
    const go = (n) => {
      if (!source.steps().length) return;
      at = Math.max(0, Math.min(n, source.steps().length - 1));
      const place = source.point(at), box = plot.getBoundingClientRect();
      plot.classList.add("live");
      show(place.parts, box.left + box.width * place.x / 100, box.top + box.height * place.y / 100 - 20);
    };
    const frame = plot.parentElement;
    for (const kind of ["pointermove", "pointerdown"]) frame.addEventListener(kind, (event) => {
      const box = plot.getBoundingClientRect();
      if (source.steps().length) go(source.nearest(
        100 * (event.clientX - box.left) / box.width, 100 * (event.clientY - box.top) / box.height, box));
    });
    // On touch screens every tap ends with pointerleave; keep the values until the next tap elsewhere.
    frame.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hide(); });
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10, Home: -1e9, End: 1e9 }[event.key];
      if (step) { event.preventDefault(); go(at + step); }
    });
  }

  for (const button of all(".copy")) {
    const code = button.parentElement.querySelector("code, pre");
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(code); button.textContent = "Selected"; }
    });
  }
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    closed.forEach((part) => { part.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((part) => { part.open = false; }));
})();
