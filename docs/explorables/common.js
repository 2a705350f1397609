"use strict";
// What the explorables share: a seeded random source, small arithmetic, charts that can be dragged, and the
// frame of question, figures, controls, formula and things to try. No library and no network.
//
// explorables.define(name, { question, start, controls, compute, draw, formula, tries }) registers one;
// `compute` is pure, so that a test compares its numbers with rl/equations. A page holds
// <div class="explorable" data-name="clip"></div> and calls explorables.mountAll().

(() => {
  if (globalThis.explorables) return; // a notebook embeds this file once for each explorable
  const X = (globalThis.explorables = { mounted: {} });
  const kinds = {};

  // --- arithmetic ---------------------------------------------------------------------------------------

  X.sum = (values) => values.reduce((a, b) => a + b, 0);
  X.mean = (values) => X.sum(values) / values.length;
  X.clamp = (v, low, high) => Math.min(Math.max(v, low), high);
  X.dot = (a, b) => X.sum(a.map((v, i) => v * b[i]));
  X.range = (n) => Array.from({ length: n }, (_, i) => i);
  X.linspace = (a, b, n) => X.range(n).map((i) => a + ((b - a) * i) / (n - 1));

  X.softmax = (logits) => {
    const largest = Math.max(...logits);
    const weights = logits.map((v) => Math.exp(v - largest));
    const total = X.sum(weights);
    return weights.map((w) => w / total);
  };

  /** KL(p || q) in nats; a probability of 0 in p adds nothing. */
  X.kl = (p, q) => X.sum(p.map((v, i) => (v > 0 ? v * Math.log(v / q[i]) : 0)));

  /** Numbers from 0 to 1 that a seed repeats (mulberry32). */
  X.randomFrom = (seed) => () => {
    seed = (seed + 1831565813) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };

  /** The first index at which the probabilities, summed up, pass `uniform`. */
  X.drawn = (probabilities, uniform) => {
    let sum = 0;
    const found = probabilities.findIndex((p) => (sum += p) > uniform);
    return found < 0 ? probabilities.length - 1 : found;
  };

  X.fixed = (v, digits = 2) => {
    const text = v.toFixed(digits);
    return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "\u2212");
  };
  X.signed = (v, digits = 2) => (Number(v.toFixed(digits)) > 0 ? "+" : "") + X.fixed(v, digits);
  /** Blue above 0, orange below, full at `full`: the colours of every token view. */
  X.pushColour = (v, full) => {
    const share = X.clamp(Math.abs(v) / (full || 1), 0, 1) * 0.8;
    return v === 0 ? "transparent" : `rgba(${v > 0 ? "70, 145, 210" : "230, 128, 30"}, ${share.toFixed(3)})`;
  };

  // --- elements -----------------------------------------------------------------------------------------

  /** An element of HTML, or of SVG with `svg: true`; `on...` are listeners, `text` and `html` its content. */
  X.make = (tag, attributes = {}, ...children) => {
    const { svg, text, html, ...rest } = attributes;
    const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(rest)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== false) element.setAttribute(name, value);
    }
    if (text !== undefined) element.textContent = text;
    if (html !== undefined) element.innerHTML = html;
    element.append(...children);
    return element;
  };

  /** A row of colours and what they mean; words without a colour stand alone. */
  X.legend = (view, entries) =>
    view.append(
      X.make("div", { class: "gx-legend" }, ...entries.map(([words, colour, kind]) =>
        X.make("span", {}, ...(colour ? [X.make("i", { class: kind || "box", style: `--c: var(--gx-${colour})` })] : []), words))),
    );

  const colourOf = (name) => (/^[a-z0-9]+$/.test(name) ? `var(--gx-${name})` : name);

  function ticksBetween(low, high, most) {
    const raw = (high - low) / most;
    const size = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * size).find((s) => s >= raw);
    const first = Math.ceil(low / step - 1e-9);
    const count = Math.floor(high / step + 1e-9) - first + 1;
    return X.range(Math.max(count, 0)).map((i) => Number(((first + i) * step).toPrecision(10)));
  }

  /** A chart in `view`; x and y are [lowest, highest]. Returns functions that draw in these units. */
  X.chart = (view, { title, x, y, height = 210, xlabel, ylabel, xticks, ytext = (v) => String(v), left = 44, label, full }) => {
    const figure = X.make("figure", { class: full ? "gx-figure gx-full" : "gx-figure" });
    view.append(figure);
    if (title) figure.append(X.make("figcaption", { html: title }));
    const width = X.clamp(figure.clientWidth || 320, 240, 900);
    const svg = X.make("svg", { svg: true, width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label || title || "" });
    figure.append(svg);
    const box = { left, right: width - 8, top: 10, bottom: height - (xlabel ? 40 : 24) };
    const px = (v) => box.left + ((v - x[0]) / (x[1] - x[0])) * (box.right - box.left);
    const py = (v) => box.bottom - ((v - y[0]) / (y[1] - y[0])) * (box.bottom - box.top);
    const inY = (v) => X.clamp(v, y[0], y[1]);
    const put = (tag, attributes, ...children) => {
      const element = X.make(tag, { svg: true, ...attributes }, ...children);
      svg.append(element);
      return element;
    };
    const text = (at, up, words, { anchor = "middle", colour = "ink", size = 12, weight } = {}) =>
      put("text", { x: at, y: up, "text-anchor": anchor, fill: colourOf(colour), "font-size": size, "font-weight": weight, text: words });
    for (const v of ticksBetween(y[0], y[1], height < 170 ? 3 : 5)) {
      put("line", { x1: box.left, x2: box.right, y1: py(v), y2: py(v), stroke: colourOf("grid") });
      text(box.left - 5, py(v) + 4, ytext(v), { anchor: "end", colour: "quiet", size: 11 });
    }
    const marks = xticks || ticksBetween(x[0], x[1], Math.min(8, width / 60)).map((v) => [v, String(v)]);
    for (const [v, words] of marks) text(px(v), box.bottom + 15, words, { colour: "quiet", size: 11 });
    if (xlabel) text((box.left + box.right) / 2, height - 6, xlabel, { colour: "quiet" });
    if (ylabel) put("text", { x: 0, y: 0, transform: `translate(11 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle", "font-size": 12, fill: colourOf("quiet"), text: ylabel });
    const chart = {
      svg, box, px, py, put, text,
      line(points, colour, { dash, width: w = 2 } = {}) {
        const d = points.map(([a, b], i) => `${i ? "L" : "M"}${px(a).toFixed(1)} ${py(inY(b)).toFixed(1)}`).join("");
        return put("path", { d, fill: "none", stroke: colourOf(colour), "stroke-width": w, "stroke-dasharray": dash, "stroke-linejoin": "round" });
      },
      band: (from, to, colour, opacity = 0.15) =>
        put("rect", { x: px(from), width: Math.max(px(to) - px(from), 0), y: box.top, height: box.bottom - box.top, fill: colourOf(colour), opacity }),
      rule: (at, colour, { dash = "4 3", across = false } = {}) =>
        put("line", across
          ? { x1: box.left, x2: box.right, y1: py(inY(at)), y2: py(inY(at)), stroke: colourOf(colour), "stroke-dasharray": dash }
          : { x1: px(at), x2: px(at), y1: box.top, y2: box.bottom, stroke: colourOf(colour), "stroke-dasharray": dash }),
      bar(at, wide, value, colour, { from = 0, opacity = 1, outline = false } = {}) {
        const [a, b] = [py(inY(from)), py(inY(value))];
        return put("rect", { x: px(at - wide / 2), width: px(at + wide / 2) - px(at - wide / 2), y: Math.min(a, b), height: Math.max(Math.abs(a - b), 0.5),
          fill: outline ? "none" : colourOf(colour), stroke: outline ? colourOf(colour) : undefined, "stroke-width": 1.5, opacity });
      },
      dot: (at, up, colour, { r = 4, opacity = 1 } = {}) =>
        put("circle", { cx: px(at), cy: py(inY(up)), r, fill: colourOf(colour), opacity }),
      /** A point that the reader drags up and down (or along, with `along`), or moves with the arrow keys. */
      handle({ at, up, value, min, max, step, name, set, along = false, colour = "ink" }) {
        const snap = (v) => Number((Math.round(X.clamp(v, min, max) / step) * step).toFixed(6));
        const knob = put("circle", {
          cx: px(at), cy: py(inY(up)), r: 9, fill: colourOf(colour), class: along ? "gx-handle gx-along" : "gx-handle", tabindex: 0,
          role: "slider", "aria-label": name, "aria-valuemin": min, "aria-valuemax": max, "aria-valuenow": value, "data-handle": name,
          onkeydown(event) {
            const sign = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key];
            if (!sign) return;
            event.preventDefault();
            event.stopPropagation(); // the theme turns pages with the arrow keys
            set(snap(value + sign * step));
          },
          onpointerdown(event) {
            event.preventDefault();
            const frame = svg.getBoundingClientRect();
            const move = ({ clientX, clientY }) => {
              const seen = along
                ? x[0] + ((clientX - frame.left - box.left) / (box.right - box.left)) * (x[1] - x[0])
                : y[0] + ((box.bottom - (clientY - frame.top)) / (box.bottom - box.top)) * (y[1] - y[0]);
              set(snap(seen));
            };
            const end = () => {
              removeEventListener("pointermove", move);
              removeEventListener("pointerup", end);
              removeEventListener("pointercancel", end);
            };
            addEventListener("pointermove", move);
            addEventListener("pointerup", end);
            addEventListener("pointercancel", end);
          },
        });
        return knob;
      },
    };
    return chart;
  };

  // --- the frame ----------------------------------------------------------------------------------------

  X.define = (name, kind) => {
    kinds[name] = kind;
    X[name] = kind; // its pure functions, for tests
  };

  function control(entry, state, change, key) {
    if (entry.press) {
      return X.make("button", { type: "button", "data-press": entry.label, text: entry.label, onclick: () => change(entry.press(state()) || {}) });
    }
    const id = `gx-${key}-${entry.key}`;
    const label = X.make("label", { for: id }, X.make("span", { text: entry.label }));
    if (entry.options) {
      const pick = X.make("select", { id, "data-key": entry.key, onchange: (e) => change({ [entry.key]: e.target.value, ...entry.also?.({ [entry.key]: e.target.value }) }) },
        ...entry.options.map(([value, words]) => X.make("option", { value, text: words })));
      label.append(pick);
      return label;
    }
    const shown = X.make("output", { for: id });
    const slider = X.make("input", {
      id, type: "range", min: entry.min, max: entry.max, step: entry.step, "data-key": entry.key,
      oninput: (e) => change({ [entry.key]: Number(e.target.value) }),
      onkeydown: (e) => e.stopPropagation(), // the theme turns pages with the arrow keys
    });
    label.append(slider, shown);
    return label;
  }

  function mount(root) {
    const name = root.dataset.name;
    const kind = kinds[name];
    let state = structuredClone(kind.start);
    const figures = X.make("div", { class: "gx-figures" });
    const formula = X.make("div", { class: "gx-formula", "aria-live": "polite" });
    const controls = X.make("div", { class: "gx-controls" });
    const buttons = X.make("div", { class: "gx-buttons" });
    const tries = X.make("ul", {}, ...kind.tries.map((words) => X.make("li", { html: words })));
    root.dataset.ready = "yes";
    root.replaceChildren(X.make("p", { class: "gx-question", text: kind.question }), figures, controls, buttons, formula,
      X.make("div", { class: "gx-tries" }, X.make("b", { text: "Try" }), tries));
    const here = (X.mounted[name] = { root, state: () => state, numbers: null });

    function render() {
      const numbers = (here.numbers = kind.compute(state));
      const focus = document.activeElement?.dataset?.handle;
      figures.style.minHeight = `${figures.offsetHeight}px`; // so that a page does not jump while it is redrawn
      figures.replaceChildren();
      const columns = root.clientWidth < 560 ? 1 : root.clientWidth < 780 ? 2 : kind.columns || 2;
      figures.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
      kind.draw(figures, state, numbers, change);
      figures.style.minHeight = "";
      formula.innerHTML = kind.formula(state, numbers);
      if (focus) [...figures.querySelectorAll("[data-handle]")].find((e) => e.dataset.handle === focus)?.focus();
      for (const entry of kind.controls.filter((one) => one.key)) {
        const input = controls.querySelector(`[data-key="${entry.key}"]`);
        input.value = state[entry.key];
        const output = input.parentElement.querySelector("output");
        if (output) output.textContent = entry.show ? entry.show(state[entry.key]) : X.fixed(state[entry.key], entry.digits ?? 2);
      }
    }
    function change(patch) {
      state = { ...state, ...patch };
      render();
    }
    here.change = change;
    for (const entry of kind.controls) (entry.press ? buttons : controls).append(control(entry, () => state, change, name));
    buttons.append(X.make("button", { type: "button", text: "Reset", "data-press": "Reset", onclick: () => change(structuredClone(kind.start)) }));
    render();
    let width = root.clientWidth;
    new ResizeObserver(() => {
      if (root.clientWidth !== width && (width = root.clientWidth)) render();
    }).observe(root);
    kind.mounted?.(here, change);
  }

  X.mountAll = () => {
    if (typeof document === "undefined") return;
    for (const root of document.querySelectorAll(".explorable:not([data-ready])")) if (kinds[root.dataset.name]) mount(root);
  };
})();
