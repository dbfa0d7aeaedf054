// Leases of memory and the requests that wait for one.

import { emptyNote, h, keyed, row, setText, table } from "./dom.js";
import { bytes, span, words } from "./format.js";
import { isShown } from "./router.js";
import { onChange, store } from "./store.js";

const HELD = ["Lease", "Holder", "Memory", "Priority", "State", "Renewed within"];
const WAITING = ["Place", "Request", "Memory", "Priority"];

function memory(parts) {
  return parts.map((part) => `${bytes(part.bytes ?? part.memory)} on ${part.device}`).join(", ");
}

function leaseRow(first) {
  const { node, cells } = row(HELD);
  const badge = h("span", { class: "badge" });
  const about = h("small", { class: "muted block" });
  cells[0].append(h("strong", {}, first.label), h("small", { class: "muted block mono" }, first.id));
  cells[4].append(badge, about);
  node.dataset.lease = first.label;
  const update = (lease) => {
    setText(cells[1], `${lease.owner.kind ?? "job"}, pid ${lease.owner.pid}`);
    setText(cells[2], memory(lease.parts));
    setText(cells[3], `${lease.priority}${lease.preemptible ? " · may be preempted" : ""}`);
    setText(badge, lease.in_default ? "in default" : lease.revoke ? "revoked" : words(lease.state));
    const tone = lease.in_default ? "bad" : lease.revoke ? "warn" : lease.state === "active" ? "good" : "";
    badge.className = `badge ${tone}`;
    setText(about, lease.revoke ? `for ${lease.revoke.by ?? "a more important request"}` : "");
    setText(cells[5], span(lease.expires_in_ms));
  };
  return { node, update };
}

function waiterRow(first) {
  const { node, cells } = row(WAITING);
  cells[1].append(h("strong", {}, first.label), h("small", { class: "muted block mono" }, first.request_id));
  node.dataset.waiter = first.label;
  const update = (waiter) => {
    setText(cells[0], waiter.position);
    setText(
      cells[2],
      waiter.parts
        ? memory(waiter.parts)
        : waiter.any
          ? `${bytes(waiter.any.memory)} on each of ${waiter.any.count ?? 1} devices`
          : "unknown",
    );
    setText(cells[3], waiter.priority);
  };
  return { node, update };
}

/** The view. */
export function leases() {
  const noLease = emptyNote("Nobody holds a lease.");
  const noWaiter = emptyNote("Nobody waits for memory.");
  const held = table("Leases", HELD);
  const queued = table("Waiters", WAITING);
  const draw = () => {
    if (!isShown("leases")) return;
    const view = store.views.leases ?? { leases: [], waiters: [] };
    noLease.hidden = view.leases.length > 0;
    held.node.hidden = view.leases.length === 0;
    keyed(held.body, view.leases.slice(0, 500), (lease) => lease.id, leaseRow);
    noWaiter.hidden = view.waiters.length > 0;
    queued.node.hidden = view.waiters.length === 0;
    keyed(queued.body, view.waiters.slice(0, 500), (waiter) => waiter.request_id, waiterRow);
  };
  onChange(["leases", "shown"], draw);
  const element = h(
    "div",
    { class: "view" },
    h(
      "section",
      { "aria-labelledby": "leases-title" },
      h("h2", { id: "leases-title" }, "Leases"),
      h("div", { class: "panel flush" }, noLease, held.node),
    ),
    h(
      "section",
      { "aria-labelledby": "waiters-title" },
      h("h2", { id: "waiters-title" }, "Waiters"),
      h("div", { class: "panel flush" }, noWaiter, queued.node),
    ),
  );
  return { id: "leases", title: "Leases", element };
}
