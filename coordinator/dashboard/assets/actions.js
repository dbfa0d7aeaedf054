// Orders: buttons that ask before they act, and say why where the key does not permit them.

import { whyNot } from "./access.js";
import { idPath, json } from "./api.js";
import { ask, toast } from "./dialogs.js";
import { h, setAttribute } from "./dom.js";
import { onChange, store } from "./store.js";

/**
 * A button for an order. `scope` is the scope that the order needs; without it the button stays visible, says why, and
 * does nothing.
 */
export function orderButton({ label, name, scope = "manage", run, className = "" }) {
  const node = h("button", { type: "button", class: className, "aria-label": name ?? label }, label);
  node.addEventListener("click", () => {
    const why = whyNot(scope);
    if (why) toast(`Not permitted: ${why}.`, "fault");
    else run();
  });
  const update = () => {
    const why = whyNot(scope);
    setAttribute(node, "aria-disabled", why ? "true" : null);
    setAttribute(node, "title", why ? `Not permitted: ${why}` : null);
  };
  node.refresh = update;
  update();
  return node;
}

onChange(["access"], () => {
  for (const node of document.querySelectorAll("button")) node.refresh?.();
});

/** Sends an order and says what came of it. Returns whether it was accepted. */
async function order(method, path, body, done) {
  try {
    await json(method, path, { body });
    toast(done);
    return true;
  } catch (error) {
    toast(error.message, "fault");
    return false;
  }
}

function field(label, id, input, note) {
  input.id = id;
  return h("div", { class: "field" }, h("label", { for: id }, label), input, note && h("p", { class: "note" }, note));
}

function deviceSelect(first) {
  const names = [...store.devices.keys()];
  const options = first ? [h("option", { value: "" }, first)] : [];
  return h(
    "select",
    {},
    options,
    names.map((name) => h("option", { value: name }, name)),
  );
}

/** Loads a model, with options. */
export async function load(model) {
  const device = deviceSelect("as its manifest says");
  const context = h("input", { type: "number", min: "1", inputmode: "numeric", placeholder: "as its manifest says" });
  const residency = h(
    "select",
    {},
    [
      ["", "as its manifest says"],
      ["auto", "auto"],
      ["resident", "resident"],
      ["stream", "stream"],
    ].map(([value, text]) => h("option", { value }, text)),
  );
  const said = await ask({
    title: `Load ${model}`,
    text: "The model takes its place in the queue. Others may be evicted for it.",
    content: [
      field("Device", "load-device", device),
      field("Context in tokens", "load-context", context),
      field("Layers", "load-residency", residency),
    ],
    confirm: "Load",
    check: () => (context.value && !(Number(context.value) >= 1) ? "The context must be at least 1 token." : ""),
  });
  if (!said) return;
  const body = { model_name: model, wait: false };
  if (device.value) body.device = device.value;
  if (context.value) body.ctx_size = Number(context.value);
  if (residency.value) body.residency = residency.value;
  const { wait: _, model_name: name, ...options } = body;
  try {
    // The load itself is answered before it is judged, so that it lasts when the page is closed. A plan tells its fate.
    const plan = await json("POST", "/api/v1/plan", { body: { model: name, ...options } });
    await json("POST", "/api/v1/load", { body });
    toast(`${model}: ${plan.message}`);
  } catch (error) {
    toast(error.message, "fault");
  }
}

/** Unloads a model. */
export async function unload(model) {
  const text = "Its running requests end first. The next request for it loads it again.";
  if (!(await ask({ title: `Unload ${model}?`, text, confirm: "Unload", danger: true }))) return;
  await order("POST", "/api/v1/unload", { model_name: model }, `${model} is unloaded`);
}

/** Moves a model to another device. */
export async function move(model) {
  const device = deviceSelect();
  const evict = h("input", { type: "checkbox" });
  const said = await ask({
    title: `Move ${model}`,
    text: "A second copy is loaded there and takes over; the first then leaves. Requests are answered all the time.",
    content: [
      field("To device", "move-device", device),
      h("label", { class: "check" }, evict, "Other models may be evicted for it"),
    ],
    confirm: "Move",
  });
  if (!said) return;
  const path = `/api/v1/models/${idPath(model)}/device?wait=false`;
  await order("POST", path, { device: device.value, evict: evict.checked }, `${model} moves to ${device.value}`);
}

/** Pins a model, or unpins it. */
export async function pin(model, pinned) {
  const text = pinned
    ? "It is never evicted, nor unloaded when it is unused."
    : "It may be evicted, and unloaded when it is unused.";
  const verb = pinned ? "Pin" : "Unpin";
  if (!(await ask({ title: `${verb} ${model}?`, text, confirm: verb }))) return;
  await order(
    "POST",
    `/api/v1/models/${idPath(model)}/pin`,
    { pinned },
    `${model} is ${pinned ? "pinned" : "unpinned"}`,
  );
}

/** Frees a device of all models. */
export async function free(device) {
  const text = "Its models end their requests and leave, and none is placed there until it is opened again.";
  if (!(await ask({ title: `Free ${device}?`, text, confirm: "Free", danger: true }))) return;
  await order("POST", `/api/v1/devices/${idPath(device)}/drain?wait=false`, {}, `${device} is being freed`);
}

/** Opens a device to models again. */
export async function open(device) {
  const text = "Models may be placed there again.";
  if (!(await ask({ title: `Open ${device} again?`, text, confirm: "Open" }))) return;
  await order("POST", `/api/v1/devices/${idPath(device)}/open`, {}, `${device} is open`);
}

/** Cancels a request. */
export async function cancelRequest(request) {
  const text = `Its client, ${request.client}, gets the error request_cancelled.`;
  const title = `Cancel request ${request.id} for ${request.model}?`;
  if (!(await ask({ title, text, confirm: "Cancel the request", danger: true }))) return;
  await order("DELETE", `/api/v1/queue/${request.id}`, {}, `request ${request.id} is cancelled`);
}
