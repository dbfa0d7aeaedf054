// The last hour: read whole once, then point by point.

import { json } from "./api.js";
import { poll } from "./poll.js";
import { setView, store } from "./store.js";

const POINTS = 360;
/** An answer's tokens are spread over the past, so points of the last minutes may still change. */
const AGAIN = 60;

let rounds = 0;

/** Reads the history while `wanted()` says so. */
export function followHistory(wanted) {
  return poll({
    name: "history",
    path: () => {
      const known = store.views.history;
      rounds += 1;
      // A gap in the points, e.g. after a pause of the page, is filled by reading all.
      const behind = known ? Date.now() / 1000 - known.from - known.tokens_per_s.length * known.interval_s : Infinity;
      return behind > 400 ? "/api/v1/history" : `/api/v1/history?last=${rounds % 6 === 0 ? AGAIN : 3}`;
    },
    seconds: 10,
    wanted,
    take: (answer) => {
      const merged = merge(store.views.history, answer);
      if (merged) return setView("history", merged);
      return json("GET", "/api/v1/history").then((all) => setView("history", all));
    },
  });
}

/** The columns before, continued by newer points; `undefined` where they do not meet. */
export function merge(before, newer) {
  const length = newer.tokens_per_s.length;
  if (!before || length >= POINTS) return newer;
  const kept = newer.first - before.first;
  if (
    kept < 0 ||
    kept > before.tokens_per_s.length ||
    Math.abs(newer.from - before.from - kept * newer.interval_s) > 1
  ) {
    return undefined;
  }
  const drop = Math.max(0, kept + length - POINTS);
  const join = (old, fresh) => [...(old ?? new Array(kept).fill(null)).slice(drop, kept), ...fresh];
  const merged = { ...newer, first: before.first + drop, from: before.from + drop * newer.interval_s };
  for (const [name, column] of Object.entries(newer))
    if (Array.isArray(column) && name !== "devices") merged[name] = join(before[name], column);
  const ids = new Set([...before.devices, ...newer.devices].map((device) => device.id));
  merged.devices = [...ids].map((id) => {
    const [old, fresh] = [before, newer].map((history) => history.devices.find((device) => device.id === id));
    const names = new Map(
      [...(old?.holders ?? []), ...(fresh?.holders ?? [])].map((holder) => [`${holder.kind} ${holder.name}`, holder]),
    );
    const find = (device, holder) =>
      device?.holders.find((other) => other.kind === holder.kind && other.name === holder.name)?.bytes;
    const holders = [...names.values()].map((holder) => ({
      ...holder,
      bytes: join(find(old, holder), find(fresh, holder) ?? new Array(length).fill(fresh ? 0 : null)),
    }));
    const capacity = fresh?.capacity ?? old?.capacity ?? null;
    return { id, capacity, holders: holders.filter((holder) => holder.bytes.some((count) => count > 0)) };
  });
  return merged;
}
