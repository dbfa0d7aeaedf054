// Line charts on a canvas: a few curves over the last hour.

import { h, setText } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 120;

const probe = h("i", { hidden: true });
let resolved = new Map();

/** Forgets the colours of the theme before. */
export function forgetColours() {
  resolved = new Map();
}

/** A colour of the theme by its name, as canvases take it. */
export function colour(name) {
  if (!resolved.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(${name})`;
    resolved.set(name, getComputedStyle(probe).color);
  }
  return resolved.get(name);
}

/** Prepares a canvas for its size on the screen. Returns its context and size in CSS pixels. */
export function prepare(canvas, height) {
  const width = canvas.parentElement.clientWidth;
  const ratio = devicePixelRatio || 1;
  const size = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** The value above which a scale ends: 1, 2 or 5 times a power of ten. */
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/**
 * The lines of a scale, and the share of its height at which a value stands. Times that differ by a thousand need a
 * scale of powers of ten.
 */
function scale(values, logarithmic) {
  const most = Math.max(0, ...values);
  if (!logarithmic || !most) {
    const top = ceiling(most);
    return { ticks: [0, top / 2, top], share: (value) => value / top };
  }
  const least = Math.min(...values.filter((value) => value > 0));
  // Less than a millisecond is no time that anybody waits.
  const low = Math.max(-3, Math.floor(Math.log10(least)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(most)));
  const step = Math.ceil((high - low) / 4);
  const ticks = [];
  for (let power = low; power <= high; power += step) ticks.push(10 ** power);
  const share = (value) => (Math.log10(Math.max(value, 10 ** low)) - low) / (high - low);
  return { ticks, share };
}

/**
 * A chart. `curves` are `{ name, colour, read(history), format }`. The newest values stand above it as text, which is
 * also the description of the picture.
 */
export function chart({ title, unit, curves, logarithmic = false }) {
  const canvas = h("canvas", {
    class: "chart",
    role: "img",
    "aria-label": `${title} over the last hour; not known yet`,
  });
  const values = curves.map((curve) => h("strong", {}, "–"));
  const legend = curves.map((curve, i) =>
    h(
      "span",
      { class: "legend" },
      h("i", { class: `swatch ${curve.swatch}` }),
      curves.length > 1 && `${curve.name} `,
      values[i],
    ),
  );
  const node = h(
    "figure",
    { class: "panel chart-panel" },
    h(
      "figcaption",
      {},
      h("span", { class: "chart-title" }, title, h("small", {}, ` ${unit}`)),
      h("span", {}, legend),
    ),
    h("div", { class: "canvas-box" }, canvas),
  );

  const draw = (history) => {
    if (!history || !node.isConnected || !canvas.parentElement.clientWidth) return;
    const columns = curves.map((curve) => curve.read(history));
    const points = columns[0].length;
    const { ticks, share } = scale(
      columns.flat().filter((value) => value !== null),
      logarithmic,
    );
    const { context, width, height } = prepare(canvas, HEIGHT);
    const [left, right, above, below] = [0, width - 50, 6, height - 18];
    const x = (i) => left + ((i + 360 - points) / 359) * (right - left);
    const y = (value) => below - share(value) * (below - above);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.strokeStyle = colour("--line");
    context.fillStyle = colour("--muted");
    context.lineWidth = 1;
    for (const tick of ticks) {
      const at = Math.round(y(tick)) + 0.5;
      context.beginPath();
      context.moveTo(left, at);
      context.lineTo(right, at);
      context.stroke();
      context.fillText(curves[0].format(tick), right + 6, at);
    }
    const from = history.from - (360 - points) * history.interval_s;
    context.textBaseline = "alphabetic";
    for (const minutes of width > 420 ? [60, 45, 30, 15, 0] : [60, 30, 0]) {
      context.textAlign = minutes === 60 ? "left" : minutes === 0 ? "right" : "center";
      const text = clock(from + 3600 - minutes * 60).slice(0, 5);
      context.fillText(text, left + ((60 - minutes) / 60) * (right - left), height - 3);
    }
    context.textAlign = "left";
    curves.forEach((curve, c) => {
      context.strokeStyle = context.fillStyle = colour(curve.colour);
      context.lineWidth = 1.5;
      context.lineJoin = "round";
      let open = false;
      context.beginPath();
      columns[c].forEach((value, i) => {
        if (value === null) {
          open = false;
          return;
        }
        if (open) context.lineTo(x(i), y(value));
        else {
          context.moveTo(x(i), y(value));
          // A value between gaps would be no line.
          context.lineTo(x(i) + 0.1, y(value));
        }
        open = true;
      });
      context.lineCap = "round";
      context.stroke();
    });
    const newest = columns.map((column) => column.slice(-7, -1).findLast((value) => value !== null) ?? null);
    newest.forEach((value, c) => setText(values[c], curves[c].format(value)));
    const told = curves.map((curve, c) => `${curve.name} ${curve.format(newest[c])}`).join(", ");
    canvas.setAttribute("aria-label", `${title} over the last hour; now: ${told} ${unit}`);
  };
  return { node, draw };
}
