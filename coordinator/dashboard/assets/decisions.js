// Decisions of the scheduler with their reasons, by filters.

import { emptyNote, h, keyed, setText } from "./dom.js";
import { clock, words } from "./format.js";
import { isShown } from "./router.js";
import { onChange, store } from "./store.js";

/** The rows shown at once. */
const SHOWN = 200;

const TONES = {
  load: "busy",
  ready: "good",
  evict: "warn",
  drain: "warn",
  crash: "bad",
  lease_refused: "bad",
  refuse: "bad",
  move_failed: "bad",
  revoke: "warn",
};

function decisionRow(first) {
  const reasons = first.reasons.map((reason) => h("li", {}, reason));
  const request = first.request === null ? "" : `request ${first.request}`;
  const node = h(
    "li",
    { class: "decision" },
    h("time", { datetime: new Date(first.at * 1000).toISOString() }, clock(first.at)),
    h("span", { class: `badge ${TONES[first.what] ?? ""}` }, words(first.what)),
    h("strong", {}, first.model),
    h("span", { class: "muted" }, request),
    h("ul", {}, reasons),
  );
  return { node };
}

/** The view. */
export function decisions() {
  const kind = h("select", { id: "decision-kind" }, h("option", { value: "" }, "all kinds"));
  const model = h("input", {
    id: "decision-model",
    type: "search",
    placeholder: "part of a name or a reason",
    autocomplete: "off",
  });
  const request = h("input", { id: "decision-request", type: "search", inputmode: "numeric", placeholder: "number" });
  const none = emptyNote("No decision matches.");
  const list = h("ol", { class: "decisions panel flush", reversed: true });
  const count = h("span", { class: "count", role: "status" });
  const kinds = new Set();

  const matches = (decision) => {
    const text = model.value.trim().toLowerCase();
    const wanted = request.value.trim();
    return (
      (!kind.value || decision.what === kind.value) &&
      (!wanted || String(decision.request) === wanted) &&
      (!text ||
        decision.model.toLowerCase().includes(text) ||
        decision.reasons.join("\n").toLowerCase().includes(text))
    );
  };
  const draw = () => {
    if (!isShown("decisions")) return;
    for (const { what } of store.decisions) {
      if (kinds.has(what)) continue;
      kinds.add(what);
      kind.append(h("option", { value: what }, words(what)));
    }
    const found = store.decisions.filter(matches).reverse();
    none.hidden = found.length > 0;
    list.hidden = found.length === 0;
    setText(count, `${found.length} of ${store.decisions.length}`);
    keyed(list, found.slice(0, SHOWN), (decision) => decision.seq, decisionRow);
  };
  for (const input of [kind, model, request]) input.addEventListener("input", draw);
  onChange(["decisions", "shown"], draw);
  const filters = h(
    "div",
    { class: "filters" },
    h("div", { class: "field" }, h("label", { for: "decision-kind" }, "Kind"), kind),
    h("div", { class: "field grow" }, h("label", { for: "decision-model" }, "Model or reason"), model),
    h("div", { class: "field" }, h("label", { for: "decision-request" }, "Request"), request),
  );
  const element = h(
    "div",
    { class: "view" },
    h(
      "section",
      { "aria-labelledby": "decisions-title" },
      h("h2", { id: "decisions-title" }, "Decisions ", count),
      filters,
      none,
      list,
    ),
  );
  return { id: "decisions", title: "Decisions", element };
}
