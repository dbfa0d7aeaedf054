// The page with API keys.

import { createHash } from "node:crypto";

import { check, confirm, says, shown } from "../expect.mjs";

function record(name, scopes) {
  const sha256 = createHash("sha256").update(`${name}-secret-key`).digest("hex");
  return JSON.stringify({ name, scopes, secrets: [{ sha256, created: 0 }] });
}

export const settings = {
  keys: `${record("boss", ["admin"])}\n${record("reader", ["read"])}\n${record("talker", ["inference"])}\n`,
};

async function enter(page, key) {
  await page.locator("dialog").getByLabel("Key").fill(key);
  await confirm(page, "Use this key");
}

/** A tab without a key, which opens a view and enters this one. */
async function openWith(page, boss, view, key) {
  await page.goto(`${boss.url}/dashboard/icon.svg`);
  await page.evaluate(() => sessionStorage.clear());
  await page.goto(`${boss.url}/#/${view}`);
  await enter(page, key);
}

/** Without a key the page asks for one; a wrong one is refused; the right one opens it, for this tab only. */
export async function asked_for({ boss, page, context }) {
  await openWith(page, boss, "overview", "wrong-secret-key");
  await says(page.locator("#notice"), /this key is none of this server's/);
  check((await page.locator("#connection").getAttribute("data-state")) === "refused", "the state is honest");
  await page.getByRole("button", { name: "Enter a key", exact: true }).click();
  await enter(page, "boss-secret-key");
  await page.waitForSelector('#connection[data-state="live"]');
  await says(page.locator("#key"), /Key: boss/);
  const stored = await page.evaluate(() => [sessionStorage.length, JSON.stringify(localStorage)]);
  check(stored[0] === 1 && !stored[1].includes("secret"), JSON.stringify(stored));
  const other = await context.newPage();
  await other.goto(`${boss.url}/`);
  await other.locator("dialog").waitFor();
  await other.close();
}

/** What the key does not permit is disabled, with the reason. */
export async function disabled_with_reason({ boss, page }) {
  await openWith(page, boss, "models", "reader-secret-key");
  await says(page.locator("#key"), /Key: reader/);
  const load = page.locator('tr[data-model="quick"]').getByRole("button", { name: "Load quick", exact: true });
  await page.waitForFunction(() => document.querySelector('tr[data-model="quick"] button')?.ariaDisabled === "true");
  check(/the key of 'reader' lacks the scope manage/.test(await load.getAttribute("title")), "the reason as a title");
  let sent = 0;
  page.on("request", (request) => (sent += request.method() === "POST" ? 1 : 0));
  // The button takes the click, and says why it does nothing.
  await load.click({ force: true });
  await says(page.locator("#toasts"), /Not permitted: the key of 'reader' lacks the scope manage/);
  check(sent === 0 && (await page.locator("dialog").count()) === 0, "nothing was sent");
  await says(page.locator("#limits"), /'reader' lacks: inference, manage/);
  await page.goto(`${boss.url}/#/chat`);
  check((await page.getByText("Send", { exact: true }).getAttribute("aria-disabled")) === "true", "no chat");
}

/** A key for requests alone still has the chat. */
export async function chat_alone({ boss, page }) {
  await openWith(page, boss, "chat", "talker-secret-key");
  await says(page.locator("#notice"), /Views need a key with the scope read/);
  await shown(page).getByLabel("Model or task").selectOption("quick");
  await page.locator("#chat-input").fill("Hello");
  await page.locator("#chat-input").press("Enter");
  await says(page.locator(".message.answer").last(), /one two three/);
}
