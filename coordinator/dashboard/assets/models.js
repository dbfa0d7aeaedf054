// Every model of the catalog, with its state and its orders.

import { load, move, orderButton, pin, unload } from "./actions.js";
import { emptyNote, h, keyed, row, setText, table } from "./dom.js";
import { bytes } from "./format.js";
import { isShown } from "./router.js";
import { onChange, store } from "./store.js";

const HEADINGS = ["Model", "State", "Memory", "Requests", "Engine", ""];
/** The rows shown; the filter finds the others. */
const SHOWN = 300;

/** The models of the catalog with their state by the latest event. */
export function catalog() {
  const list = store.views.models?.data ?? [];
  return list
    .filter((model) => model.kind === "model")
    .map((model) => {
      const state = store.models.get(model.id);
      return { ...model, state: state?.status ?? model.status?.value ?? "unknown", failure: state?.failure };
    });
}

function modelRow(first) {
  const { node, cells } = row(HEADINGS);
  const aliases = h("small", { class: "muted block" });
  const badge = h("span", { class: "badge" });
  const failure = h("small", { class: "fault block" });
  cells[0].append(h("strong", {}, first.id), aliases);
  cells[1].append(badge, failure);
  let now = first;
  const named = (label, verb, run) => orderButton({ label, name: `${verb} ${first.id}`, run });
  const loadIt = named("Load", "Load", () => load(now.id));
  const moveIt = named("Move", "Move", () => move(now.id));
  const pinIt = named("Pin", "Pin or unpin", () => pin(now.id, !now.isPinned));
  const unloadIt = named("Unload", "Unload", () => unload(now.id));
  cells[5].append(loadIt, moveIt, pinIt, unloadIt);
  node.dataset.model = first.id;
  const update = (model) => {
    const slot = [...store.slots.values()].find((other) => other.model === model.id);
    const queue = store.queues.get(model.id);
    now = { ...model, isPinned: slot?.pinned ?? model.pinned };
    setText(aliases, [model.category, ...(model.aliases ?? []).map((alias) => `also ${alias}`)].join(" · "));
    const here = (model.state === "loaded" || model.state === "loading") && slot;
    const where = here ? ` on ${slot.parts.map(([device]) => device).join(", ")}` : "";
    setText(badge, `${model.state}${where}`);
    badge.className = `badge ${{ loaded: "good", loading: "busy", failed: "bad" }[model.state] ?? ""}`;
    setText(failure, model.failure ?? (model.downloaded === false ? "not downloaded" : ""));
    setText(cells[2], `${bytes(model.size)}${now.isPinned ? " · pinned" : ""}`);
    setText(cells[3], queue ? `${queue.running} run, ${queue.queued} wait` : "–");
    setText(cells[4], model.backend);
    setText(pinIt, now.isPinned ? "Unpin" : "Pin");
    moveIt.hidden = unloadIt.hidden = !here;
  };
  return { node, update };
}

/** The view. */
export function models() {
  const none = emptyNote("No model matches.");
  const filter = h("input", {
    id: "model-filter",
    type: "search",
    placeholder: "part of a name",
    autocomplete: "off",
  });
  const count = h("span", { class: "count", role: "status" });
  const { node, body } = table("Models", HEADINGS);
  const draw = () => {
    if (!isShown("models")) return;
    const wanted = filter.value.trim().toLowerCase();
    const all = catalog();
    const found = all.filter((model) =>
      [model.id, ...(model.aliases ?? [])].join(" ").toLowerCase().includes(wanted),
    );
    setText(count, found.length === all.length ? all.length : `${found.length} of ${all.length}`);
    none.hidden = found.length > 0;
    node.hidden = found.length === 0;
    keyed(body, found.slice(0, SHOWN), (model) => model.id, modelRow);
  };
  filter.addEventListener("input", draw);
  onChange(["models", "queues", "slots", "shown"], draw);
  const element = h(
    "div",
    { class: "view" },
    h(
      "section",
      { "aria-labelledby": "models-title" },
      h("h2", { id: "models-title" }, "Models ", count),
      h(
        "div",
        { class: "filters" },
        h("div", { class: "field grow" }, h("label", { for: "model-filter" }, "Filter"), filter),
      ),
      h("div", { class: "panel flush" }, none, node),
    ),
  );
  return { id: "models", title: "Models", element };
}
