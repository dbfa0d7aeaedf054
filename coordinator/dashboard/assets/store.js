// The state of the coordinator as this page knows it, and who is told of changes. Changes are gathered and shown once
// per frame, so a burst of events costs one update.

/** The decisions kept; older ones are dropped. */
const DECISIONS = 500;
/** The ended moves kept until the next frame. */
const MOVES = 20;
/** The most entries of a kind. The server sends fewer; a fault of it must not fill the memory. */
const ENTRIES = 5000;

export const store = {
  slots: new Map(),
  queues: new Map(),
  models: new Map(),
  devices: new Map(),
  decisions: [],
  /** Answers of views that events do not carry, by name. */
  views: {},
  /** Moves that ended, until they are shown. */
  moves: [],
  /** The number of events received. */
  received: 0,
};

const listeners = new Map();
const changed = new Set();
let waiting = false;

/** Calls `listener` in the frame after a change of one of these kinds. */
export function onChange(kinds, listener) {
  for (const kind of kinds) listeners.set(kind, [...(listeners.get(kind) ?? []), listener]);
}

/** Records that something of this kind changed. */
export function touch(kind) {
  changed.add(kind);
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    const due = new Set([...changed].flatMap((kind) => listeners.get(kind) ?? []));
    changed.clear();
    for (const listener of due) listener();
  });
}

/** Sets the answer of a view. */
export function setView(name, answer) {
  store.views[name] = answer;
  touch(name);
}

const FIELDS = { slots: "slots", queues: "queue", models: "models", devices: "devices" };
const KINDS = { slot: "slots", queue: "queues", model: "models", device: "devices" };

/** Takes in one event of `/api/v1/events`. */
export function takeEvent(kind, value) {
  store.received += 1;
  if (kind === "state") {
    for (const [name, field] of Object.entries(FIELDS)) {
      store[name].clear();
      for (const thing of value[field].slice(0, ENTRIES)) store[name].set(String(thing.id), thing);
      touch(name);
    }
  } else if (kind === "decision") addDecisions([value]);
  else if (kind === "move") {
    store.moves = [...store.moves, value].slice(-MOVES);
    touch("moves");
  } else if (kind in KINDS) {
    const things = store[KINDS[kind]];
    if (value.gone) things.delete(String(value.id));
    else if (things.has(String(value.id)) || things.size < ENTRIES) things.set(String(value.id), value);
    touch(KINDS[kind]);
  }
}

/** Adds decisions that are newer than those known, and keeps the last ones. */
export function addDecisions(list) {
  const newest = store.decisions.at(-1)?.seq ?? 0;
  const fresh = list.filter((decision) => decision.seq > newest);
  if (!fresh.length) return;
  store.decisions.push(...fresh);
  if (store.decisions.length > DECISIONS) store.decisions.splice(0, store.decisions.length - DECISIONS);
  touch("decisions");
}

/** Forgets everything, e.g. when another key is used. */
export function forget() {
  for (const name of ["slots", "queues", "models", "devices"]) {
    store[name].clear();
    touch(name);
  }
  store.decisions = [];
  store.views = {};
  touch("decisions");
}
