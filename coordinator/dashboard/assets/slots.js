// Slots: what is loaded or loading, how far, and what each does.

import { move, orderButton, pin, unload } from "./actions.js";
import { emptyNote, h, keyed, row, setText, table } from "./dom.js";
import { bytes, fromNow, span, words } from "./format.js";
import { onChange, store } from "./store.js";

const HEADINGS = ["Model", "State", "Memory", "Requests", "Layers", "Leaves", ""];

function sum(parts) {
  return parts.reduce((all, [, held]) => all + held, 0);
}

function stateWords(slot) {
  const phases = { awaiting_lease: "reserving memory", spawning: "starting", weights: "reading weights" };
  if (slot.state === "loading") return phases[slot.phase] ?? "loading";
  if (slot.state === "ready") return slot.phase === "draining" ? "draining" : slot.running ? "answering" : "ready";
  return "stopping";
}

function leaving(slot) {
  if (slot.leaving) {
    const cause = slot.leaving;
    if (typeof cause === "string") return words(cause);
    const [[name, about]] = Object.entries(cause);
    return about.room_for ? `${words(name)} for ${about.room_for}` : words(name);
  }
  if (slot.pinned) return "never (pinned)";
  return slot.unload_at ? fromNow(slot.unload_at) : "when needed";
}

/** The streamed layers of a slot in words, from its worker's last report. */
function layers(slot) {
  if (!slot.streamed) return { text: "all stay", more: "" };
  const told = store.views.slots?.slots.find((other) => other.id === slot.id)?.layers;
  if (!told) return { text: "streamed", more: "" };
  const more =
    `${bytes(told.step_bytes)} a step, ${bytes(told.bytes_per_second)}/s from ${told.store}, ` +
    `${Math.round(told.overlap * 100)} % overlap`;
  return { text: `${told.streamed_layers} streamed, ${told.resident_layers} stay`, more };
}

function slotRow(first) {
  const { node, cells } = row(HEADINGS);
  const badge = h("span", { class: "badge" });
  const bar = h("progress", { max: "1", value: 0, "aria-label": `Progress of ${first.model}` });
  const progress = h("span", { class: "progress-text" });
  const load = h("div", { class: "progress" }, bar, progress);
  const more = h("small", { class: "muted block" });
  const where = h("small", { class: "muted block" });
  const held = h("span", { class: "number" });
  const layerText = h("span", {});
  const layerMore = h("small", { class: "muted block" });
  const device = h("small", { class: "muted block" });
  cells[0].append(h("strong", {}, first.model), where);
  cells[1].append(badge, load, more);
  cells[2].append(held, device);
  cells[4].append(layerText, layerMore);
  let now = first;
  const pinIt = orderButton({
    label: "Pin",
    name: `Pin or unpin ${first.model}`,
    run: () => pin(now.model, !now.pinned),
  });
  cells[6].append(
    orderButton({ label: "Move", name: `Move ${first.model}`, run: () => move(now.model) }),
    pinIt,
    orderButton({ label: "Unload", name: `Unload ${first.model}`, run: () => unload(now.model) }),
  );
  node.dataset.slot = first.model;

  const update = (slot) => {
    now = slot;
    setText(where, `${slot.category} · slot ${slot.id}${slot.moving ? " · second copy" : ""}`);
    setText(badge, stateWords(slot));
    badge.className = `badge ${slot.state === "ready" ? "good" : slot.state === "loading" ? "busy" : "warn"}`;
    const loading = slot.state === "loading";
    load.hidden = !loading;
    if (loading) {
      bar.value = slot.progress;
      setText(progress, `${bytes(Math.round(slot.progress * sum(slot.parts)))} of ${bytes(sum(slot.parts))}`);
    }
    setText(
      more,
      slot.load_ms === null ? "" : `loaded in ${span(slot.load_ms)}${slot.stale ? " · out of date" : ""}`,
    );
    setText(held, bytes(sum(slot.parts)));
    setText(device, slot.parts.map(([id, part]) => (slot.parts.length > 1 ? `${id} ${bytes(part)}` : id)).join(", "));
    setText(cells[3], `${slot.running} of ${slot.max_concurrent} · ${slot.completed} done`);
    const { text, more: about } = layers(slot);
    setText(layerText, text);
    setText(layerMore, about);
    setText(cells[5], leaving(slot));
    setText(pinIt, slot.pinned ? "Unpin" : "Pin");
  };
  return { node, update };
}

/** The table of slots as one element. */
export function slots(isShown) {
  const none = emptyNote("No model is loaded. The first request for one loads it.");
  const { node, body } = table("Slots", HEADINGS);
  const draw = () => {
    if (!isShown()) return;
    const all = [...store.slots.values()];
    none.hidden = all.length > 0;
    node.hidden = all.length === 0;
    keyed(body, all, (slot) => `${slot.id} ${slot.generation} ${slot.model}`, slotRow);
  };
  onChange(["slots", "shown", "tick"], draw);
  return h(
    "section",
    { "aria-labelledby": "slots-title" },
    h("h2", { id: "slots-title" }, "Slots"),
    h("div", { class: "panel flush" }, none, node),
  );
}
