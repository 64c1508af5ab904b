"use strict";
// Draws the figures of the report as SVG from the JSON in #data: hover, zoom (drag), toggles. No library, no network.

const NS = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 4", "2 3", "8 3 2 3"];
const MARKS = {
  o: (x, y) => `M${x - 3.5},${y}a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0`,
  s: (x, y) => `M${x - 3},${y - 3}h6v6h-6z`,
  "^": (x, y) => `M${x},${y - 4}l4,7h-8z`,
  D: (x, y) => `M${x},${y - 4.2}l4.2,4.2l-4.2,4.2l-4.2,-4.2z`,
  v: (x, y) => `M${x},${y + 4}l4,-7h-8z`,
  P: (x, y) => `M${x - 1.3},${y - 4}h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z`,
  X: (x, y) => `M${x - 4},${y - 2}l2,-2l2,2l2,-2l2,2l-2,2l2,2l-2,2l-2,-2l-2,2l-2,-2l2,-2z`,
  "<": (x, y) => `M${x - 4},${y}l7,-4v8z`,
};

function svg(name, attributes, parent) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (parent) parent.append(node);
  return node;
}

function html(name, properties, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(1).replace("e+", "e");
  return String(+value.toPrecision(4));
}

// ---- scales and ticks ----------------------------------------------------------------------------------------------

function scale([low, high], [from, to], log) {
  const f = log ? Math.log10 : (v) => v;
  const a = f(low), b = f(high);
  const map = (v) => from + ((f(v) - a) / (b - a || 1)) * (to - from);
  map.invert = (p) => { const v = a + ((p - from) / (to - from)) * (b - a); return log ? 10 ** v : v; };
  return map;
}

function ticks([low, high], log, count) {
  if (log) {
    const steps = high / low > 300 ? [1] : [1, 2, 5], found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) found.push(...steps.map((m) => m * 10 ** e));
    const inside = found.filter((v) => v >= low * 0.999 && v <= high * 1.001);
    if (inside.length > 1) return inside;
  }
  const rough = (high - low || 1) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) found.push(+v.toPrecision(12));
  return found;
}

function extent(values, pad, log) {
  const good = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
  if (!good.length) return log ? [1, 10] : [0, 1];
  let low = Math.min(...good), high = Math.max(...good);
  if (log) return low === high ? [low / 2, high * 2] : [low / (1 + pad), high * (1 + pad)];
  if (low === high) { low -= Math.abs(low) * 0.05 || 1; high += Math.abs(high) * 0.05 || 1; }
  const room = pad * (high - low);
  return [low - room, high + room];
}

// ---- one panel -----------------------------------------------------------------------------------------------------

class Chart {
  constructor(host, panel) {
    this.host = host;
    this.panel = panel;
    this.hidden = new Set();
    this.zoom = null;
    this.plot = svg("svg", { role: "img", "aria-label": panel.title });
    this.tip = html("div", { className: "tip", hidden: true });
    this.legend = html("div", { className: "legend" });
    if (panel.caption) host.append(html("figcaption", { textContent: panel.title }));
    host.append(this.plot, this.legend, this.tip);
    this.reset = html("button", { type: "button", textContent: "whole range", hidden: true });
    this.reset.addEventListener("click", () => this.zoomTo(null));
    panel.series.forEach((s, i) => this.legend.append(this.toggle(s, i)));
    if (panel.guide) this.legend.append(html("span", { className: "soft", textContent: `····· ${panel.guide.label}` }));
    this.legend.append(this.reset);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(host);
  }

  toggle(series, i) {
    const key = svg("svg", { viewBox: "0 0 26 10", height: 10 });
    svg("path", { d: "M0,5H26", stroke: series.color, "stroke-width": 2, "stroke-dasharray": DASHES[series.dash % 4] }, key);
    svg("path", { d: MARKS[series.marker](13, 5), fill: series.color }, key);
    const button = html("button", { type: "button" }, key, `${series.label} (n=${series.n})`);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      if (!this.hidden.delete(i)) this.hidden.add(i);
      button.setAttribute("aria-pressed", String(!this.hidden.has(i)));
      this.draw();
    });
    return button;
  }

  zoomTo(range) {
    this.zoom = range;
    this.reset.hidden = !range;
    this.draw();
  }

  get shown() { return this.panel.series.filter((_, i) => !this.hidden.has(i)); }

  draw() {
    const { panel } = this, log = panel.log;
    const width = Math.max(this.host.clientWidth - 20, 240), height = Math.min(Math.max(width * 0.62, 230), 400);
    this.box = { left: 52, right: width - 12, top: 12, bottom: height - 40 };
    const { left, right, top, bottom } = this.box;
    this.plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.plot.replaceChildren();
    const all = panel.series.flatMap((s) => s.x);
    const xs = this.zoom || extent(all, log ? 0 : panel.points ? 0.04 : 0, log);
    const inside = (x) => x >= xs[0] && x <= xs[1];
    const ys = this.shown.flatMap((s) => s.x.flatMap((x, i) =>
      inside(x) ? [s.mean[i] - (s.std ? s.std[i] : 0), s.mean[i], s.mean[i] + (s.std ? s.std[i] : 0)] : []));
    if (panel.guide) panel.guide.x.forEach((x, i) => inside(x) && ys.push(panel.guide.y[i]));
    const y = extent(ys, log ? 0.2 : 0.06, log);
    this.x = scale(xs, [left, right], log);
    this.y = scale(y, [bottom, top], log);
    this.axes(xs, y, width, height);
    const clip = svg("clipPath", { id: `clip${Chart.count++}` }, this.plot);
    svg("rect", { x: left - 5, y: top - 5, width: right - left + 10, height: bottom - top + 10 }, clip);
    const layer = svg("g", { "clip-path": `url(#${clip.id})` }, this.plot);
    if (panel.guide) this.guide(layer);
    for (const s of this.shown) this.series(s, layer);
    this.over = svg("g", {}, this.plot);
  }

  axes(xs, ys, width, height) {
    const { left, right, top, bottom } = this.box;
    for (const v of ticks(xs, this.panel.log, Math.max(3, width / 90))) {
      svg("path", { d: `M${this.x(v)},${top}V${bottom}`, class: "axis" }, this.plot);
      svg("text", { x: this.x(v), y: bottom + 15, "text-anchor": "middle" }, this.plot).textContent = short(v);
    }
    for (const v of ticks(ys, this.panel.log, 6)) {
      svg("path", { d: `M${left},${this.y(v)}H${right}`, class: "axis" }, this.plot);
      svg("text", { x: left - 6, y: this.y(v) + 4, "text-anchor": "end" }, this.plot).textContent = short(v);
    }
    svg("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, this.plot).textContent = this.panel.xlabel;
    const title = svg("text", { transform: `translate(11 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, this.plot);
    title.textContent = this.panel.ylabel;
  }

  guide(layer) {
    const { x, y } = this.panel.guide;
    svg("path", { d: x.map((v, i) => `${i ? "L" : "M"}${this.x(v)},${this.y(y[i])}`).join(""), class: "guide" }, layer);
  }

  series(s, layer) {
    const floor = this.panel.log ? 1e-300 : -Infinity;
    const at = (i, value) => `${this.x(s.x[i]).toFixed(1)},${this.y(Math.max(value, floor)).toFixed(1)}`;
    const steps = s.x.map((_, i) => i), group = svg("g", { class: "series", "data-label": s.label }, layer);
    if (s.std && this.panel.points) {
      for (const i of steps) svg("path", { d: `M${at(i, s.mean[i] - s.std[i])}L${at(i, s.mean[i] + s.std[i])}`, stroke: s.color }, group);
    } else if (s.std) {
      const upper = steps.map((i) => at(i, s.mean[i] + s.std[i]));
      const lower = steps.map((i) => at(i, s.mean[i] - s.std[i])).reverse();
      svg("path", { d: `M${[...upper, ...lower].join("L")}Z`, fill: s.color, opacity: 0.18 }, group);
    }
    const line = { fill: "none", stroke: s.color, "stroke-width": 1.8, "stroke-dasharray": DASHES[s.dash % 4], class: "line" };
    svg("path", { d: `M${steps.map((i) => at(i, s.mean[i])).join("L")}`, ...line }, group);
    const every = this.panel.points ? 1 : Math.max(1, Math.floor(s.x.length / 8));
    const marks = steps.filter((i) => i % every === 0).map((i) => MARKS[s.marker](this.x(s.x[i]), this.y(s.mean[i])));
    svg("path", { d: marks.join(""), fill: s.color }, group);
  }

  // ---- pointer: hover shows every seed, a drag zooms -----------------------------------------------------------------

  listen() {
    const where = (event) => {
      const frame = this.plot.getBoundingClientRect();
      return ((event.clientX - frame.left) / frame.width) * this.plot.viewBox.baseVal.width;
    };
    const clamp = (p) => Math.min(Math.max(p, this.box.left), this.box.right);
    let start = null;
    this.plot.addEventListener("pointerdown", (e) => { start = clamp(where(e)); });
    this.plot.addEventListener("pointermove", (e) => {
      const p = clamp(where(e));
      this.hover(p);
      if (start === null || !(e.buttons & 1)) return;
      const { top, bottom } = this.box;
      svg("rect", { x: Math.min(p, start), y: top, width: Math.abs(p - start), height: bottom - top, class: "brush" }, this.over);
    });
    this.plot.addEventListener("pointerup", (e) => {
      const p = clamp(where(e));
      if (start !== null && Math.abs(p - start) > 8) this.zoomTo([start, p].sort((a, b) => a - b).map(this.x.invert));
      start = null;
    });
    this.plot.addEventListener("pointerleave", () => { start = null; this.tip.hidden = true; this.over.replaceChildren(); });
    this.plot.addEventListener("dblclick", () => this.zoomTo(null));
  }

  hover(p) {
    const xs = [...new Set(this.shown.flatMap((s) => s.x))].filter((v) => this.x(v) >= this.box.left - 1 && this.x(v) <= this.box.right + 1);
    this.over.replaceChildren();
    if (!xs.length) return;
    const x = xs.reduce((a, b) => (Math.abs(this.x(b) - p) < Math.abs(this.x(a) - p) ? b : a));
    svg("path", { d: `M${this.x(x)},${this.box.top}V${this.box.bottom}`, class: "hair" }, this.over);
    this.tip.replaceChildren(html("b", { textContent: `${this.panel.xlabel}: ${short(x)}` }));
    for (const s of this.shown) {
      const i = s.x.indexOf(x);
      if (i < 0) continue;
      svg("path", { d: MARKS[s.marker](this.x(x), this.y(s.mean[i])), fill: s.color }, this.over);
      const value = short(s.mean[i]) + (s.std ? ` ± ${short(s.std[i])}` : "");
      const seeds = Object.entries(s.seeds).filter(([, v]) => v[i] !== null).map(([seed, v]) => `${seed}: ${short(v[i])}`).join(", ");
      const head = html("b", { textContent: `${s.label} ${value}` });
      head.style.borderLeft = `4px solid ${s.color}`;
      head.style.paddingLeft = "4px";
      this.tip.append(html("div", {}, head, html("div", { className: "soft", textContent: `seeds ${seeds}` })));
    }
    this.tip.hidden = false;
    const place = (this.x(x) / this.plot.viewBox.baseVal.width) * this.host.clientWidth;
    const left = place > this.host.clientWidth / 2 ? place - this.tip.offsetWidth - 14 : place + 18;
    this.tip.style.left = `${Math.max(4, Math.min(left, this.host.clientWidth - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = "2.4rem";
  }
}
Chart.count = 0;

// ---- loss landscapes -------------------------------------------------------------------------------------------------

const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function viridis(t) {
  const place = Math.min(Math.max(t, 0), 1) * 4, i = Math.min(Math.floor(place), 3), f = place - i;
  return `rgb(${VIRIDIS[i].map((c, k) => Math.round(c + f * (VIRIDIS[i + 1][k] - c))).join()})`;
}

function drawSurface(host, surface, [low, high]) {
  const n = surface.beta.length, plot = svg("svg", { viewBox: `0 0 ${n} ${n}`, "shape-rendering": "crispEdges" });
  const text = html("div", { className: "soft", textContent: `F from ${short(low)} (dark) to ${short(high)} (light)` });
  host.append(html("figcaption", { textContent: surface.title }), plot, text);
  surface.values.forEach((row, i) => row.forEach((value, j) => {
    const fill = viridis((value - low) / (high - low || 1));
    const cell = svg("rect", { x: j, y: n - 1 - i, width: 1.02, height: 1.02, fill }, plot);
    cell.addEventListener("pointerenter", () => {
      text.textContent = `β1 = ${short(surface.beta[j])}, β2 = ${short(surface.beta[i])}: F = ${short(value)}`;
    });
  }));
}

const data = JSON.parse(document.getElementById("data").textContent);
for (const host of document.querySelectorAll("figure[data-panel]")) {
  const [item, index] = host.dataset.panel.split("/");
  new Chart(host, data[item].panels[index]);
}
for (const host of document.querySelectorAll("figure[data-surface]")) {
  const [item, index] = host.dataset.surface.split("/"), { surfaces } = data[item];
  const values = surfaces.flatMap((s) => s.values.flat());
  drawSurface(host, surfaces[index], [Math.min(...values), Math.max(...values)]);
}
