// The start of the page: views, live events, slow polling, key and theme.

import { access, askForKey, readAccess } from "./access.js";
import { forgetColours } from "./chart.js";
import { chat } from "./chat.js";
import { clients } from "./clients.js";
import { decisions } from "./decisions.js";
import { toast } from "./dialogs.js";
import { setAttribute, setText } from "./dom.js";
import { followEvents } from "./events.js";
import { followHistory } from "./history.js";
import { leases } from "./leases.js";
import { models } from "./models.js";
import { overview } from "./overview.js";
import { plan } from "./plan.js";
import { poll, pollAll, startPolling } from "./poll.js";
import { SHOWN } from "./queue.js";
import { addView, isShown, startRouting } from "./router.js";
import { addDecisions, forget, onChange, store, touch } from "./store.js";
import { tasks } from "./tasks.js";
import { followTheme } from "./theme.js";

const byId = (id) => document.getElementById(id);

for (const view of [overview(), models(), decisions(), leases(), tasks(), clients(), chat(), plan()]) {
  addView(view);
  view.element.id = `view-${view.id}`;
  view.element.hidden = true;
  byId("main").append(view.element);
}
byId("starting").remove();

// What the stream says about itself stands in the head of the page, and below it while nothing is live.
let state = "connecting";
const SAYS = {
  live: "live",
  connecting: "connecting",
  down: "not connected",
  paused: "paused",
  refused: "key needed",
};
function report(next, detail) {
  state = next === "connecting" && state === "down" ? "down" : next;
  const connection = byId("connection");
  setText(connection.lastElementChild, SAYS[state]);
  setAttribute(connection, "data-state", state);
  const told = {
    down: `Not connected: ${detail}. What is shown is from before; the page tries again by itself.`,
    refused:
      detail?.status === 403
        ? `Views need a key with the scope read: ${detail?.message}.`
        : `${detail?.message ?? "The server needs an API key"}.`,
  }[next];
  const notice = byId("notice");
  if (told) setText(notice.firstElementChild, told);
  if (next !== "connecting") notice.hidden = !told;
  byId("notice-key").hidden = next !== "refused";
  document.body.classList.toggle("stale", state === "down");
  if (next === "live") {
    readAccess();
    pollAll();
  }
}

const stream = followEvents(report);

async function enterKey(message) {
  if (!(await askForKey(message))) return;
  forget();
  access.known = false;
  await readAccess();
  stream.restart();
  pollAll();
}
byId("key").addEventListener("click", () => enterKey("The requests of this page are sent with it."));
byId("notice-key").addEventListener("click", () => enterKey("This server needs a key."));
onChange(["access"], () => {
  const who = access.client ?? (access.needsKey && access.scopes.length ? "a key" : "");
  setText(byId("key"), who ? `Key: ${who}` : "Key");
  const lacks = ["read", "inference", "manage"].filter(
    (scope) => access.known && access.scopes.length && !access.scopes.includes(scope),
  );
  const limits = byId("limits");
  limits.hidden = lacks.length === 0;
  setText(limits, `The key of '${access.client}' lacks: ${lacks.join(", ")}. What needs it is disabled.`);
});
readAccess().then((failure) => {
  if (failure?.status === 401) enterKey(failure.message);
});

// The order to move is answered at once, and its end is an event.
onChange(["moves"], () => {
  for (const { model, device, outcome, error } of store.moves.splice(0)) {
    if (outcome === "done") toast(`${model} serves from ${device}`);
    else toast(`${model} did not move to ${device}: ${error?.message ?? outcome}`, "fault");
  }
});

// Views that events do not carry.
const on =
  (...ids) =>
  () =>
    ids.some(isShown) && access.scopes.includes("read");
const slow = (name, path, seconds, wanted) => poll({ name, path: () => path, seconds, wanted });
const queue = slow("queue", `/api/v1/queue?limit=${SHOWN}`, 3, on("overview"));
slow("models", "/v1/models", 15, () => access.scopes.includes("read") || access.scopes.includes("inference"));
slow("devices", "/api/v1/devices", 15, on("overview"));
slow("leases", "/api/v1/leases", 4, on("leases"));
slow("clients", "/api/v1/clients", 4, on("clients"));
slow("tasks", "/api/v1/tasks", 30, on("tasks", "chat", "plan"));
slow("slots", "/api/v1/slots", 3, () => on("overview")() && [...store.slots.values()].some((slot) => slot.streamed));
poll({
  name: "decisions",
  path: () => "/api/v1/decisions",
  seconds: 60,
  wanted: on("decisions"),
  take: (answer) => addDecisions(answer.decisions),
});
const history = followHistory(on("overview"));
onChange(["queues", "slots"], () => queue.soon());

followTheme(byId("theme"), () => {
  forgetColours();
  touch("theme");
});
addEventListener("resize", () => touch("size"));
setInterval(() => document.hidden || touch("tick"), 1000);
startRouting(byId("nav"), "overview", () => {
  touch("shown");
  pollAll();
});
startPolling(() => state === "live" || state === "refused");
document.addEventListener("visibilitychange", () => document.hidden || (history.soon(), pollAll()));

// Tests and people with a console see what the page knows.
globalThis.modelBoss = { store, access, state: () => state };
