"use strict";
// Draws the charts of the JSON element, sorts tables, switches the theme and, behind a server, follows new rows.
// Labels come from the user: they are set as text, never parsed as markup.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const MARGIN = { left: 62, right: 14, top: 10, bottom: 42 }, BAR = 66, LEVELS = 64, NEAR = 14, MOST_KEYS = 10;
  const RAMPS = {
    log: ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"],
    linear: ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"],
    cosine: ["#2d004b", "#6950a0", "#a89cc8", "#d9d8ea", "#f6f6f7", "#fde0b6", "#f9a95d", "#c96c0c", "#7f3b08"].reverse(),
  };
  const kept = new Map(); // Hidden series and zoom by chart title, so that a refresh keeps the reader's choice.

  const el = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const svg = (name, attributes = {}, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const finite = (v) => typeof v === "number" && Number.isFinite(v);
  const colour = (index) => `var(--c${index % 8})`;

  // Numbers have all digits in tips and tables, few on axes.
  const exact = (v) => (typeof v === "string" ? v : v === null ? "-" : String(+v.toPrecision(9)));
  const SUPER = { "-": "\u207b", 0: "\u2070", 1: "\u00b9", 2: "\u00b2", 3: "\u00b3", 4: "\u2074", 5: "\u2075",
    6: "\u2076", 7: "\u2077", 8: "\u2078", 9: "\u2079" };
  function short(v) {
    if (v === 0) return "0";
    const size = Math.abs(v);
    if (size >= 1e5 || size < 1e-3) {
      const power = Math.floor(Math.log10(size) + 1e-9), lead = +(v / 10 ** power).toPrecision(3);
      const ten = "10" + [...String(power)].map((c) => SUPER[c]).join("");
      return lead === 1 ? ten : `${lead}\u00b7${ten}`;
    }
    return String(+v.toPrecision(4));
  }

  // Scales.
  function scale(low, high, from, to, log) {
    const f = log ? Math.log10 : (v) => v, a = f(low), span = f(high) - a || 1;
    const place = (v) => from + ((f(v) - a) / span) * (to - from);
    place.back = (p) => { const v = a + ((p - from) / (to - from)) * span; return log ? 10 ** v : v; };
    Object.assign(place, { low, high, log });
    return place;
  }
  function ticks({ low, high, log }, room) {
    const most = Math.max(2, Math.floor(room));
    if (log && high / low > 8) {
      const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
      const step = Math.max(1, Math.ceil((last - first + 1) / most)), found = [];
      const minor = last - first < 2 ? [1, 2, 5] : [1];
      for (let k = first - 1; k <= last; k += step) for (const m of minor) found.push(m * 10 ** k);
      return found.filter((v) => v >= low * 0.9999 && v <= high * 1.0001);
    }
    const raw = (high - low) / most, unit = 10 ** Math.floor(Math.log10(raw || 1));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= raw * 0.999) || unit, found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(+(k * step).toPrecision(12));
    return found;
  }
  function extent(axis, lists) {
    let low = Infinity, high = -Infinity;
    for (const list of lists) for (const v of list) if (finite(v) && (!axis.log || v > 0)) {
      if (v < low) low = v;
      if (v > high) high = v;
    }
    if (low > high) [low, high] = axis.log ? [0.1, 1] : [0, 1];
    return [low, high];
  }
  function padded([low, high], axis) {
    if (axis.log) { const f = (high / low) ** 0.05 || 1; [low, high] = low === high ? [low / 2, high * 2] : [low / f, high * f]; }
    else { const d = (high - low) * 0.05 || Math.abs(high) * 0.1 || 0.5; [low, high] = [low - d, high + d]; }
    return [axis.low ?? low, axis.high ?? high];
  }

  class Figure {
    constructor(box, chart) {
      Object.assign(this, { box, chart });
      this.key = chart.title + "|" + chart.panels.map((p) => p.title).join("|");
      this.state = kept.get(this.key) || { hidden: new Set(), zoom: [] };
      kept.set(this.key, this.state);
      this.legend();
      const shape = chart.wide ? " wide" : chart.panels.length <= 2 ? " two" : "";
      this.grid = el("div", { class: "panels" + shape });
      box.append(this.grid);
      this.panels = chart.panels.map((panel, number) => new Drawn(this, panel, number));
      this.tools();
      this.draw();
    }
    series() {
      const found = new Map();
      for (const panel of this.chart.panels) for (const [kind, list] of [["band", panel.bands], ["line", panel.lines]])
        for (const one of list) if (!found.has(one.name)) found.set(one.name, { kind, one });
      return found;
    }
    legend() {
      const all = this.series();
      if (!all.size || all.size > MOST_KEYS) return; // The vertical axis names the ridges.
      const bar = el("div", { class: "legend", role: "group", "aria-label": "Show or hide" });
      for (const [name, { kind, one }] of all) {
        const key = svg("svg", { width: 26, height: 10, "aria-hidden": "true" });
        key.append(kind === "band"
          ? svg("rect", { width: 26, height: 10, fill: colour(one.colour), "fill-opacity": 0.35 })
          : svg("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: colour(one.colour), "stroke-width": 2, "stroke-dasharray": one.dash }));
        const button = el("button", { type: "button", "aria-pressed": String(!this.state.hidden.has(name)) }, key, name);
        button.addEventListener("click", () => {
          const off = !this.state.hidden.delete(name);
          if (off) this.state.hidden.add(name);
          button.setAttribute("aria-pressed", String(!off));
          this.draw();
        });
        bar.append(button);
      }
      this.box.append(bar);
    }
    tools() {
      this.reset = el("button", { type: "button" }, "Reset zoom");
      this.reset.addEventListener("click", () => { this.state.zoom = []; this.draw(); });
      const save = el("button", { type: "button" }, "Save as SVG");
      save.addEventListener("click", () => this.panels.forEach((panel) => panel.save()));
      const table = el("details", {}, el("summary", {}, "Data table"));
      table.addEventListener("toggle", () => {
        if (table.open && !table.querySelector("table")) this.chart.panels.forEach((p) => table.append(numbers(p)));
      });
      this.box.append(el("div", { class: "tools" }, this.reset, save), table);
    }
    draw() {
      const y = this.chart.panels.map((panel) => vertical(panel, this.state.hidden));
      const together = [Math.min(...y.map((e) => e[0])), Math.max(...y.map((e) => e[1]))];
      this.panels.forEach((panel, i) => panel.draw(this.chart.same_y ? together : y[i]));
      this.reset.hidden = !this.state.zoom.some(Boolean);
    }
  }
  function vertical(panel, hidden) {
    if (panel.heat) return [panel.heat.y_edges[0], panel.heat.y_edges.at(-1)];
    const shown = (list) => list.filter((one) => !hidden.has(one.name));
    const lists = [...shown(panel.lines).map((l) => l.y), ...shown(panel.bands).flatMap((b) => [b.low, b.high])];
    return extent(panel.y, lists);
  }

  class Drawn {
    constructor(figure, panel, number) {
      Object.assign(this, { figure, panel, number, at: null });
      this.root = svg("svg", { tabindex: 0, role: "img", "aria-label":
        `${figure.chart.title}${panel.title ? ", " + panel.title : ""}. ${figure.chart.caption} Arrow keys read the values; the table below has them all.` });
      figure.grid.append(el("div", { class: "panel" }, ...(panel.title ? [el("h4", {}, panel.title)] : []), this.root));
      for (const name of ["pointermove", "pointerdown", "pointerup", "pointerleave", "dblclick", "keydown", "blur"])
        this.root.addEventListener(name, (event) => this[name](event));
    }
    shown() {
      const hidden = this.figure.state.hidden, seen = (one) => !hidden.has(one.name);
      return { lines: this.panel.lines.filter(seen), bands: this.panel.bands.filter(seen) };
    }
    draw(range) {
      const { panel, root } = this, { heat } = panel, { lines, bands } = this.shown();
      this.width = Math.max(260, root.parentNode.clientWidth);
      const rows = panel.y.ticks ? panel.y.ticks.length * (heat ? 16 : 22) + MARGIN.top + MARGIN.bottom + 30 : 0;
      this.height = heat && !panel.y.ticks ? Math.min(Math.max(0.62 * this.width, 270), 460) : Math.max(rows, Math.min(0.62 * this.width, 290));
      const names = panel.y.ticks ? Math.min(0.34 * this.width, 14 + 6.4 * Math.max(...panel.y.ticks.map((t) => t.length))) : 0;
      this.left = Math.max(MARGIN.left, names + 18);
      this.right = this.width - MARGIN.right - (heat ? BAR : 0);
      this.bottom = this.height - MARGIN.bottom;
      const zoom = this.figure.state.zoom[this.number];
      const xs = [...lines, ...bands].map((s) => s.x);
      const wide = heat ? [heat.x_edges[0], heat.x_edges.at(-1)] : padded(extent(panel.x, xs.length ? xs : this.panel.lines.map((l) => l.x)), panel.x);
      const high = heat ? range : padded(range, panel.y);
      this.x = scale(...(zoom ? zoom.x : wide), this.left, this.right, panel.x.log);
      this.y = scale(...(zoom ? zoom.y : high), this.bottom, MARGIN.top, panel.y.log);
      root.replaceChildren();
      root.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
      root.setAttribute("height", this.height);
      const id = `clip-${++Drawn.count}`, clip = svg("clipPath", { id }), defs = svg("defs");
      clip.append(svg("rect", { x: this.left, y: MARGIN.top, width: this.right - this.left, height: this.bottom - MARGIN.top }));
      defs.append(clip);
      root.append(defs);
      this.axes(names);
      const inside = svg("g", { "clip-path": `url(#${id})` });
      if (heat) this.heat(inside, defs, id);
      bands.forEach((band) => this.band(inside, band));
      // Outlines first: lines that nearly coincide would cover one another by theirs.
      if (panel.heat) lines.forEach((line) => this.outline(inside, line));
      lines.forEach((line) => this.line(inside, line));
      root.append(inside, svg("rect", { class: "frame", x: this.left, y: MARGIN.top, width: this.right - this.left, height: this.bottom - MARGIN.top }));
      if (heat) this.bar(heat);
      this.over = svg("g");
      root.append(this.over);
      this.stops = heat ? null : [...new Set([...lines, ...bands].flatMap((s) => s.x))].filter(finite).sort((a, b) => a - b);
    }
    axes(names) {
      const { x, y, root, panel } = this, middle = (this.left + this.right) / 2;
      const put = (axis, place, room) => axis.ticks
        ? axis.ticks.map((text, i) => [i, text]).filter(([i]) => i >= place.low && i <= place.high && i % Math.ceil(axis.ticks.length / room) === 0)
        : ticks(place, room).map((v) => [v, short(v)]);
      // Names as far apart as the longest needs.
      const wide = Math.max(62, 12 + 6.4 * Math.max(0, ...(panel.x.ticks || []).map((t) => t.length)));
      for (const [v, text] of put(panel.x, x, (this.right - this.left) / wide)) {
        if (!panel.heat) root.append(svg("line", { class: "grid", x1: x(v), x2: x(v), y1: MARGIN.top, y2: this.bottom }));
        root.append(svg("text", { x: x(v), y: this.bottom + 16, "text-anchor": "middle" }, text));
      }
      for (const [v, text] of put(panel.y, y, (this.bottom - MARGIN.top) / (panel.y.ticks ? 13 : 38))) {
        if (!panel.heat) root.append(svg("line", { class: "grid", x1: this.left, x2: this.right, y1: y(v), y2: y(v) }));
        const most = Math.floor(names / 6.4), cut = panel.y.ticks && text.length > most ? "\u2026" + text.slice(1 - most) : text;
        root.append(svg("text", { x: this.left - 6, y: y(v) + 4, "text-anchor": "end" }, cut));
      }
      root.append(svg("text", { class: "label", x: middle, y: this.height - 6, "text-anchor": "middle" }, panel.x.label));
      const up = (this.bottom + MARGIN.top) / 2;
      root.append(svg("text", { class: "label", x: 12, y: up, "text-anchor": "middle", transform: `rotate(-90 12 ${up})` }, panel.y.label));
    }
    path(x, y) {
      let drawn = "", pen = "M";
      for (let i = 0; i < x.length; i++) {
        if (!finite(x[i]) || !finite(y[i]) || (this.y.log && y[i] <= 0) || (this.x.log && x[i] <= 0)) { pen = "M"; continue; }
        drawn += `${pen}${this.x(x[i]).toFixed(2)} ${this.y(y[i]).toFixed(2)}`;
        pen = "L";
      }
      return drawn;
    }
    outline(group, one) {
      const d = one.joined ? this.path(one.x, one.y) : "";
      group.append(svg("path", { d, stroke: "var(--paper)", "stroke-width": 3.6, "stroke-opacity": 0.6, fill: "none" }));
    }
    line(group, one) {
      const style = { stroke: colour(one.colour), "stroke-width": 1.6, fill: "none", "stroke-dasharray": one.dash, "stroke-linejoin": "round" };
      const d = one.joined ? this.path(one.x, one.y) : "";
      group.append(svg("path", { d, ...style }));
      if (one.x_low) one.x_low.forEach((low, i) => {
        const ends = [low, one.x_high[i]];
        if (ends.every((v) => finite(v) && !(this.x.log && v <= 0)) && finite(one.y[i]) && !(this.y.log && one.y[i] <= 0))
          group.append(svg("path", { d: this.path(ends, [one.y[i], one.y[i]]), ...style, "stroke-width": 0.8, "stroke-dasharray": "" }));
      });
      if (one.marks || one.x.length === 1 || (!one.dash && one.x.length <= 40)) one.x.forEach((v, i) => {
        if (finite(v) && finite(one.y[i]) && !(this.y.log && one.y[i] <= 0))
          group.append(svg("circle", { cx: this.x(v), cy: this.y(one.y[i]), r: one.joined ? 2 : 4, fill: colour(one.colour) }));
      });
    }
    band(group, one) {
      const ok = one.x.map((v, i) => i).filter((i) => finite(one.low[i]) && finite(one.high[i]) && !(this.y.log && one.low[i] <= 0));
      if (!ok.length) return;
      const pick = (list, order) => order.map((i) => list[i]);
      const down = [...ok].reverse();
      const d = this.path(pick(one.x, ok), pick(one.high, ok)) + this.path(pick(one.x, down), pick(one.low, down)).replace("M", "L") + "Z";
      group.append(svg("path", { d, fill: colour(one.colour), "fill-opacity": 0.3, stroke: colour(one.colour), "stroke-width": 0.7 }));
    }
    ramp(heat) {
      if (this.colours) return this.colours;
      const flat = heat.values.flat().filter((v) => finite(v) && (heat.scale !== "log" || v > 0));
      let low = Infinity, high = -Infinity;
      for (const v of flat) { low = Math.min(low, v); high = Math.max(high, v); }
      if (heat.scale === "cosine") [low, high] = [-1, 1];
      const place = scale(low, high > low ? high : low * 1.001 + 1e-9, 0, 1, heat.scale === "log"), stops = RAMPS[heat.scale];
      const at = (t) => {
        const s = Math.min(Math.max(t, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(s), stops.length - 2);
        const parts = [1, 3, 5].map((k) => [stops[i], stops[i + 1]].map((hex) => parseInt(hex.slice(k, k + 2), 16)));
        return `rgb(${parts.map(([a, b]) => Math.round(a + (b - a) * (s - i))).join(",")})`;
      };
      return (this.colours = { place, at, some: flat.length > 0 });
    }
    heat(group, defs, id) {
      const { heat } = this.panel, { place, at } = this.ramp(heat), paths = new Map();
      const hatch = svg("pattern", { id: `${id}-blank`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
      hatch.append(svg("rect", { width: 6, height: 6, fill: "var(--paper)" }), svg("line", { x1: 0, x2: 0, y1: 0, y2: 6, stroke: "var(--rule)", "stroke-width": 2 }));
      defs.append(hatch);
      heat.values.forEach((row, j) => row.forEach((v, i) => {
        if (v === null) return; // No cell is here.
        const known = finite(v) && (heat.scale !== "log" || v > 0);
        const level = known ? Math.round(Math.min(Math.max(place(v), 0), 1) * LEVELS) : -1;
        const [x0, x1] = [this.x(heat.x_edges[i]), this.x(heat.x_edges[i + 1])];
        const [y0, y1] = [this.y(heat.y_edges[j + 1]), this.y(heat.y_edges[j])];
        paths.set(level, (paths.get(level) || "") + `M${x0.toFixed(2)} ${y0.toFixed(2)}H${(x1 + 0.3).toFixed(2)}V${(y1 + 0.3).toFixed(2)}H${x0.toFixed(2)}Z`);
      }));
      for (const [level, d] of paths) group.append(svg("path", { d, fill: level < 0 ? `url(#${id}-blank)` : at(level / LEVELS) }));
    }
    bar(heat) {
      const { place, at, some } = this.ramp(heat), left = this.right + 12, size = this.bottom - MARGIN.top, n = 48;
      if (!some) return;
      const where = scale(place.low, place.high, this.bottom, MARGIN.top, place.log);
      for (let k = 0; k < n; k++) this.root.append(svg("rect", { x: left, y: this.bottom - ((k + 1) * size) / n, width: 10, height: size / n + 0.5, fill: at((k + 0.5) / n) }));
      for (const v of ticks(where, size / 40)) this.root.append(svg("text", { x: left + 14, y: where(v) + 4 }, short(v)));
    }

    // Values are read by pointer, touch or arrow keys.
    point(event) {
      const box = this.root.getBoundingClientRect();
      return [((event.clientX - box.left) * this.width) / box.width, ((event.clientY - box.top) * this.height) / box.height];
    }
    pointerdown(event) {
      if (event.pointerType !== "touch" && event.button === 0) this.from = this.point(event);
      else this.pointermove(event);
    }
    pointermove(event) {
      const [px, py] = this.point(event);
      if (this.from && Math.hypot(px - this.from[0], py - this.from[1]) > 8) {
        const [a, b] = this.from;
        this.over.replaceChildren(svg("rect", { class: "zoom", x: Math.min(a, px), y: Math.min(b, py), width: Math.abs(px - a), height: Math.abs(py - b) }));
        return hide();
      }
      if (px < this.left - 4 || px > this.right + 4 || py < 0 || py > this.bottom + 4) return this.leave();
      this.read(this.nearest(px, py));
    }
    pointerup(event) {
      const from = this.from, [px, py] = this.point(event);
      this.from = null;
      if (!from || Math.hypot(px - from[0], py - from[1]) <= 8) return;
      const clamp = (v, low, high) => Math.min(Math.max(v, low), high);
      const xs = [from[0], px].map((p) => clamp(p, this.left, this.right)).sort((a, b) => a - b);
      let ys = [from[1], py].map((p) => clamp(p, MARGIN.top, this.bottom)).sort((a, b) => b - a);
      if (ys[0] - ys[1] < 12) ys = [this.bottom, MARGIN.top];
      if (xs[1] - xs[0] < 4) return this.leave();
      this.figure.state.zoom[this.number] = { x: xs.map(this.x.back), y: ys.map(this.y.back) };
      hide();
      this.figure.draw();
    }
    dblclick() { this.figure.state.zoom[this.number] = null; this.figure.draw(); }
    pointerleave() { this.from = null; this.leave(); }
    blur() { this.leave(); }
    leave() { this.at = null; this.over?.replaceChildren(); hide(); }
    keydown(event) {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (event.key === "Escape") { this.leave(); this.dblclick(); }
      if (!step) return;
      event.preventDefault();
      const { heat } = this.panel, clamp = (v, n) => Math.min(Math.max(v, 0), n - 1);
      if (heat) {
        const [i, j] = this.at || [-1, 0];
        this.read([clamp(i + step[0], heat.x.length), clamp(j + step[1], heat.y.length)]);
      } else if (step[0] && this.stops.length) this.read([clamp((this.at ? this.at[0] : step[0] > 0 ? -1 : this.stops.length) + step[0], this.stops.length)]);
    }
    nearest(px, py) {
      const { heat } = this.panel;
      if (heat) {
        const inside = (edges, v) => edges.findIndex((e, k) => k + 1 < edges.length && v >= e && v <= edges[k + 1]);
        return [inside(heat.x_edges, this.x.back(px)), inside(heat.y_edges, this.y.back(py))];
      }
      let best = -1, far = Infinity;
      this.stops.forEach((v, i) => { const d = Math.abs(this.x(v) - px); if (d < far) [best, far] = [i, d]; });
      return [best];
    }
    read(at) {
      if (at.some((k) => k < 0)) return this.leave();
      this.at = at;
      this.over.replaceChildren();
      const { heat, x, y } = this.panel;
      if (heat) {
        const [i, j] = at, x0 = this.x(heat.x_edges[i]), y0 = this.y(heat.y_edges[j + 1]);
        this.over.append(svg("rect", { class: "cross", x: x0, y: y0, width: this.x(heat.x_edges[i + 1]) - x0, height: this.y(heat.y_edges[j]) - y0, "stroke-width": 2 }));
        const v = heat.values[j][i], named = (axis, value) => `${axis.label} ${axis.ticks ? axis.ticks[value] : exact(value)}`;
        const said = `${heat.name}: ${finite(v) ? exact(v) : v === null ? "no cell" : heat.blank}${heat.texts ? "\n" + heat.texts[j][i] : ""}`;
        return tell(this, `${named(x, heat.x[i])}, ${named(y, heat.y[j])}`, said, this.x(heat.x[i]), y0);
      }
      const value = this.stops[at[0]], place = this.x(value), { lines, bands } = this.shown(), said = [];
      let top = this.bottom;
      this.over.append(svg("line", { class: "cross", x1: place, x2: place, y1: MARGIN.top, y2: this.bottom }));
      for (const one of [...lines, ...bands]) {
        let i = -1, far = NEAR;
        one.x.forEach((v, k) => { const d = Math.abs(this.x(v) - place); if (finite(v) && d < far) [i, far] = [k, d]; });
        if (i < 0) continue;
        for (const v of one.y ? [one.y[i]] : [one.low[i], one.high[i]]) if (finite(v) && !(this.y.log && v <= 0)) {
          this.over.append(svg("circle", { cx: this.x(one.x[i]), cy: this.y(v), r: 3.5, fill: colour(one.colour), stroke: "var(--paper)" }));
          top = Math.min(top, this.y(v));
        }
        said.push(one.texts ? one.texts[i] : `${one.name}: ${one.y ? exact(one.y[i]) : `${exact(one.low[i])} to ${exact(one.high[i])}`}`);
      }
      tell(this, `${x.label} ${x.ticks ? x.ticks[value] : exact(value)}`, said.join("\n"), place, top);
    }
    save() {
      const copy = this.root.cloneNode(true), from = [this.root, ...this.root.querySelectorAll("*")];
      [copy, ...copy.querySelectorAll("*")].forEach((node, i) => {
        const style = getComputedStyle(from[i]);
        for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family"]) node.setAttribute(name, style.getPropertyValue(name));
      });
      copy.setAttribute("xmlns", SVG);
      const link = el("a", { download: `${this.figure.chart.title} ${this.panel.title}`.trim().replace(/[^\w-]+/g, "-") + ".svg",
        href: "data:image/svg+xml;charset=utf-8," + encodeURIComponent(copy.outerHTML) });
      link.click();
    }
  }
  Drawn.count = 0;

  // The tip stands beside its point, inside the window.
  const tip = document.getElementById("tip");
  function tell(drawn, head, text, px, py) {
    const box = drawn.root.getBoundingClientRect(), k = box.width / drawn.width;
    tip.replaceChildren(el("b", {}, head), text);
    tip.hidden = false;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const beside = box.left + px * k + 14;
    tip.style.left = `${Math.max(4, beside > room ? Math.min(room, box.left + px * k - tip.offsetWidth - 14) : beside) + scrollX}px`;
    tip.style.top = `${Math.max(4, box.top + py * k - tip.offsetHeight - 10) + scrollY}px`;
  }
  function hide() { tip.hidden = true; }

  // Every number of a panel as a table that sorts.
  function numbers(panel) {
    const { heat, lines, bands } = panel, head = [panel.x.label], rows = [];
    const name = (axis, v) => (axis.ticks ? axis.ticks[v] : v);
    if (heat) {
      head.push(panel.y.label, heat.name);
      heat.y.forEach((v, j) => heat.x.forEach((u, i) => rows.push([name(panel.x, u), name(panel.y, v), heat.values[j][i]])));
    } else {
      const by = new Map(), at = (x) => by.get(x) || by.set(x, []).get(x);
      const put = (title, x, y) => { x.forEach((v, i) => { at(v)[head.length] = y[i]; }); head.push(title); };
      lines.forEach((one) => put(one.name, one.x, one.y));
      bands.forEach((one) => { put(`${one.name}, low`, one.x, one.low); put(`${one.name}, high`, one.x, one.high); });
      for (const [x, row] of [...by].sort((a, b) => a[0] - b[0])) { row[0] = name(panel.x, x); rows.push(Array.from(head, (_, k) => row[k] ?? "")); }
    }
    const cell = (v) => (finite(v) ? el("td", { class: "number", "data-value": v }, exact(v)) : el("td", {}, String(v ?? "")));
    const table = el("table", {}, ...(panel.title ? [el("caption", {}, panel.title)] : []),
      el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell)))));
    sortable(table);
    return el("div", { class: "scroll" }, table);
  }
  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = el("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1, rows = [...table.tBodies[0].rows];
        const key = (row) => { const c = row.cells[column]; return c.dataset.value === undefined ? c.textContent : +c.dataset.value; };
        const order = (a, b) => typeof a === typeof b ? (typeof a === "number" ? a - b : a.localeCompare(b)) : typeof a === "number" ? -1 : 1;
        rows.sort((a, b) => way * order(key(a), key(b)));
        heads.forEach((h) => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
        table.tBodies[0].append(...rows);
      });
    });
  }

  // The page.
  let figures = [];
  function start() {
    const charts = JSON.parse(document.getElementById("charts").textContent);
    figures = [...document.querySelectorAll("figure.chart")].map((box) => new Figure(box, charts[box.dataset.chart]));
    document.querySelectorAll("table.sortable").forEach(sortable);
    document.documentElement.dataset.drawn = figures.length;
  }
  let width = innerWidth;
  const again = () => { hide(); figures.forEach((figure) => figure.draw()); };
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; again(); } });
  addEventListener("beforeprint", again);
  addEventListener("afterprint", again);
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  start();

  if ("live" in document.body.dataset) {
    const state = document.getElementById("live");
    let seen = document.body.dataset.live;
    const follow = async () => {
      try {
        const answer = await fetch("state", { cache: "no-store" }), { version } = await answer.json();
        if (version !== seen) {
          const fresh = await (await fetch("body", { cache: "no-store" })).text();
          hide();
          document.querySelector("main").innerHTML = fresh; // Escaped by the server that wrote the page.
          start();
        }
        seen = version;
        state.textContent = "live";
        state.classList.remove("lost");
      } catch { state.textContent = "server gone; this is the last it said"; state.classList.add("lost"); }
      setTimeout(follow, 1000);
    };
    follow();
  }
})();
