// The chat playground.

import { whyNot } from "./access.js";
import { ApiFailure, ask } from "./api.js";
import { answerMessage, userMessage } from "./chat-message.js";
import { toast } from "./dialogs.js";
import { h, setAttribute } from "./dom.js";
import { attachments } from "./images.js";
import { catalog } from "./models.js";
import { isShown } from "./router.js";
import { events } from "./sse.js";
import { onChange, store } from "./store.js";

/** The messages kept; the earliest leave. */
const KEPT = 100;
const CATEGORIES = ["llm", "vision"];

function field(label, id, input, className = "") {
  input.id = id;
  return h("div", { class: `field ${className}` }, h("label", { for: id }, label), input);
}

/** The view. */
export function chat() {
  let messages = [];
  let running;
  const model = h("select");
  const system = h("textarea", { rows: "2", placeholder: "none" });
  const temperature = h("input", { type: "number", min: "0", max: "2", step: "0.1", placeholder: "default" });
  const longest = h("input", { type: "number", min: "1", placeholder: "default" });
  const thinking = h(
    "select",
    {},
    [
      ["", "as the model does"],
      ["on", "on"],
      ["off", "off"],
    ].map(([value, text]) => h("option", { value }, text)),
  );
  const tools = h("textarea", {
    rows: "4",
    spellcheck: "false",
    class: "mono",
    placeholder: '[{"type": "function", "function": {…}}]',
  });
  const log = h(
    "div",
    { class: "log", role: "log", tabindex: "0", "aria-label": "Conversation" },
    h("p", { class: "empty" }, "Ask a model of this machine. Nothing is kept when the page is closed."),
  );
  const input = h("textarea", {
    id: "chat-input",
    rows: "3",
    placeholder: "Message (Enter sends, Shift+Enter is a new line)",
  });
  const file = h("input", {
    type: "file",
    accept: "image/*",
    multiple: true,
    class: "sr",
    id: "chat-file",
    tabindex: "-1",
  });
  const images = attachments();
  const send = h("button", { type: "submit", class: "primary" }, "Send");
  const attach = h("button", { type: "button", on: { click: () => file.click() } }, "Image");
  const clear = h("button", { type: "button" }, "Clear");

  const follow = () => {
    // Whoever scrolled up reads: the log follows at its end only.
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 120;
    if (atEnd) requestAnimationFrame(() => (log.scrollTop = log.scrollHeight));
  };
  const body = () => {
    const list = [];
    if (system.value.trim()) list.push({ role: "system", content: system.value.trim() });
    const asked = {
      model: model.value,
      messages: [...list, ...messages],
      stream: true,
      stream_options: { include_usage: true },
    };
    if (temperature.value) asked.temperature = Number(temperature.value);
    if (longest.value) asked.max_tokens = Number(longest.value);
    if (thinking.value) asked.x_thinking = thinking.value;
    if (tools.value.trim()) asked.tools = JSON.parse(tools.value);
    return asked;
  };
  const begin = async (event) => {
    event?.preventDefault();
    if (running) return running.abort();
    const text = input.value.trim();
    const why = whyNot("inference");
    if (why) return toast(`Not permitted: ${why}.`, "fault");
    if (!text) return input.focus();
    let asked;
    const added = images.take();
    const content = added.length
      ? [{ type: "text", text }, ...added.map((image) => ({ type: "image_url", image_url: { url: image.url } }))]
      : text;
    const before = messages;
    messages = [...messages, ...next(messages.at(-1), content, text)];
    try {
      asked = body();
    } catch (error) {
      messages = before;
      return toast(`The tools are no JSON: ${error.message}`, "fault");
    }
    log.querySelector(".empty")?.remove();
    const answer = answerMessage(model.value);
    log.append(userMessage(text, added), answer.node);
    input.value = "";
    log.scrollTop = log.scrollHeight;
    running = new AbortController();
    setAttribute(send, "data-running", "true");
    send.textContent = "Stop";
    await stream(asked, answer, running.signal, follow);
    running = undefined;
    setAttribute(send, "data-running", null);
    send.textContent = "Send";
    const said = { role: "assistant", content: answer.text };
    // A question without any answer is no part of the conversation.
    if (!answer.text && !answer.calls.length) {
      messages = before;
      return;
    }
    if (answer.calls.length) {
      const call = (one) => ({
        id: one.id,
        type: "function",
        function: { name: one.name, arguments: one.arguments },
      });
      said.tool_calls = answer.calls.filter(Boolean).map(call);
    }
    messages.push(said);
    messages = messages.slice(-KEPT);
    while (log.children.length > KEPT) log.firstChild.remove();
    follow();
  };

  const form = h(
    "form",
    { class: "composer", on: { submit: begin } },
    images.node,
    h("label", { class: "sr", for: "chat-input" }, "Message"),
    input,
    h("label", { class: "sr", for: "chat-file" }, "Images"),
    file,
    h("div", { class: "composer-buttons" }, attach, clear, h("span", { class: "spring" }), send),
  );
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) begin();
  });
  input.addEventListener("paste", (event) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (!pasted.length) return;
    event.preventDefault();
    images.add(pasted);
  });
  file.addEventListener("change", () => {
    images.add([...file.files]);
    file.value = "";
  });
  clear.addEventListener("click", () => {
    running?.abort();
    messages = [];
    log.replaceChildren(h("p", { class: "empty" }, "A new conversation."));
    input.focus();
  });
  onChange(["models", "tasks", "shown", "access"], () => {
    const why = whyNot("inference");
    setAttribute(send, "aria-disabled", why ? "true" : null);
    setAttribute(send, "title", why ? `Not permitted: ${why}` : null);
    if (!isShown("chat")) return;
    const tasks = (store.views.tasks?.tasks ?? []).map((task) => `task:${task.name}`);
    const all = [
      ...catalog()
        .filter((one) => CATEGORIES.includes(one.category))
        .map((one) => one.id),
      ...tasks,
    ].slice(0, 500);
    if (all.join("\n") === model.dataset.all) return;
    const chosen = model.value || store.views.models?.data.find((one) => one.aliases?.includes("default"))?.id;
    model.dataset.all = all.join("\n");
    model.replaceChildren(...all.map((value) => h("option", { value }, value)));
    if (all.includes(chosen)) model.value = chosen;
  });
  const options = h(
    "details",
    { class: "options" },
    h("summary", {}, "Options"),
    h(
      "div",
      { class: "form-grid" },
      field("System prompt", "chat-system", system, "wide"),
      field("Temperature", "chat-temperature", temperature),
      field("Longest answer in tokens", "chat-longest", longest),
      field("Thinking", "chat-thinking", thinking),
      field("Tools as JSON", "chat-tools", tools, "wide"),
    ),
  );
  const element = h(
    "div",
    { class: "view" },
    h(
      "section",
      { class: "chat", "aria-labelledby": "chat-title" },
      h("h2", { id: "chat-title" }, "Chat"),
      h(
        "div",
        { class: "panel chat-panel" },
        h("div", { class: "chat-head" }, field("Model or task", "chat-model", model), options),
        log,
        form,
      ),
    ),
  );
  return { id: "chat", title: "Chat", element, show: () => input.focus({ preventScroll: true }) };
}

/** The messages of a new turn: after calls of tools, what the user writes is their result. */
function next(last, content, text) {
  if (!last?.tool_calls) return [{ role: "user", content }];
  return last.tool_calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: text }));
}

/** Sends a request and shows its answer as it comes. */
async function stream(asked, answer, signal, follow) {
  const began = performance.now();
  const facts = {};
  const mark = () => (facts.first ??= performance.now() - began);
  try {
    const reply = await ask("POST", "/v1/chat/completions", { body: asked, signal });
    facts.headers = reply.headers;
    for await (const { comment, data } of events(reply.body)) {
      if (comment !== undefined) {
        answer.status(comment);
        continue;
      }
      if (data === "[DONE]") break;
      const piece = JSON.parse(data);
      if (piece.error) throw new ApiFailure(200, piece.error);
      if (piece.usage) facts.usage = piece.usage;
      if (piece.timings) facts.rate = piece.timings.predicted_per_second;
      for (const { delta = {}, finish_reason: finish } of piece.choices ?? []) {
        if (delta.reasoning_content) (mark(), answer.think(delta.reasoning_content));
        if (delta.content) (mark(), answer.say(delta.content));
        for (const call of delta.tool_calls ?? []) (mark(), answer.call(call));
        if (finish) facts.finish = finish;
      }
      follow();
    }
    facts.took = performance.now() - began;
    answer.end(facts);
  } catch (error) {
    answer.fail(error.name === "AbortError" ? "Stopped." : error.message);
  }
}
