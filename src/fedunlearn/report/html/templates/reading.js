  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const tip = document.getElementById("tip");

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

  // Values under the pointer, or step by step with the arrow keys, of a source that knows its steps.
  const follow = (plot, source) => {
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
  };

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    closed.forEach((part) => { part.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((part) => { part.open = false; }));
