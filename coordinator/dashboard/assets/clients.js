// Clients: what each asks for and uses, and the limit that holds it back.

import { emptyNote, h, keyed, row, setText, table } from "./dom.js";
import { fromNow, number, span, words } from "./format.js";
import { isShown } from "./router.js";
import { onChange, store } from "./store.js";

const HEADINGS = ["Client", "In flight", "Requests", "Tokens", "Rate", "Held back by", "Last request"];

/** A reason to wait in a few words. */
function heldBack(reason) {
  if (!reason) return "nothing";
  if (reason.reason === "client_limit") return `${reason.running} of ${reason.limit} requests run`;
  if (reason.reason === "cooldown") return `a pause of ${span(reason.retry_in_ms)}`;
  return words(reason.reason);
}

function clientRow(first) {
  const { node, cells } = row(HEADINGS);
  const kind = h("small", { class: "muted block" });
  cells[0].append(h("strong", {}, first.id), kind);
  node.dataset.client = first.id;
  const update = (client) => {
    setText(kind, client.kind === "operator" ? "operator of this machine" : "");
    setText(cells[1], `${client.running} run, ${client.queued} wait`);
    setText(cells[2], `${number(client.requests)}${client.refused ? `, ${number(client.refused)} refused` : ""}`);
    setText(cells[3], number(client.tokens));
    setText(cells[4], `${client.requests_per_minute.toFixed(1)}/min`);
    setText(cells[5], heldBack(client.held_back));
    const last = client.recent.at(-1);
    setText(
      cells[6],
      last
        ? `${last.model}: ${words(last.outcome)} in ${span(last.took_ms)}, ${fromNow(last.ended)}`
        : fromNow(client.last_seen),
    );
  };
  return { node, update };
}

/** The view. */
export function clients() {
  const none = emptyNote("No client was seen yet.");
  const { node, body } = table("Clients", HEADINGS);
  const draw = () => {
    if (!isShown("clients")) return;
    const all = store.views.clients?.clients ?? [];
    none.hidden = all.length > 0;
    node.hidden = all.length === 0;
    keyed(body, all.slice(0, 300), (client) => `${client.kind} ${client.id}`, clientRow);
  };
  onChange(["clients", "shown"], draw);
  const element = h(
    "div",
    { class: "view" },
    h(
      "section",
      { "aria-labelledby": "clients-title" },
      h("h2", { id: "clients-title" }, "Clients"),
      h("div", { class: "panel flush" }, none, node),
    ),
  );
  return { id: "clients", title: "Clients", element };
}
