// Who the user of this page is to the server, and what it may do.

import { ApiFailure, json, key } from "./api.js";
import { ask as askUser } from "./dialogs.js";
import { h } from "./dom.js";
import { touch } from "./store.js";

export const access = { known: false, needsKey: false, client: null, scopes: [] };

const NAMES = {
  inference: "requests to models",
  read: "views",
  manage: "orders",
  lease: "leases",
  admin: "everything",
};

/** Why the user may not do what this scope permits; `undefined` if it may. */
export function whyNot(scope) {
  if (!access.known) return "the server has not said yet what this key permits";
  if (access.scopes.includes(scope)) return undefined;
  const whose = access.client ? `the key of '${access.client}'` : "this key";
  return `${whose} lacks the scope ${scope} (${NAMES[scope]})`;
}

/** Asks the server. Returns the failure if it refuses the key. */
export async function readAccess() {
  try {
    const answer = await json("GET", "/api/v1/access");
    Object.assign(access, {
      known: true,
      needsKey: answer.needs_key,
      client: answer.client,
      scopes: answer.scopes,
    });
    touch("access");
    return undefined;
  } catch (error) {
    if (!(error instanceof ApiFailure)) return undefined;
    Object.assign(access, { known: error.status === 401, needsKey: error.status === 401, client: null, scopes: [] });
    touch("access");
    return error;
  }
}

/** Asks the user for a key. Returns whether there is another one now. */
export async function askForKey(message) {
  const input = h("input", {
    type: "password",
    id: "key-input",
    autocomplete: "off",
    spellcheck: "false",
    value: key.get(),
    "aria-describedby": "key-note",
  });
  const said = await askUser({
    title: "API key",
    text: message,
    content: [
      h("label", { for: "key-input" }, "Key"),
      input,
      h(
        "p",
        { class: "note", id: "key-note" },
        "It is kept for this tab only and sent as Authorization. `model-boss keys create` makes one; on the " +
          "server's own machine none is needed while there are no keys.",
      ),
    ],
    confirm: "Use this key",
  });
  if (!said) return false;
  const before = key.get();
  key.set(input.value.trim());
  return key.get() !== before;
}
