// Slow polling of what events do not carry: only for the view that is shown, and never while the page is hidden.

import { ApiFailure, json } from "./api.js";
import { setView } from "./store.js";

/** The pause after an answer, in multiples of its time: a long list is work for the server, too. */
const SHARE = 10;

const jobs = [];

/** Reads `path` every `seconds` into the view `name` while `wanted()` says so. */
export function poll({ name, path, seconds, wanted, take }) {
  const job = { due: 0, busy: false, seconds, wanted };
  job.read = async () => {
    if (job.busy) {
      job.again = true;
      return;
    }
    job.busy = true;
    const began = Date.now();
    try {
      const answer = await json("GET", path());
      (take ?? ((value) => setView(name, value)))(answer);
    } catch (error) {
      // The stream of events tells about a server that is away; a route that is refused is asked less often.
      if (error instanceof ApiFailure && error.status === 403) job.due = Date.now() + 30_000;
    } finally {
      job.busy = false;
      job.earliest = Date.now() + SHARE * (Date.now() - began);
      job.due = Math.max(job.due, Date.now() + seconds * 1000);
    }
    if (job.again) {
      job.again = false;
      soon(job);
    }
  };
  jobs.push(job);
  return { soon: () => soon(job) };
}

/** Reads soon, but at most every 300 ms, and less often what takes long. */
function soon(job) {
  job.due = Math.min(job.due, Math.max(Date.now() + 300, job.earliest ?? 0));
}

let allowed = () => true;

/** Starts polling; `mayPoll` is false while the server refuses the key or cannot be reached. */
export function startPolling(mayPoll) {
  allowed = mayPoll;
  setInterval(round, 200);
}

/** Reads everything anew that is wanted. */
export function pollAll() {
  for (const job of jobs) job.due = 0;
  round();
}

function round() {
  if (document.hidden || !allowed()) return;
  for (const job of jobs) if (!job.busy && job.due <= Date.now() && job.wanted()) job.read();
}
