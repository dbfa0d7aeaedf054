// The live stream of changes. `EventSource` cannot send a key, so the stream is read with fetch: after a break it goes
// on behind the last event, with growing pauses between tries.

import { ApiFailure, ask } from "./api.js";
import { events } from "./sse.js";
import { takeEvent } from "./store.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 15_000;
/** The silence after which a connection counts as broken: the server sends a comment at least every 15 s. */
const SILENCE = 40_000;
/** A hidden page leaves the stream after this time, since the server compares its state only while somebody reads. */
const HIDDEN_FOR = 30_000;

/** Follows the events. `report(state, detail)` is told: `live`, `connecting`, `down`, `paused`, `refused`. */
export function followEvents(report) {
  let last;
  let stop = new AbortController();
  let wake = () => {};
  let hiddenTimer;
  let paused = false;
  // Whether the last connection was answered: the pauses then begin anew.
  let served = false;

  const restart = () => {
    stop.abort();
    wake();
  };

  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiddenTimer);
    if (document.hidden) {
      hiddenTimer = setTimeout(() => {
        paused = true;
        stop.abort();
      }, HIDDEN_FOR);
    } else if (paused) {
      paused = false;
      restart();
    }
  });
  addEventListener("online", restart);

  const read = async () => {
    stop = new AbortController();
    const signal = stop.signal;
    const headers = last === undefined ? {} : { "Last-Event-ID": last };
    const answer = await ask("GET", "/api/v1/events", { signal, headers });
    let watchdog;
    const heard = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => stop.abort(), SILENCE);
    };
    heard();
    report("live");
    served = true;
    try {
      for await (const { comment, event, data, id } of events(answer.body)) {
        heard();
        if (comment !== undefined) continue;
        if (id !== undefined) last = id;
        if (event === "missed") {
          // What was missed may have changed anything: the stream begins again with the whole state.
          last = undefined;
          return;
        }
        takeEvent(event, JSON.parse(data));
      }
    } finally {
      clearTimeout(watchdog);
    }
  };

  const run = async () => {
    let pause = FIRST_PAUSE;
    for (;;) {
      report("connecting");
      let fault = "the server closed the stream";
      try {
        await read();
      } catch (error) {
        if (error instanceof ApiFailure && [401, 403].includes(error.status)) {
          last = undefined;
          report("refused", error);
          await new Promise((resolve) => (wake = resolve));
          continue;
        }
        if (error instanceof ApiFailure) fault = error.message;
        else if (error.name !== "AbortError") fault = "the server cannot be reached";
      }
      if (paused) {
        report("paused");
        await new Promise((resolve) => (wake = resolve));
        continue;
      }
      if (served) pause = FIRST_PAUSE;
      served = false;
      report("down", fault);
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, pause);
      });
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  };
  run();

  return {
    /** Connects anew, e.g. with another key. */
    restart: () => {
      last = undefined;
      restart();
    },
  };
}
