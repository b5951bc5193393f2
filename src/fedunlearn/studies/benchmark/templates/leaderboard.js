"use strict";
(() => {
{% include "reading.js" %}

  const data = JSON.parse(document.getElementById("values").textContent);
  const LETTERS = ["E", "U", "O", "?", "×"];
  const WORDS = ["equivalent", "under", "over", "undecided", "failed or missing"];
  const place = Object.fromEntries(data.columns.map((column, n) => [column.key, n]));
  const table = data.methods.map(() => data.requests.map(() => data.seeds.map(() => null)));
  for (const result of data.results) table[result.at[0]][result.at[1]][result.at[2]] = result;
  const found = new Set(data.found.map(String));
  const every = data.requests.map((_, n) => n);
  const opened = new Set();
  let sorted = { column: place.equivalent, descending: true };

  // Numbers, rounded and added exactly as the server does.
  const mean = (values) => values.reduce((total, value) => total + value, 0) / values.length;
  const fixed = (value, digits, signed = false) => {
    const written = Math.abs(value).toFixed(digits);
    return (Number(written) === 0 ? "" : value < 0 ? "−" : signed ? "+" : "") + written;
  };
  const write = (column, value) => {
    if (column.unit !== "bytes") return fixed(value, column.digits, column.signed) + column.unit;
    for (const [name, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
      if (value >= size) return `${fixed(value / size, 1)} ${name}`;
    return `${fixed(value, 0)} B`;
  };
  const interval = (values) => {
    const centre = mean(values), n = values.length;
    if (n < 2) return [centre, null];
    return [centre, data.t[n - 1] * Math.sqrt(mean(values.map((v) => (v - centre) * (v - centre))) / (n - 1))];
  };
  const none = { text: "–", value: null };
  const measured = (column, cells) => {
    const seeds = cells.map((each) => each.filter((cell) => cell && column.key in cell.numbers)
      .map((cell) => cell.numbers[column.key])).filter((values) => values.length);
    if (!seeds.length) return none;
    if (column.how === "most") {
      const most = Math.max(...seeds.flat());
      return { text: write(column, most), value: most };
    }
    const [centre, half] = interval(seeds.map(mean));
    const told = { text: write(column, centre), value: centre };
    return column.how === "mean" || half === null ? told
      : { ...told, half, small: `±${fixed(half, column.digits)}` };
  };
  const verdicts = (cells) => {
    const counts = LETTERS.map((letter) => cells.filter((cell) => (cell ? cell.letter : "×") === letter).length);
    const each = (words) => counts.flatMap((count, n) => count ? [`${count} ${words[n]}`] : []);
    return { text: each(LETTERS).join(" ") || "–", value: counts[0], counts,
      title: `${each(WORDS).join(", ")} of ${cells.length} cells` };
  };
  const failed = (cells) => {
    const missing = cells.filter((cell) => !cell).length;
    const reasons = cells.filter((cell) => cell && cell.letter === "×").map((cell) => cell.reason);
    const count = missing + reasons.length;
    return { text: count ? `${count}/${cells.length}` : "0", value: count,
      title: [...new Set(reasons), ...(missing ? [`${missing} missing`] : [])].join("; ") };
  };
  const line = (m, requests) => {
    const cells = data.seeds.map((_, s) => requests.map((r) => table[m][r][s])), flat = cells.flat();
    const unjudged = data.methods[m].reference && !flat.some((cell) => cell && cell.judged);
    return data.columns.map((column) => {
      if (column.how === "words") {
        const word = data.methods[m].words[column.key];
        return { text: word || "–", value: word || null };
      }
      if (column.how === "failed") return failed(flat);
      if (column.how !== "equivalent" && column.how !== "verdicts") return measured(column, cells);
      if (unjudged) return none;
      if (column.how === "verdicts") return verdicts(flat);
      const seen = data.seeds.flatMap((_, s) => requests.filter((r) => found.has(`${r},${s}`)).map((r) => table[m][r][s]));
      const hits = seen.filter((cell) => cell && cell.letter === "E").length;
      return seen.length ? { text: `${hits}/${seen.length}`, value: hits / seen.length } : none;
    });
  };

  // Order: missing values last, ties in the order of the rule.
  const compare = (a, b, sign) => a === null || b === null ? (a === null) - (b === null)
    : sign * (typeof a === "string" ? (a > b) - (a < b) : a - b);
  const ranked = (rows) => rows.sort((one, two) => ["equivalent", "r_acc"].reduce((order, key) =>
    order || (key in place ? compare(one.cells[place[key]].value, two.cells[place[key]].value, -1) : 0), 0) || one.m - two.m);
  const ordered = (rows) => {
    const key = (row) => sorted.column < 0 ? data.methods[row.m].name : row.cells[sorted.column].value;
    return ranked(rows).sort((one, two) => compare(key(one), key(two), sorted.descending ? -1 : 1));
  };

  // Elements are made, never parsed: names come from strangers.
  const SVG = "http://www.w3.org/2000/svg";
  const made = (element, attributes, parts) => {
    for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
    element.append(...parts);
    return element;
  };
  const html = (tag, attributes = {}, ...parts) => made(document.createElement(tag), attributes, parts);
  const svg = (tag, attributes = {}, ...parts) => made(document.createElementNS(SVG, tag), attributes, parts);
  const swatch = (m) => all(`[data-method="${m}"] + .swatch`).map((mark) => mark.cloneNode(true));
  const letter = (said, words, seed) => html("b", { class: `letter l${LETTERS.indexOf(said)}`, title: `seed ${seed}: ${words}` }, said);
  const verdict = (cell, s) => letter(cell ? cell.letter : "×", cell ? cell.told : "missing", data.seeds[s]);
  const tail = (cell, s) => letter(cell ? cell.tail : "×", cell ? cell.tailed : "missing", data.seeds[s]);

  const DETAIL = ["auc", "asr", "r_acc", "worst", "harm", "work"].filter((key) => key in place);
  const detail = (m, requests) => {
    const titles = ["Request", "Verdicts", "Hardest tenth", ...DETAIL.map((key) => data.columns[place[key]].title),
      "Harmed", "Rate", "Model", "Note"];
    const rows = requests.map((r) => {
      const cells = table[m][r], told = line(m, [r]), there = cells.filter(Boolean);
      const unique = (values) => [...new Set(values)].join(", ") || "–";
      return html("tr", {}, html("th", { scope: "row" }, data.requests[r].name),
        html("td", {}, ...cells.map(verdict)), html("td", {}, ...cells.map(tail)),
        ...DETAIL.map((key) => html("td", {}, told[place[key]].text)),
        html("td", {}, unique(there.flatMap((cell) => cell.harmed))),
        html("td", {}, unique(there.map((cell) => cell.rate).filter((rate) => rate !== null))),
        html("td", {}, html("code", {}, cells.map((cell) => cell && cell.model ? cell.model : "–").join(" "))),
        html("td", { class: "note-cell" }, told[place.failed].title || "–"));
    });
    const inner = html("table", {}, html("thead", {}, html("tr", {}, ...titles.map((title) => html("th", { scope: "col" }, title)))),
      html("tbody", {}, ...rows));
    const about = data.methods[m].about;
    return html("tr", { class: "detail", id: `detail-${m}` }, html("td", { colspan: data.columns.length + 1 },
      html("div", { class: "wide", role: "region", tabindex: 0, "aria-label": `Requests of ${data.methods[m].name}` },
        ...(about.length ? [html("p", { class: "muted" }, about.join(" · "))] : []), inner)));
  };
  const rowOf = ({ m, cells }, requests) => {
    const button = html("button", { type: "button", class: "open", "aria-expanded": opened.has(m),
      "aria-controls": `detail-${m}`, "data-open": m }, data.methods[m].name);
    const about = data.methods[m].summary || undefined;
    const told = cells.map((cell, n) => html("td", { title: cell.title || undefined,
      class: data.columns[n].how === "words" ? "words" : undefined },
      ...(cell.counts ? [html("span", { class: "stack", "aria-hidden": true }, ...cell.counts.flatMap((count, v) =>
        count ? [html("i", { class: `v${v}`, style: `flex-grow:${count}` })] : []))] : []),
      cell.text, ...(cell.small ? [" ", html("small", {}, cell.small)] : [])));
    const row = html("tr", {}, html("th", { scope: "row", title: about }, ...swatch(m), button), ...told);
    return opened.has(m) ? [row, detail(m, requests)] : [row];
  };

  // Filters.
  const form = document.querySelector(".filters"), board = document.getElementById("board");
  const checked = (what) => all(what, form).some((box) => box.checked);
  const off = (name, value) => all(`[data-${name}]`, form).some((box) => !box.checked && value(box));
  const requestsShown = () => every.filter((r) => !off("request", (box) => Number(box.dataset.request) === r)
    && !off("tag", (box) => data.requests[r].tags[box.dataset.tag] === box.value));
  const methodsShown = () => data.methods.map((_, m) => m).filter((m) => {
    const method = data.methods[m];
    return !method.reference && !off("method", (box) => Number(box.dataset.method) === m)
      && !(checked("[data-only=gone]") && method.words.online !== "retained")
      && !(checked("[data-only=whole]") && method.ablation);
  });
  const render = () => {
    const requests = requestsShown(), methods = methodsShown();
    const lines = (list) => list.map((m) => ({ m, cells: line(m, requests) }));
    const rows = ordered(lines(methods)), references = lines(data.methods.flatMap((method, m) => method.reference ? [m] : []));
    document.getElementById("ranked").replaceChildren(...rows.flatMap((row) => rowOf(row, requests)));
    document.getElementById("references").replaceChildren(...references.flatMap((row) => rowOf(row, requests)));
    const most = data.methods.length - references.length;
    document.getElementById("status").textContent = requests.length
      ? `${methods.length} of ${most} methods on ${requests.length} of ${every.length} requests.` : "No request is selected.";
    drawn = [...rows, ...references].map(({ m }) => m);
    draw();
  };

  // The trade-off, on square-root axes around retraining at 0, 0.
  let drawn = [], points = [];
  const plot = document.getElementById("plot");
  const bend = (value) => Math.sign(value) * Math.sqrt(Math.abs(value));
  const axis = (values, ticks, write, size) => {
    const ends = [Math.min(0, ...values), Math.max(0, ...values)].map(bend);
    const room = 0.07 * (ends[1] - ends[0] || 1), low = ends[0] - room, high = ends[1] + room;
    const at = (value) => Math.min(100, Math.max(0, 100 * (bend(value) - low) / (high - low)));
    const inside = (value) => bend(value) >= low && bend(value) <= high;
    const both = ticks.flatMap((tick) => [tick, -tick]).filter(inside).sort((a, b) => Math.abs(b) - Math.abs(a));
    const kept = both.reduce((list, tick) =>
      [0, ...list].every((other) => Math.abs(at(other) - at(tick)) > 100 * 44 / size) ? [...list, tick] : list, []);
    return { at, marks: [0, ...kept].map((tick) => [at(tick), tick ? write(tick) : "0"]) };
  };
  const BESIDE = [[10, 4, "start"], [-10, 4, "end"], [0, -10, "middle"], [0, 19, "middle"]];
  const label = (point, taken, box) => {
    const width = 6.8 * point.name.length, x = point.x * box.width / 100, y = point.y * box.height / 100;
    for (const [dx, dy, anchor] of BESIDE) {
      const left = x + dx - { start: 0, end: width, middle: width / 2 }[anchor], top = y + dy - 11;
      if (left < -30 || left + width > box.width + 30) continue;
      if (taken.some((t) => left < t[0] + t[2] && t[0] < left + width && top < t[1] + t[3] && t[1] < top + 14)) continue;
      taken.push([left, top, width, 14]);
      return [svg("text", { class: "name", x: `${point.x}%`, y: `${point.y}%`, dx, dy, "text-anchor": anchor }, point.name)];
    }
    return [];
  };
  const mark = ({ m, x, y }) => {
    const { style, reference } = data.methods[m];
    if (style) return svg("use", { href: `#m${style.marker}`, x: `${x}%`, y: `${y}%`, class: `o${style.colour}` });
    return reference === "omega0" ? svg("circle", { class: "reference", cx: `${x}%`, cy: `${y}%`, r: 6 })
      : svg("svg", { x: `${x}%`, y: `${y}%`, overflow: "visible" }, svg("rect", { class: "reference", x: -5, y: -5, width: 10, height: 10 }));
  };
  const draw = () => {
    const forgetting = document.querySelector("[name=axis]:checked")?.value ?? "auc";
    const [xs, ys] = [data.columns[place[forgetting]], data.columns[place.r_acc]];
    const box = plot.getBoundingClientRect();
    plot.replaceChildren(...all("title, desc", plot));
    points = [];
    if (!xs || !ys) return;
    const requests = requestsShown().filter((r) => forgetting === "auc" || data.requests[r].tags.kind === "backdoored");
    const known = drawn.map((m) => ({ m, cells: line(m, requests) }))
      .map(({ m, cells }) => ({ m, a: cells[place[forgetting]], b: cells[place.r_acc] }))
      .filter(({ m, a, b }) => a.value !== null && b.value !== null && data.methods[m].reference !== "retraining-1");
    const POINTS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 60, 100];
    const near = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1];
    const sign = (value) => (value < 0 ? "−" : "+") + Math.abs(value);
    const x = axis(known.map(({ a }) => a.value), ...(forgetting === "auc" ? [near, String] : [POINTS, sign]), box.width);
    const y = axis(known.map(({ b }) => b.value), POINTS, sign, 1.6 * box.height);
    points = known.map(({ m, a, b }) => {
      const whisker = ({ value, half }, at) => [at(value - (half ?? 0)), at(value + (half ?? 0))];
      const said = (column, cell) => `${column.title} ${cell.text}${cell.small ? " " + cell.small : ""}`;
      return { m, name: data.methods[m].name, x: x.at(a.value), y: 100 - y.at(b.value), wide: whisker(a, x.at),
        high: whisker(b, y.at), text: `${data.methods[m].name}: ${said(xs, a)}, ${said(ys, b)}` };
    }).sort((one, two) => one.x - two.x);
    const origin = { name: "retraining", x: x.at(0), y: 100 - y.at(0) };
    const taken = [...points, origin].map((p) => [p.x * box.width / 100 - 6, p.y * box.height / 100 - 6, 12, 12]);
    const full = { x1: "0", x2: "100%", y1: "0", y2: "100%" };
    const across = (at, name) => svg("line", { ...full, class: name, y1: `${100 - at}%`, y2: `${100 - at}%` });
    const down = (at, name) => svg("line", { ...full, class: name, x1: `${at}%`, x2: `${at}%` });
    plot.append(
      ...y.marks.flatMap(([at, word], n) => [across(at, n ? "rule" : "zero"),
        svg("text", { class: "tick", x: 0, dx: -8, y: `${100 - at}%`, dy: 4, "text-anchor": "end" }, word)]),
      ...x.marks.flatMap(([at, word], n) => [down(at, n ? "rule" : "zero"),
        svg("text", { class: "tick", x: `${at}%`, y: "100%", dy: 18, "text-anchor": "middle" }, word)]),
      svg("text", { class: "tick", x: "50%", y: "100%", dy: 36, "text-anchor": "middle" }, `${xs.title}${forgetting === "auc" ? "" : ", points"}`),
      svg("text", { class: "tick", x: 0, y: 0, dy: -12 }, `${ys.title}, points`),
      ...points.flatMap((p) => {
        const colour = `whisker o${data.methods[p.m].style?.colour ?? 4}`;
        return [svg("line", { class: colour, x1: `${p.wide[0]}%`, x2: `${p.wide[1]}%`, y1: `${p.y}%`, y2: `${p.y}%` }),
          svg("line", { class: colour, x1: `${p.x}%`, x2: `${p.x}%`, y1: `${100 - p.high[0]}%`, y2: `${100 - p.high[1]}%` })];
      }),
      svg("svg", { x: `${origin.x}%`, y: `${origin.y}%`, overflow: "visible" },
        svg("path", { class: "target", d: "M-6-6L6 6M-6 6L6-6" })), ...label(origin, taken, box),
      ...points.map((p) => svg("g", { class: "point", "data-row": p.m }, mark(p), ...label(p, taken, box))),
      svg("circle", { class: "ring", r: 11, cx: 0, cy: 0 }));
    document.getElementById("d-trade").textContent = points.map((p) => p.text).join(". ");
    const bare = (...parts) => svg("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": true }, ...parts);
    document.getElementById("legend").replaceChildren(
      html("li", {}, bare(svg("path", { class: "target", d: "M-5-5L5 5M-5 5L5-5" })), "retraining"),
      ...points.map((p) => html("li", {}, ...(data.methods[p.m].style ? swatch(p.m) : [bare(mark({ m: p.m, x: 0, y: 0 }))]), p.name)));
  };
  follow(plot, {
    steps: () => points,
    nearest: (x, y, box) => points.reduce((best, point, n) => {
      const far = (p) => Math.hypot((p.x - x) * box.width, (p.y - y) * box.height);
      return far(point) < far(points[best]) ? n : best;
    }, 0),
    point: (n) => {
      made(plot.querySelector(".ring"), { cx: `${points[n].x}%`, cy: `${points[n].y}%` }, []);
      return { x: points[n].x, y: points[n].y, parts: [points[n].text] };
    },
  });

  all("button", board.tHead).forEach((button, n) => button.addEventListener("click", () => {
    const first = n ? data.columns[n - 1].first === "descending" : false;
    sorted = { column: n - 1, descending: sorted.column === n - 1 ? !sorted.descending : first };
    all("th", board.tHead).forEach((head, other) => head.setAttribute("aria-sort",
      other !== n ? "none" : sorted.descending ? "descending" : "ascending"));
    render();
  }));
  board.addEventListener("click", (event) => {
    const button = event.target.closest("[data-open]");
    if (!button) return;
    const m = Number(button.dataset.open);
    opened.has(m) ? opened.delete(m) : opened.add(m);
    render();
    board.querySelector(`[data-open="${m}"]`).focus();
  });
  form.addEventListener("change", render);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(render));
  all("[data-every]").forEach((button) => button.addEventListener("click", () => {
    all("[data-method]", form).forEach((box) => { box.checked = Boolean(button.dataset.every); });
    render();
  }));
  all("[name=axis]").forEach((box) => box.addEventListener("change", draw));
  addEventListener("resize", draw);
  addEventListener("beforeprint", draw);
  render();
})();
