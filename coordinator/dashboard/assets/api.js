// Requests to the API of the server that sent the page, with the key of its user.

const KEY = "model-boss-key";

/** An answer that is no success, in the server's words. */
export class ApiFailure extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered with status ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
  }
}

let inMemory = "";

/** The key of this tab. It leaves with the tab: other tabs and later visits do not have it. */
export const key = {
  get: () => {
    try {
      return sessionStorage.getItem(KEY) ?? "";
    } catch {
      // A browser without storage has the key until the page is left.
      return inMemory;
    }
  },
  set: (value) => {
    inMemory = value;
    try {
      if (value) sessionStorage.setItem(KEY, value);
      else sessionStorage.removeItem(KEY);
    } catch {
      // As above.
    }
  },
};

/** A request. Throws an `ApiFailure` for an answer with an error, and a `TypeError` where there is no answer. */
export async function ask(method, path, { body, signal, headers = {} } = {}) {
  const sent = { ...headers };
  if (key.get()) sent.Authorization = `Bearer ${key.get()}`;
  if (method !== "GET") sent["Content-Type"] = "application/json";
  const content = body === undefined ? undefined : JSON.stringify(body);
  const answer = await fetch(path, { method, headers: sent, body: content, signal, cache: "no-store" });
  if (answer.ok) return answer;
  const text = await answer.text();
  let error;
  try {
    error = JSON.parse(text).error;
  } catch {
    error = undefined;
  }
  throw new ApiFailure(answer.status, typeof error === "string" ? { message: error } : error);
}

/** A request whose answer is JSON. */
export async function json(method, path, options) {
  return (await ask(method, path, options)).json();
}

/** An id as a part of a path. */
export function idPath(id) {
  return encodeURIComponent(id);
}
