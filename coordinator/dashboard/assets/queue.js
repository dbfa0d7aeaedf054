// The queue: every waiting request with its reason, and every running one.

import { cancelRequest, orderButton } from "./actions.js";
import { emptyNote, h, keyed, row, setText, table } from "./dom.js";
import { span } from "./format.js";
import { onChange, store } from "./store.js";

/** The rows shown: a table of thousands helps nobody. */
export const SHOWN = 200;

const WAITING = ["Place", "Model", "Client", "Priority", "Waits", "Reason", ""];
const RUNNING = ["Request", "Model", "Client", "Priority", "Waited", "Runs for", ""];

function cancelCell(first) {
  return orderButton({ label: "Cancel", name: `Cancel request ${first.id}`, run: () => cancelRequest(first) });
}

function waitingRow(first) {
  const { node, cells } = row(WAITING);
  cells[1].append(h("strong", {}, first.model));
  cells[6].append(cancelCell(first));
  cells[5].className = "reason";
  node.dataset.request = first.id;
  const update = (request) => {
    setText(cells[0], request.position);
    setText(cells[2], request.client);
    const aged = request.effective_priority !== request.priority ? ` (now ${request.effective_priority})` : "";
    setText(cells[3], `${request.priority}${aged}${request.purpose === "load" ? " · load" : ""}`);
    setText(cells[4], span(request.waited_ms));
    setText(cells[5], request.message);
  };
  return { node, update };
}

function runningRow(first) {
  const { node, cells } = row(RUNNING);
  cells[1].append(h("strong", {}, first.model));
  cells[6].append(cancelCell(first));
  node.dataset.request = first.id;
  const update = (request) => {
    setText(cells[0], request.id);
    setText(cells[2], request.client);
    setText(cells[3], request.priority);
    setText(cells[4], span(request.waited_ms));
    setText(cells[5], span(request.ran_ms));
  };
  return { node, update };
}

function part({ id, title, empty, headings, make, list, total, isShown }) {
  const none = emptyNote(empty);
  const count = h("span", { class: "count" });
  const more = h("p", { class: "note inset", hidden: true });
  const { node, body } = table(title, headings);
  const draw = () => {
    if (!isShown()) return;
    const all = list();
    // The server may have sent the first of more.
    const number = total?.() ?? all.length;
    setText(count, number || "");
    none.hidden = all.length > 0;
    node.hidden = all.length === 0;
    keyed(body, all.slice(0, SHOWN), (request) => request.id, make);
    more.hidden = number <= SHOWN;
    setText(more, `and ${number - SHOWN} more`);
  };
  onChange(["queue", "shown"], draw);
  return h(
    "section",
    { "aria-labelledby": id },
    h("h2", { id }, title, " ", count),
    h("div", { class: "panel flush" }, none, node, more),
  );
}

/** The waiting requests as one element. */
export function waiting(isShown) {
  return part({
    id: "waiting-title",
    title: "Queue",
    empty: "No request waits.",
    headings: WAITING,
    make: waitingRow,
    list: () => store.views.queue?.queue ?? [],
    total: () => store.views.queue?.total,
    isShown,
  });
}

/** The running requests as one element. */
export function running(isShown) {
  return part({
    id: "running-title",
    title: "Running",
    empty: "No request runs.",
    headings: RUNNING,
    make: runningRow,
    list: () => store.views.queue?.running ?? [],
    isShown,
  });
}
