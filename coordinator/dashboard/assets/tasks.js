// Tasks, and the rungs of each ladder.

import { emptyNote, h, keyed, setText } from "./dom.js";
import { isShown } from "./router.js";
import { onChange, store } from "./store.js";

/** The state of a rung in words. */
function rungState(rung) {
  if (rung.removed) return rung.removed;
  if (!rung.known) return "not in the catalog";
  if (rung.cloud) return "cloud provider";
  const model = store.models.get(rung.model);
  return model ? model.status : "known";
}

function rungRow(first) {
  const state = h("span", { class: "badge" });
  const node = h("li", {}, h("span", { class: "rung" }, first.rung), h("strong", {}, first.model), state);
  const update = (rung) => {
    const text = rungState(rung);
    setText(state, text);
    const tone = { loaded: "good", loading: "busy" }[text] ?? "";
    state.className = `badge ${rung.removed || !rung.known ? "bad" : tone}`;
  };
  return { node, update };
}

function taskCard(first) {
  const about = h("p", { class: "muted" });
  const facts = h("dl", { class: "facts" });
  const ladder = h("ol", { class: "ladder" });
  const node = h(
    "article",
    { class: "panel", "data-task": first.name },
    h("h3", {}, `task:${first.name}`),
    about,
    ladder,
    facts,
  );
  const update = (task) => {
    setText(about, task.description ?? "");
    keyed(ladder, task.ladder, (rung) => rung.rung, rungRow);
    const all = [
      ["Priority", task.priority ?? "the client's"],
      ["Time", task.budget_s === null ? "no limit" : `${task.budget_s} s`],
      ["Patience", `${task.patience_s} s`],
      ["Fallback", task.fallback],
      ["Thinking", task.thinking ?? "as the model does"],
    ];
    if (task.local_only) all.push(["Clouds", "none"]);
    keyed(
      facts,
      all,
      ([name]) => name,
      ([name]) => {
        const value = h("dd");
        return { node: h("div", {}, h("dt", {}, name), value), update: ([, text]) => setText(value, text) };
      },
    );
  };
  return { node, update };
}

/** The view. */
export function tasks() {
  const none = emptyNote("There are no tasks. A file tasks.yaml names ladders of models.");
  const list = h("div", { class: "cards" });
  const problems = h("ul", { class: "problems" });
  const draw = () => {
    if (!isShown("tasks")) return;
    const view = store.views.tasks ?? { tasks: [], problems: [] };
    none.hidden = view.tasks.length > 0;
    keyed(list, view.tasks.slice(0, 500), (task) => task.name, taskCard);
    keyed(
      problems,
      (view.problems ?? []).slice(0, 50).map(String),
      (text) => text,
      (text) => ({ node: h("li", {}, text) }),
    );
  };
  onChange(["tasks", "models", "shown"], draw);
  const element = h(
    "div",
    { class: "view" },
    h(
      "section",
      { "aria-labelledby": "tasks-title" },
      h("h2", { id: "tasks-title" }, "Tasks and ladders"),
      none,
      problems,
      list,
    ),
  );
  return { id: "tasks", title: "Tasks", element };
}
