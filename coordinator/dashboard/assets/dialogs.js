// Questions to the user, and short messages.

import { h } from "./dom.js";

/** Messages shown at once; earlier ones leave. */
const TOASTS = 4;

/**
 * Asks in a dialog. Resolves to true when confirmed, else to false. `check`, if given, returns a text that says why the
 * input cannot be used, and is asked before the dialog closes.
 */
export function ask({ title, text, content = [], confirm = "Confirm", danger = false, check }) {
  return new Promise((resolve) => {
    const fault = h("p", { class: "fault", role: "alert", hidden: true });
    const finish = (answer) => {
      dialog.close();
      dialog.remove();
      back?.focus?.();
      resolve(answer);
    };
    const back = document.activeElement;
    const confirmed = () => {
      const why = check?.();
      if (!why) return finish(true);
      fault.textContent = why;
      fault.hidden = false;
    };
    const form = h(
      "form",
      { novalidate: true, on: { submit: (event) => (event.preventDefault(), confirmed()) } },
      h("h2", { id: "dialog-title" }, title),
      text && h("p", { class: "dialog-text" }, text),
      content,
      fault,
      h(
        "div",
        { class: "dialog-buttons" },
        h("button", { type: "button", class: "plain", on: { click: () => finish(false) } }, "Cancel"),
        h("button", { type: "submit", class: danger ? "danger" : "primary" }, confirm),
      ),
    );
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
    dialog.addEventListener("cancel", (event) => (event.preventDefault(), finish(false)));
    document.body.append(dialog);
    dialog.showModal();
    const first = form.querySelector("input, select, textarea") ?? form.querySelector("button");
    first.focus();
  });
}

/** Shows a message for some seconds. Faults stay longer. */
export function toast(text, kind = "ok") {
  const list = document.getElementById("toasts");
  const node = h("div", { class: `toast ${kind}` }, h("span", {}, text));
  node.append(
    h("button", { class: "plain", "aria-label": "Close this message", on: { click: () => node.remove() } }, "×"),
  );
  list.append(node);
  while (list.children.length > TOASTS) list.firstChild.remove();
  setTimeout(() => node.remove(), kind === "fault" ? 12_000 : 5_000);
}
