// The chat playground.

import { check, open, says, shown } from "../expect.mjs";

async function ask(page, model, text) {
  await shown(page).getByLabel("Model or task").selectOption(model);
  await page.locator("#chat-input").fill(text);
  await page.locator("#chat-input").press("Enter");
}

/** An answer streams, and says what it cost. */
export async function stream({ boss, page }) {
  await open(page, boss, "chat");
  await ask(page, "quick", "Hello");
  const answer = page.locator(".message.answer").last();
  await says(answer, /one two three/);
  await says(answer.locator(".figures"), /tokens · [\d.,]+ tokens\/s · first after/);
  await ask(page, "endless", "Count");
  await says(page.locator(".message.answer").last(), /one two three four five/);
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await says(page.locator(".message.answer").last(), /Stopped\./);
  await page.getByText("Send", { exact: true }).waitFor();
}

/** A request that waits says why in the chat itself. */
export async function reason_while_waiting({ boss, page }) {
  const other = boss.chat("endless", "alice");
  await open(page, boss, "chat");
  await ask(page, "endless", "Count");
  await says(page.locator(".message.answer .status").last(), /endless works on 1 of 1 requests/);
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  other.stop();
  await other.done;
}

/** Markup in an answer stays text, and its markdown is shown. */
export async function hostile_answer_stays_text({ boss, page }) {
  await open(page, boss, "chat");
  await ask(page, "hostile", "Attack");
  const said = page.locator(".message.answer .said").last();
  await says(page.locator(".message.answer .figures").last(), /tokens/, 20);
  const found = await said.evaluate((node) => ({
    bad: node.querySelectorAll("script, img, iframe, svg, style, i, b, object, embed, form").length,
    handlers: [...node.querySelectorAll("*")].filter((one) =>
      [...one.attributes].some((a) => a.name.startsWith("on")),
    ).length,
    links: [...node.querySelectorAll("a")].map((link) => [link.href, link.rel, link.target]),
    headings: node.querySelectorAll("h4").length,
    items: node.querySelectorAll("li").length,
    cells: node.querySelectorAll("td").length,
    code: node.querySelector("pre code")?.textContent,
    strong: node.querySelectorAll("strong").length,
    hacked: globalThis.hacked,
  }));
  check(found.bad === 0 && found.handlers === 0 && found.hacked === undefined, JSON.stringify(found));
  check(found.headings === 1 && found.items === 2 && found.cells === 2 && found.strong === 1, JSON.stringify(found));
  check(found.code === '<svg onload="globalThis.hacked=5"></svg>', found.code);
  const targets = found.links.map(([href]) => href);
  check(targets.join() === "https://example.com/a,https://example.com/p.png", JSON.stringify(targets));
  check(
    found.links.every(([, rel, target]) => /noopener/.test(rel) && target === "_blank"),
    JSON.stringify(found.links),
  );
  const text = await said.innerText();
  for (const part of [
    "<script>globalThis.hacked = 2</script>",
    "[run](javascript:globalThis.hacked=3)",
    "<img src=x",
  ]) {
    check(text.includes(part), `${part} is not in ${text}`);
  }
}

/** Thoughts are folded, and calls of tools are shown. */
export async function thinking_and_tools({ boss, page }) {
  await open(page, boss, "chat");
  await shown(page).getByText("Options").click();
  const tool = {
    type: "function",
    function: { name: "get_weather", parameters: { type: "object", properties: {} } },
  };
  await shown(page)
    .getByLabel("Tools as JSON")
    .fill(JSON.stringify([tool]));
  await ask(page, "thinker", "Weather in Ghent?");
  const answer = page.locator(".message.answer").last();
  await says(answer, /Let me look\.[\s\S]*Tool call: get_weather[\s\S]*"city": "Ghent"/);
  check(!(await answer.locator(".thought").isVisible()), "thoughts are folded");
  await answer.getByText("Thinking", { exact: true }).click();
  await says(answer.locator(".thought"), /asks for the weather: <b>call the tool<\/b>\./);
  await shown(page).getByLabel("Tools as JSON").fill("[{");
  await ask(page, "thinker", "Again");
  await says(page.locator("#toasts"), /The tools are no JSON/);
}

/** Images by file and by paste are sent as data URLs. */
export async function images({ boss, page }) {
  await open(page, boss, "chat");
  const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
  await page
    .locator("#chat-file")
    .setInputFiles({ name: "dot.png", mimeType: "image/png", buffer: Buffer.from(png, "base64") });
  await page.locator(".attachments img[alt='dot.png']").waitFor();
  await page.locator("#chat-input").evaluate((input, data) => {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], "pasted.png", { type: "image/png" }));
    input.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true }));
  }, png);
  await page.waitForFunction(() => document.querySelectorAll(".attachments img").length === 2);
  const sent = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
  await ask(page, "quick", "What is this?");
  const { messages } = (await sent).postDataJSON();
  const urls = messages
    .at(-1)
    .content.filter((part) => part.type === "image_url")
    .map((part) => part.image_url.url);
  check(urls.length === 2 && urls.every((url) => url === `data:image/png;base64,${png}`), JSON.stringify(urls));
  check((await page.locator(".message.user img").count()) === 2, "the images are shown");
}
