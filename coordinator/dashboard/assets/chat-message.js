// One message of the chat. An answer grows while it streams: only its last block is made anew.

import { h, setText } from "./dom.js";
import { figure, span } from "./format.js";
import { blockNode, blocks } from "./markdown.js";

/** The longest answer that is shown, in characters. */
const LONGEST = 1 << 20;

/** A message of the user. */
export function userMessage(text, images) {
  return h(
    "article",
    { class: "message user", "aria-label": "You" },
    h("div", { class: "who" }, "You"),
    h("div", { class: "said pre" }, text),
    images.length
      ? h(
          "div",
          { class: "sent-images" },
          images.map((image) => h("img", { src: image.url, alt: image.name })),
        )
      : "",
  );
}

/** An answer: `{ node, status, think, say, call, end, fail, text, calls }`. */
export function answerMessage(model) {
  const who = h("div", { class: "who" }, model);
  const status = h("div", { class: "status muted", role: "status" }, "sent");
  const thought = h("div", { class: "thought pre" });
  const thinking = h("details", { class: "thinking", hidden: true }, h("summary", {}, "Thinking"), thought);
  const said = h("div", { class: "said markdown" });
  const callList = h("div", { class: "calls" });
  const figures = h("div", { class: "figures muted" });
  const node = h(
    "article",
    { class: "message answer", "aria-label": `Answer of ${model}` },
    who,
    status,
    thinking,
    said,
    callList,
    figures,
  );
  const answer = { node, text: "", reasoning: "", calls: [] };
  const shown = [];
  let due = false;

  const draw = () => {
    due = false;
    const all = blocks(answer.text);
    all.forEach((block, i) => {
      if (shown[i]?.raw === block.raw) return;
      const fresh = blockNode(block);
      if (shown[i]) shown[i].node.replaceWith(fresh);
      else said.append(fresh);
      shown[i] = { raw: block.raw, node: fresh };
    });
    for (const extra of shown.splice(all.length)) extra.node.remove();
    if (answer.reasoning) {
      thinking.hidden = false;
      setText(thought, answer.reasoning);
    }
    callList.replaceChildren(...answer.calls.map(callNode));
  };
  const later = () => {
    if (due) return;
    due = true;
    requestAnimationFrame(draw);
  };

  answer.status = (text) => {
    setText(status, text);
    status.hidden = !text;
  };
  answer.think = (text) => {
    if (answer.reasoning.length < LONGEST) answer.reasoning += text;
    answer.status("thinking");
    later();
  };
  answer.say = (text) => {
    if (answer.text.length < LONGEST) answer.text += text;
    answer.status("");
    later();
  };
  answer.call = (delta) => {
    const place = Math.min(delta.index ?? answer.calls.length, 63);
    const call = (answer.calls[place] ??= { id: "", name: "", arguments: "" });
    if (delta.id) call.id = delta.id;
    call.name += delta.function?.name ?? "";
    if (call.arguments.length < LONGEST) call.arguments += delta.function?.arguments ?? "";
    answer.status("");
    later();
  };
  answer.end = (facts) => {
    answer.status("");
    draw();
    setText(figures, line(facts));
    if (answer.calls.length) callList.append(h("p", { class: "note" }, "Your next message is sent as the result."));
  };
  answer.fail = (text) => {
    answer.status("");
    draw();
    node.append(h("p", { class: "fault", role: "alert" }, text));
  };
  return answer;
}

function callNode(call) {
  let text = call.arguments;
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Arguments that are not complete yet are shown as they came.
  }
  return h(
    "details",
    { class: "call", open: true },
    h("summary", {}, "Tool call: ", h("code", {}, call.name || "…")),
    h("pre", { tabindex: "0", role: "group", "aria-label": "arguments" }, h("code", {}, text)),
  );
}

function line({ usage, rate, first, took, headers, finish }) {
  const parts = [];
  if (usage) {
    parts.push(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens`);
    // The worker knows its own speed; pieces may arrive here together.
    const speed = rate ?? (usage.completion_tokens - 1) / ((took - (first ?? 0)) / 1000);
    if (usage.completion_tokens > 1 && speed > 0 && speed < 1e6) parts.push(`${figure(speed)} tokens/s`);
  }
  if (first !== undefined) parts.push(`first after ${span(first)}`);
  const queued = Number(headers?.get("x-queue-ms"));
  if (queued > 0) parts.push(`${span(queued)} in the queue`);
  const loaded = Number(headers?.get("x-load-ms"));
  if (loaded > 0) parts.push(`${span(loaded)} of it loading`);
  if (finish && finish !== "stop") parts.push(`ended by ${finish}`);
  return parts.join(" · ");
}
