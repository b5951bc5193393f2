"""Draws the figures of docs/concepts.md and the logo; run it after each change."""

from __future__ import annotations

import math
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
LIGHT = {
    "ink": "#1b1e23",
    "soft": "#575d66",
    "edge": "#d9d8d3",
    "sheet": "#ffffff",
    "keep": "#0072b2",
    "pale": "#9cc9e6",
    "forget": "#d55e00",
    "good": "#00805d",
    "wash": "#eaf3f9",
}
DARK = {
    "ink": "#e9ebee",
    "soft": "#a9b0ba",
    "edge": "#3b414b",
    "sheet": "#1c1f25",
    "keep": "#4aa8e0",
    "pale": "#2c5c7c",
    "forget": "#f0792a",
    "good": "#2cc497",
    "wash": "#1d2a35",
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"


def colours(of: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in of.items())


class Drawing:
    """Shapes in drawing order; colours are names."""

    def __init__(self, name: str, width: int, height: int, title: str) -> None:
        self.name, self.size, self.title = name, (width, height), title
        self.parts: list[str] = []

    def add(self, tag: str, text: str = "", **attributes: object) -> None:
        for key in ("fill", "stroke"):
            if attributes.get(key, "none") != "none":
                attributes[key] = f"var(--{attributes[key]})"
        given = "".join(
            f' {key.rstrip("_").replace("_", "-")}="{value:.4g}"'
            if isinstance(value, float)
            else f' {key.rstrip("_").replace("_", "-")}="{value}"'
            for key, value in attributes.items()
        )
        self.parts.append(f"<{tag}{given}>{text}</{tag}>" if text else f"<{tag}{given}/>")

    def text(self, x: float, y: float, text: str, fill: str = "ink", size: int = 15, **more: object) -> None:
        self.add("text", text, x=x, y=y, fill=fill, font_size=size, **more)

    def halo(self, x: float, y: float, text: str, fill: str, **more: object) -> None:
        """Text with a halo that hides lines behind it."""
        edge = {"stroke": "sheet", "stroke_width": 5, "stroke_linejoin": "round", "paint_order": "stroke"}
        self.text(x, y, text, fill, **edge, **more)

    def sheet(self) -> None:
        width, height = self.size
        self.add("rect", x=1, y=1, width=width - 2, height=height - 2, rx=14, fill="sheet", stroke="edge",
                 stroke_width=1.5)  # fmt: skip

    def circle(self, x: float, y: float, r: float, **more: object) -> None:
        self.add("circle", cx=x, cy=y, r=r, **more)

    def path(self, d: str, stroke: str = "ink", width: float = 2.0, **more: object) -> None:
        self.add("path", d=d, stroke=stroke, stroke_width=width, **({"fill": "none"} | more))

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 2.5, **more: object
    ) -> None:
        self.path(f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", stroke, width, **self.head(stroke), **more)

    def head(self, stroke: str, key: str = "marker_end") -> dict[str, object]:
        return {key: f"url(#{self.name}-{stroke})"}

    def save(self) -> None:
        width, height = self.size
        used = [c for c in LIGHT if any(f"#{self.name}-{c})" in part for part in self.parts)]
        heads = "".join(
            f'<marker id="{self.name}-{c}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="11" '
            f'markerHeight="11" markerUnits="userSpaceOnUse" orient="auto-start-reverse">'
            f'<path d="M0 0L10 5L0 10L2.6 5Z" '
            f'fill="var(--{c})"/></marker>'
            for c in used
        )
        text = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-labelledby="{self.name}-title" '
            f'font-family="{FONT}">\n'
            f'<title id="{self.name}-title">{self.title}</title>\n'
            f"<style>.drawing{{{colours(LIGHT)}}}"
            f"@media (prefers-color-scheme:dark){{.drawing{{{colours(DARK)}}}}}</style>\n"
            f"<defs>{heads}</defs>\n" + "\n".join(self.parts) + "\n</svg>\n"
        )
        (DOCS / "figures" / f"{self.name}.svg").write_text(text)


def donut(d: Drawing, x: float, y: float, r: float, shares: list[str], ring: float = 13) -> None:
    """One arc for each client; an empty name leaves a dashed gap."""
    each, gap = math.tau / len(shares), 0.09
    for number, colour in enumerate(shares):
        # The last client is at the lower right, as in the row of clients below.
        a = math.pi * 0.5 - (number + 1) * each + gap / 2 + each * 3
        b = a + each - gap
        start, end = (x + r * math.cos(a), y + r * math.sin(a)), (x + r * math.cos(b), y + r * math.sin(b))
        arc = f"M{start[0]:.1f} {start[1]:.1f}A{r} {r} 0 0 1 {end[0]:.1f} {end[1]:.1f}"
        if colour:
            d.path(arc, colour, ring)
        else:
            d.path(arc, "forget", 1.6, stroke_dasharray="3 4")


def story() -> None:
    d = Drawing(
        "concept-request",
        720,
        632,
        "Four stages: five clients train, one asks to be forgotten, unlearning, post-training",
    )
    spots = [(58.0, 206.0), (114.0, 206.0), (170.0, 206.0), (226.0, 206.0), (282.0, 206.0)]
    panels = [
        ("1  Training", "Five clients train one model, ω⁰. Their", "data stays local, but leaves traces."),
        ("2  The request", "Client u withdraws, or was poisoned.", "The others want to keep their model."),
        ("3  Unlearning", "The server removes u's influence, with", "steps that do not harm the others."),
        ("4  Post-training", "The others repair the damage, and must", "not move the model back to ω⁰."),
    ]
    for number, (title, first, second) in enumerate(panels):
        left, top = (number % 2) * 370, (number // 2) * 322
        d.add("g", class_=f"panel-{number + 1}", transform=f"translate({left} {top})")
        d.parts[-1] = d.parts[-1].replace("/>", ">")
        d.add("rect", x=1, y=1, width=348, height=308, rx=14, fill="sheet", stroke="edge", stroke_width=1.5)
        d.text(20, 32, title, size=17, font_weight=650)
        x, y, r = 170.0, 102.0, 38.0
        for index, (cx, cy) in enumerate(spots):
            target = index == 4
            angle = math.atan2(cy - 20 - y, cx - x)
            near = (x + (r + 13) * math.cos(angle), y + (r + 13) * math.sin(angle))
            far = (cx - 20 * math.cos(angle), cy - 20 * math.sin(angle))
            colour = "forget" if target else "keep"
            if number in (0, 2) or (number == 3 and not target):
                both = {} if number == 2 else d.head(colour, "marker_start")
                d.arrow(*far, *near, colour, 2.0, **both)
            elif number == 1 and target:
                d.arrow(*far, *near, colour, 2.5, stroke_dasharray="5 4")
            gone = target and number == 3
            d.circle(
                cx,
                cy,
                16,
                fill="none" if gone else ("forget" if target else "keep"),
                stroke="forget" if target else "keep",
                stroke_width=1.6,
                **({"stroke_dasharray": "3 4"} if gone else {}),
            )
            d.text(
                cx,
                cy + 5.5,
                "u" if target else str(index + 1),
                "forget" if gone else "sheet",
                16,
                text_anchor="middle",
                font_weight=650,
            )
        kept = "pale" if number == 2 else "keep"
        donut(d, x, y, r, [kept] * 4 + ["forget" if number < 2 else ""])
        d.text(x, y + 7, "ω⁰" if number < 2 else "ω", size=21, text_anchor="middle", font_style="italic")
        if number == 1:
            d.add("rect", x=234, y=92, width=96, height=30, rx=15, fill="forget")
            d.text(282, 112, "forget me", "sheet", 15, text_anchor="middle", font_weight=600)
        d.text(20, 262, first, "soft")
        d.text(20, 284, second, "soft")
        d.parts.append("</g>")
    d.save()


def loss() -> None:
    d = Drawing(
        "concept-loss",
        640,
        312,
        "Ascent on cross-entropy is unbounded; descent on the unlearning cross-entropy ends at zero",
    )
    d.sheet()
    left, right, bottom, top, most = 62.0, 600.0, 246.0, 24.0, 3.2

    def place(p: float, value: float) -> str:
        return f"{left + p * (right - left):.1f} {bottom - value / most * (bottom - top):.1f}"

    for value in (1, 2, 3):
        height = bottom - value / most * (bottom - top)
        d.path(f"M{left} {height:.1f}H{right}", "edge", 1.0)
        d.text(left - 10, height + 5, str(value), "soft", 14, text_anchor="end")
    d.text(left - 10, bottom + 5, "0", "soft", 14, text_anchor="end")
    d.path(f"M{left} {bottom}H{right}", "soft", 1.3)
    for p, label in ((0, "0"), (0.5, "½"), (1, "1")):
        d.text(left + p * (right - left), bottom + 22, label, "soft", 14, text_anchor="middle")
    d.text(
        (left + right) / 2,
        bottom + 44,
        "probability p of the label to forget",
        "soft",
        14,
        text_anchor="middle",
    )
    points = [math.exp(-most) + (1 - math.exp(-most)) * i / 160 for i in range(161)]
    d.path(
        "M" + "L".join(place(p, -math.log(p)) for p in reversed(points)), "forget", 3.0, **d.head("forget")
    )
    points = [i / 100 for i in range(101)]
    d.path(
        "M" + "L".join(place(p, -math.log(1 - p / 2)) for p in reversed(points)),
        "good",
        3.0,
        **d.head("good"),
    )
    d.text(126, 66, "ascent on cross-entropy −log p:", "forget", 16, font_weight=600)
    d.text(126, 88, "steeper and steeper, unbounded", "forget", 15)
    d.halo(330, 132, "unlearning cross-entropy", "good", size=16, font_weight=600)
    d.halo(330, 154, "descent on −log(1 − p/2):", "good", size=16, font_weight=600)
    d.halo(330, 176, "it ends at 0", "good", size=15)
    d.save()


def orthogonal() -> None:
    d = Drawing(
        "concept-orthogonal",
        640,
        360,
        "The forgetting step, its projection onto the others' gradients, and the orthogonal part",
    )
    d.sheet()
    origin = (262.0, 236.0)

    def at(x: float, y: float, z: float) -> tuple[float, float]:
        """The plane tilts away from the reader; z points up."""
        return origin[0] + x - 0.52 * y, origin[1] + 0.5 * y - z

    corners = [at(-160, -140, 0), at(295, -140, 0), at(295, 160, 0), at(-160, 160, 0)]
    d.path("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "Z", "keep", 1.2, fill="wash")
    o, shadow, upright, step = origin, at(130, -30, 0), at(0, 0, 115), at(130, -30, 115)
    long = at(0, 0, math.hypot(130, 30, 115))
    g1, g2 = at(215, 115, 0), at(-70, 120, 0)
    d.arrow(*o, *g1, "keep", 3.0)
    d.arrow(*o, *g2, "keep", 3.0)
    d.path(f"M{step[0]} {step[1]}L{shadow[0]} {shadow[1]}", "soft", 1.4, stroke_dasharray="4 4")
    d.path(f"M{step[0]} {step[1]}L{upright[0]} {upright[1]}", "soft", 1.4, stroke_dasharray="4 4")
    d.arrow(*o, *shadow, "soft", 2.5, stroke_dasharray="6 4")
    d.arrow(*o, *step, "forget", 3.5)
    d.arrow(*o, *long, "good", 4.0)
    d.path(f"M{upright[0] - 8} {upright[1]}H{upright[0] + 8}", "good", 2.5)
    a, b, c = at(0, 0, 17), at(17, 9, 17), at(17, 9, 0)
    d.path(f"M{a[0]} {a[1]}L{b[0]} {b[1]}L{c[0]} {c[1]}", "good", 1.6)
    d.circle(*o, 5, fill="ink")
    d.text(o[0] - 16, o[1] + 6, "ω", size=19, font_style="italic", text_anchor="end")
    d.text(g1[0] + 10, g1[1] + 4, "g₁", "keep", 19, font_style="italic")
    d.text(g2[0] - 10, g2[1] + 4, "g₂", "keep", 19, font_style="italic", text_anchor="end")
    d.text(
        step[0] + 12,
        step[1] + 2,
        "−gᵤ",
        "forget",
        20,
        font_style="italic",
        font_weight=600,
    )
    d.text(step[0] + 12, step[1] + 24, "forgets fastest", "forget", 15)
    d.text(shadow[0] + 12, shadow[1] + 2, "its projection harms", "soft", 15)
    d.text(shadow[0] + 12, shadow[1] + 21, "retained clients", "soft", 15)
    d.text(
        long[0] - 14, long[1] + 14, "d", "good", 22, font_style="italic", font_weight=600, text_anchor="end"
    )
    d.text(long[0] - 14, long[1] + 36, "the orthogonal part,", "good", 15, text_anchor="end")
    d.text(long[0] - 14, long[1] + 55, "as long as −gᵤ", "good", 15, text_anchor="end")
    d.text(
        corners[3][0] + 8,
        corners[3][1] + 26,
        "all combinations of the retained clients’ gradients",
        "keep",
        15,
    )
    d.save()


def reverting() -> None:
    d = Drawing(
        "concept-reverting",
        640,
        340,
        "Plain averaging moves back to the old model; FedOSD never moves closer to it",
    )
    d.sheet()
    old, new = (210.0, 190.0), (396.0, 104.0)
    for rx, ry in ((262, 108), (204, 84), (146, 60), (88, 36)):
        d.add("ellipse", cx=290, cy=196, rx=rx, ry=ry, fill="none", stroke="pale", stroke_width=1.3,
              transform="rotate(12 290 196)")  # fmt: skip
    r = math.dist(old, new)

    def on(angle: float, radius: float) -> tuple[float, float]:
        return old[0] + radius * math.cos(angle), old[1] + radius * math.sin(angle)

    start = math.atan2(new[1] - old[1], new[0] - old[0])
    a, b = on(start - 0.45, r), on(start + 1.15, r)
    d.path(
        f"M{a[0]:.1f} {a[1]:.1f}A{r:.1f} {r:.1f} 0 0 1 {b[0]:.1f} {b[1]:.1f}",
        "soft",
        1.4,
        stroke_dasharray="2 5",
    )
    d.arrow(old[0] + 9, old[1] - 4, new[0] - 10, new[1] + 5, "forget", 3.0)
    back = (old[0] + 22, old[1] + 8)
    bent = f"M{new[0] - 4} {new[1] + 11}Q352 198 {back[0]} {back[1]}"
    d.path(bent, "soft", 2.5, stroke_dasharray="6 4", **d.head("soft"))
    way = [on(start + t * 0.9, r + 6 + 26 * t) for t in [i / 30 for i in range(1, 31)]]
    d.path(f"M{new[0] + 6:.1f} {new[1] + 8:.1f}L" + "L".join(f"{x:.1f} {y:.1f}" for x, y in way), "good", 3.5,
           **d.head("good"))  # fmt: skip
    d.circle(*old, 7, fill="ink")
    d.circle(*new, 7, fill="ink")
    d.text(old[0] - 14, old[1] + 6, "ω⁰", size=21, font_style="italic", text_anchor="end")
    d.text(new[0] + 2, new[1] - 16, "ω", size=21, font_style="italic", text_anchor="middle")
    d.halo(278, 140, "unlearning", "forget", size=15, text_anchor="end", font_weight=600)
    d.halo(262, 240, "plain averaging:", "soft", size=15)
    d.halo(262, 259, "straight back", "soft", size=15)
    d.halo(456, 168, "without the part", "good", size=15, font_weight=600)
    d.halo(456, 187, "towards ω⁰", "good", size=15, font_weight=600)
    d.halo(a[0] + 8, a[1] + 4, "as far from ω⁰ as ω", "soft", size=14)
    d.halo(24, 322, "contours of the retained clients’ loss", "keep", size=14)
    d.save()


def logo() -> None:
    """Five clients in a ring around a model; one of them has left."""
    r = 8.6
    spots = [(12 + r * math.sin(k * math.tau / 5), 12 - r * math.cos(k * math.tau / 5)) for k in range(5)]

    def mark(ink: str, gone: str) -> str:
        parts = []
        for number, (x, y) in enumerate(spots):
            if number == 1:
                parts.append(f'<circle cx="{x:.2f}" cy="{y:.2f}" r="2.1" fill="none" stroke="{gone}" stroke-width="1.2" stroke-dasharray="1.55 1.08"/>')  # noqa: E501  # fmt: skip
            else:
                parts.append(f'<path d="M12 12L{x:.2f} {y:.2f}" stroke="{ink}" stroke-width="1.3"/><circle cx="{x:.2f}" cy="{y:.2f}" r="2.5" fill="{ink}"/>')  # noqa: E501  # fmt: skip
        return "".join(parts) + f'<circle cx="12" cy="12" r="3.6" fill="{ink}"/>'

    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24">'
    (DOCS / "assets" / "logo.svg").write_text(f"{head}{mark('#ffffff', '#ffb37a')}</svg>\n")
    tile = '<rect width="24" height="24" rx="5.5" fill="#0b4f79"/><g transform="translate(12 12) scale(.8) translate(-12 -12)">'  # noqa: E501
    (DOCS / "assets" / "favicon.svg").write_text(f"{head}{tile}{mark('#ffffff', '#ffb37a')}</g></svg>\n")


for draw in (story, loss, orthogonal, reverting, logo):
    draw()
