// What would happen if: a request or a load, planned without being done.

import { whyNot } from "./access.js";
import { json } from "./api.js";
import { holderName, hue } from "./bars.js";
import { h, setAttribute } from "./dom.js";
import { bytes, span, words } from "./format.js";
import { catalog } from "./models.js";
import { onChange, store } from "./store.js";

function field(label, id, input) {
  input.id = id;
  return h("div", { class: "field" }, h("label", { for: id }, label), input);
}

function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

/** The bytes of a part beside what its device holds for other models now. */
function partBar([device, held], planned) {
  const about = store.devices.get(device);
  const capacity = about?.capacity || held;
  const bar = h("div", { class: "part-bar" });
  const add = (className, count, title) => {
    const piece = h("span", { class: className, title });
    piece.style.width = `${Math.min(100, (count / capacity) * 100)}%`;
    bar.append(piece);
  };
  for (const slot of store.slots.values()) {
    // A loaded model is the plan's own part.
    for (const [id, count] of slot.model === planned ? [] : slot.parts) {
      if (id === device)
        add(`holder-${hue("model", slot.model)}`, count, `${holderName("model", slot.model)} ${bytes(count)}`);
    }
  }
  add("planned", held, `planned ${bytes(held)}`);
  return h("li", {}, h("span", {}, `${bytes(held)} on ${device}`), bar);
}

function answer(plan) {
  const evictions = plan.evictions ?? [];
  const asks = plan.asks ?? [];
  return [
    h(
      "p",
      { class: "verdict" },
      h("span", { class: `badge ${plan.step === "wait" ? "warn" : "good"}` }, words(plan.step)),
      " ",
      h("strong", {}, plan.model),
      ` would be ${plan.step === "wait" ? "waiting: " : ""}${plan.message}`,
    ),
    h(
      "dl",
      { class: "facts" },
      fact("Rung", `${plan.rung} (${words(plan.rung_reason)})`),
      fact("Memory", `${bytes(plan.size)} by ${words(plan.size_rule)}`),
      fact("Priority", plan.priority),
      fact("Before it", plan.before_it),
      fact("Load", plan.expected_load_s === null ? "none, or not measured" : span(plan.expected_load_s * 1000)),
      fact("Answer", plan.expected_answer_s === null ? "not measured" : span(plan.expected_answer_s * 1000)),
      plan.layers && fact("Layers", plan.layers.streamed ? `streamed: ${plan.layers.why}` : "all stay"),
    ),
    plan.parts?.length
      ? h(
          "ul",
          { class: "parts" },
          plan.parts.map((part) => partBar(part, plan.model)),
        )
      : "",
    evictions.length ? h("h3", {}, "Evicted") : "",
    h(
      "ul",
      { class: "plain-list" },
      evictions.map((one) =>
        h("li", {}, h("strong", {}, one.model), one.drains ? " ends its requests first: " : ": ", one.why),
      ),
      asks.map((lease) => h("li", {}, h("strong", {}, lease.label), ` makes way: ${bytes(lease.bytes)}`)),
    ),
    plan.ladder.length ? h("h3", {}, "Ladder") : "",
    h(
      "ol",
      { class: "ladder" },
      plan.ladder.map((rung) =>
        h(
          "li",
          {},
          h("span", { class: "rung" }, rung.rung),
          h("strong", {}, rung.model),
          h("span", { class: `badge ${rung.usable ? "good" : "bad"}` }, rung.state),
          rung.expected_s === null ? "" : h("span", { class: "muted" }, `begins in ${span(rung.expected_s * 1000)}`),
        ),
      ),
    ),
  ];
}

/** The view. */
export function plan() {
  const names = h("datalist", { id: "plan-names" });
  const model = h("input", {
    list: "plan-names",
    required: true,
    autocomplete: "off",
    placeholder: "a model, or task:NAME",
  });
  const context = h("input", { type: "number", min: "1", inputmode: "numeric" });
  const device = h("select", {}, h("option", { value: "" }, "any"));
  const priority = h("input", { type: "number", min: "0", max: "9", inputmode: "numeric" });
  const client = h("input", { autocomplete: "off" });
  const residency = h(
    "select",
    {},
    ["", "auto", "resident", "stream"].map((value) => h("option", { value }, value || "as its manifest says")),
  );
  const send = h("button", { type: "submit", class: "primary" }, "Plan");
  const result = h("div", { class: "panel plan-answer", role: "status", hidden: true });

  const ask = async (event) => {
    event.preventDefault();
    const why = whyNot("manage");
    if (why) return show([h("p", { class: "fault" }, `Not permitted: ${why}.`)]);
    const body = {};
    const name = model.value.trim();
    if (name.startsWith("task:")) body.task = name.slice(5);
    else body.model = name;
    if (context.value) body.ctx_size = Number(context.value);
    if (device.value) body.device = device.value;
    if (priority.value) body.priority = Number(priority.value);
    if (client.value.trim()) body.client = client.value.trim();
    if (residency.value) body.residency = residency.value;
    try {
      show(answer(await json("POST", "/api/v1/plan", { body })));
    } catch (error) {
      show([h("p", { class: "fault" }, error.message)]);
    }
  };
  const show = (nodes) => {
    result.replaceChildren(...nodes.filter((node) => node !== ""));
    result.hidden = false;
  };
  const form = h(
    "form",
    { class: "panel form-grid", on: { submit: ask } },
    field("Model or task", "plan-model", model),
    field("Context in tokens", "plan-context", context),
    field("Device", "plan-device", device),
    field("Priority (0 first, 9 last)", "plan-priority", priority),
    field("Client", "plan-client", client),
    field("Layers", "plan-residency", residency),
    names,
    send,
  );
  onChange(["models", "tasks", "devices", "shown", "access"], () => {
    const tasks = (store.views.tasks?.tasks ?? []).map((task) => `task:${task.name}`);
    const all = [...catalog().map((one) => one.id), ...tasks].slice(0, 500);
    if (all.join("\n") !== names.dataset.all) {
      names.dataset.all = all.join("\n");
      names.replaceChildren(...all.map((value) => h("option", { value })));
    }
    for (const id of store.devices.keys()) {
      if (![...device.options].some((option) => option.value === id)) device.append(h("option", { value: id }, id));
    }
    const why = whyNot("manage");
    setAttribute(send, "aria-disabled", why ? "true" : null);
    setAttribute(send, "title", why ? `Not permitted: ${why}` : null);
  });
  const element = h(
    "div",
    { class: "view" },
    h(
      "section",
      { "aria-labelledby": "plan-title" },
      h("h2", { id: "plan-title" }, "What would happen if"),
      h("p", { class: "lead" }, "The scheduler plans a request or a load as it would now. Nothing is done."),
      form,
      result,
    ),
  );
  return { id: "plan", title: "Plan", element };
}
