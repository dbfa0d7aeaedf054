// Devices: who holds the memory now and over the last hour, and the orders to free and to open one.

import { free, open, orderButton } from "./actions.js";
import { deviceBars, holderName, hue } from "./bars.js";
import { emptyNote, h, keyed, setText } from "./dom.js";
import { bytes } from "./format.js";
import { onChange, store } from "./store.js";

/** Who holds memory of a device now. */
function holdersOf(device) {
  const models = new Map();
  for (const slot of store.slots.values()) {
    for (const [id, held] of slot.parts)
      if (id === device.id) models.set(slot.model, (models.get(slot.model) ?? 0) + held);
  }
  const all = [...models].map(([name, held]) => ({ kind: "model", name, held }));
  for (const lease of device.leases)
    if (lease.lease) all.push({ kind: "lease", name: lease.label, held: lease.bytes });
  if (device.leaking) all.push({ kind: "leaking", name: "", held: device.leaking });
  if (device.foreign) all.push({ kind: "foreign", name: "", held: device.foreign });
  return all.filter((holder) => holder.held > 0);
}

function card(first) {
  const name = h("span", { class: "muted" });
  const state = h("span", { class: "badge warn", hidden: true });
  const sums = h("span", { class: "sums" });
  const legend = h("ul", { class: "holders" });
  const bars = deviceBars();
  const note = h("p", { class: "note", hidden: true });
  const freeIt = orderButton({ label: "Free", name: `Free ${first.id}`, run: () => free(first.id) });
  const openIt = orderButton({ label: "Open again", name: `Open ${first.id} again`, run: () => open(first.id) });
  const node = h(
    "article",
    { class: "panel device", "data-device": first.id },
    h("header", {}, h("h3", {}, first.id), name, state, h("span", { class: "spring" }), sums, freeIt, openIt),
    bars.node,
    legend,
    note,
  );

  const update = (device) => {
    const about = store.views.devices?.devices.find((other) => other.id === device.id);
    setText(name, about?.name ?? "");
    const held = (device.capacity ?? 0) - (device.free ?? 0);
    setText(
      sums,
      device.capacity === null ? "memory unknown" : `${bytes(device.free)} free of ${bytes(device.capacity)}`,
    );
    sums.title = `in use or kept free: ${bytes(held)}; kept free always: ${bytes(device.reserve)}`;
    const word = device.lost ? "lost" : device.closed ? "freed" : device.making_room_for ? "making room" : "";
    setText(state, word);
    state.hidden = !word;
    freeIt.hidden = device.closed;
    openIt.hidden = !device.closed;
    const why = about?.problem ?? (device.making_room_for ? `Room is being made for ${device.making_room_for}.` : "");
    setText(note, why);
    note.hidden = !why;
    keyed(legend, holdersOf(device), (holder) => `${holder.kind} ${holder.name}`, holderRow);
    bars.draw(device, store.views.history);
  };
  return { node, update };
}

function holderRow(first) {
  const held = h("span", { class: "number" });
  const label = holderName(first.kind, first.name);
  const node = h(
    "li",
    {},
    h("i", { class: `swatch holder-${hue(first.kind, first.name)}` }),
    h("span", { class: "name" }, label),
    held,
  );
  return { node, update: (holder) => setText(held, bytes(holder.held)) };
}

/** The cards of all devices as one element. */
export function devices(isShown) {
  const none = emptyNote("No device was observed yet.");
  const list = h("div", { class: "devices" });
  const draw = () => {
    if (!isShown()) return;
    none.hidden = store.devices.size > 0;
    // GPUs first: they are what requests wait for.
    const all = [...store.devices.values()].sort((a, b) => (a.id === "cpu") - (b.id === "cpu"));
    keyed(list, all, (device) => device.id, card);
  };
  onChange(["devices", "slots", "history", "theme", "size", "shown"], draw);
  return h(
    "section",
    { "aria-labelledby": "devices-title" },
    h("h2", { id: "devices-title" }, "Devices"),
    none,
    list,
  );
}
