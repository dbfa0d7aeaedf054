// Stacked bars over time: who held the memory of a device.

import { bytes, clock } from "./format.js";
import { colour, prepare } from "./chart.js";
import { h } from "./dom.js";

const HEIGHT = 92;
const POINTS = 360;
const HUES = 8;

/** The kinds of holders in the order in which they are stacked, from below. */
const ORDER = ["model", "lease", "leaking", "foreign"];

const given = new Map();

/** The number of a name's colour. It stays the same as long as the page is open. */
export function hue(kind, name) {
  if (kind !== "model") return kind;
  if (!given.has(name)) {
    if (given.size > 500) given.clear();
    given.set(name, given.size % HUES);
  }
  return given.get(name);
}

/** A holder's name for people. */
export function holderName(kind, name) {
  if (kind === "foreign") return "other programs";
  if (kind === "leaking") return "not given back yet";
  return kind === "lease" ? `lease: ${name}` : name;
}

/** The picture of one device, `{ node, draw(device, history) }`. */
export function deviceBars() {
  const canvas = h("canvas", { class: "bars", role: "img", "aria-label": "Memory over the last hour; not known yet" });
  const tip = h("div", { class: "tip", hidden: true });
  const node = h("div", { class: "canvas-box" }, canvas, tip);

  const draw = (device, history) => {
    if (!history || !node.clientWidth) return;
    const { context, width, height } = prepare(canvas, HEIGHT);
    const past = history.devices.find((other) => other.id === device.id);
    const holders = [...(past?.holders ?? [])].sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind));
    const count = width > 560 ? 120 : 60;
    const each = POINTS / count;
    const capacity = device.capacity ?? past?.capacity;
    const step = width / count;
    const bar = Math.max(1, step - (step > 4 ? 1 : 0.5));
    context.fillStyle = colour("--track");
    for (let b = 0; b < count; b += 1) context.fillRect(b * step, 0, bar, height);
    const told = [];
    if (capacity) {
      const length = history.tokens_per_s.length;
      for (let b = 0; b < count; b += 1) {
        // The last sample of the bar's points.
        const end = Math.min(length - 1, length - POINTS + Math.round((b + 1) * each) - 1);
        const begin = length - POINTS + Math.round(b * each);
        let at = -1;
        for (let i = end; i >= begin && i >= 0; i -= 1) {
          if (holders.some((holder) => holder.bytes[i] !== null)) {
            at = i;
            break;
          }
        }
        told[b] = { at, holders };
        if (at < 0) continue;
        let base = height;
        for (const holder of holders) {
          const part = ((holder.bytes[at] ?? 0) / capacity) * height;
          if (part <= 0) continue;
          context.fillStyle = colour(`--holder-${hue(holder.kind, holder.name)}`);
          context.fillRect(b * step, base - part, bar, part);
          base -= part;
        }
      }
    }
    node.told = { told, step, history };
    const now = holders
      .map((holder) => [holder, holder.bytes.at(-1) ?? holder.bytes.at(-2) ?? 0])
      .filter(([, held]) => held > 0);
    const text = now.map(([holder, held]) => `${holderName(holder.kind, holder.name)} ${bytes(held)}`).join(", ");
    canvas.setAttribute("aria-label", `Memory of ${device.id} over the last hour; now: ${text || "free"}`);
  };

  node.addEventListener("pointermove", (event) => {
    if (!node.told) return;
    const { told, step, history } = node.told;
    const bar = told[Math.min(told.length - 1, Math.max(0, Math.floor(event.offsetX / step)))];
    if (!bar || bar.at < 0) {
      tip.hidden = true;
      return;
    }
    const parts = bar.holders
      .filter((holder) => holder.bytes[bar.at] > 0)
      .map((holder) => h("div", {}, `${holderName(holder.kind, holder.name)}: ${bytes(holder.bytes[bar.at])}`));
    tip.replaceChildren(
      h("strong", {}, clock(history.from + bar.at * history.interval_s)),
      ...(parts.length ? parts : ["free"]),
    );
    tip.classList.toggle("to-left", event.offsetX > node.clientWidth / 2);
    tip.hidden = false;
  });
  node.addEventListener("pointerleave", () => (tip.hidden = true));
  return { node, draw };
}
