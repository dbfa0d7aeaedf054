// Devices, slots, queue and orders, as an operator sees and gives them.

import { until } from "../boss.mjs";
import { check, confirm, open, says } from "../expect.mjs";

/** The page for browsers, today's answers for everybody else, and answers that a cache may keep. */
export async function served({ boss }) {
  const get = (path, headers) => fetch(boss.url + path, { headers });
  check((await (await get("/", { accept: "*/*" })).text()) === "model-boss is running\n", "curl gets the line");
  check((await (await get("/", { accept: "application/json" })).json()).status === "ok", "programs get JSON");
  const page = await get("/", { accept: "text/html,*/*;q=0.8" });
  check(/^text\/html/.test(page.headers.get("content-type")), "browsers get the page");
  check(/default-src 'self'/.test(page.headers.get("content-security-policy")), "a policy");
  const file = await get("/dashboard/app.js", {});
  check(
    file.headers.get("cache-control") === "no-cache" && file.headers.get("x-content-type-options") === "nosniff",
    "headers",
  );
  const again = await get("/dashboard/app.js", { "if-none-match": file.headers.get("etag") });
  check(again.status === 304 && (await again.text()) === "", `${again.status} for a known file`);
  check((await get("/dashboard/../Cargo.toml", {})).status === 404, "no other file");
  check((await get("/dashboard/nobody.js", {})).status === 404, "an unknown file");
}

/** A load by the button shows its progress in bytes, then the slot and the holder of the device's memory. */
export async function load_with_progress({ boss, page }) {
  await open(page, boss, "models");
  const row = page.locator('tr[data-model="heavy"]');
  await row.getByRole("button", { name: "Load heavy", exact: true }).click();
  await page.locator("dialog").getByLabel("Device").selectOption("cuda:1");
  await confirm(page, "Load");
  await says(row, /loading on cuda:1/);
  await page.getByRole("link", { name: "Overview" }).click();
  const slot = page.locator('tr[data-slot="heavy"]');
  const seen = new Set();
  await until("the progress of a load in bytes", async () => {
    const text = await slot
      .locator(".progress-text")
      .innerText({ timeout: 500 })
      .catch(() => "");
    if (/^[\d.]+ [KMG]iB of 18\.0 GiB$/.test(text)) seen.add(text);
    return seen.size >= 3;
  });
  await says(slot, /ready/);
  await says(page.locator('[data-device="cuda:1"]'), /heavy\s*18\.0 GiB[\s\S]*other programs\s*2\.00 GiB/);
}

/** A request that waits shows its reason; cancelled by the button, its client gets the error. */
export async function queue_reason_and_cancel({ boss, page }) {
  await open(page, boss);
  const first = boss.chat("endless", "alice");
  const running = page
    .locator("section", { has: page.getByRole("heading", { name: /^Running/ }) })
    .locator("tbody tr");
  await says(running, /endless[\s\S]*alice/);
  const second = boss.chat("endless", "bob");
  const waiting = page.locator("section", { has: page.getByRole("heading", { name: /^Queue/ }) }).locator("tbody tr");
  await says(waiting, /endless[\s\S]*bob[\s\S]*endless works on 1 of 1 requests/);
  await waiting.getByRole("button", { name: /^Cancel request/ }).click();
  await confirm(page, "Cancel the request");
  const gone = await second.done;
  check(/request_cancelled/.test(gone.text), `the waiting client got: ${gone.text.slice(-300)}`);
  await running.getByRole("button", { name: /^Cancel request/ }).click();
  // A question may be answered with no.
  await confirm(page, "Cancel");
  check((await running.count()) === 1, "the request runs on");
  await running.getByRole("button", { name: /^Cancel request/ }).click();
  await confirm(page, "Cancel the request");
  const cut = await first.done;
  check(/request_cancelled/.test(cut.text), `the running client got: ${cut.text.slice(-300)}`);
  await page.getByText("No request runs.").waitFor();
}

/** Pin, move, free and open again. */
export async function pin_move_and_free({ boss, page }) {
  await boss.ask("POST", "/api/v1/load", { model_name: "quick", device: "cuda:0" });
  await open(page, boss);
  const slot = page.locator('tr[data-slot="quick"]');
  await slot.getByRole("button", { name: "Pin or unpin quick", exact: true }).click();
  await confirm(page, "Pin");
  await says(slot, /never \(pinned\)/);
  await slot.getByRole("button", { name: "Pin or unpin quick", exact: true }).click();
  await confirm(page, "Unpin");
  await slot.getByRole("button", { name: "Move quick", exact: true }).click();
  await page.getByLabel("To device").selectOption("cuda:1");
  await confirm(page, "Move");
  await says(page.locator("#toasts"), /quick serves from cuda:1/);
  await says(slot, /cuda:1/);
  const device = page.locator('[data-device="cuda:1"]');
  await device.getByRole("button", { name: "Free cuda:1", exact: true }).click();
  await confirm(page, "Free");
  await says(device, /freed/);
  await until("the device is empty", async () => (await slot.count()) === 0);
  await device.getByRole("button", { name: "Open cuda:1 again", exact: true }).click();
  await confirm(page, "Open");
  await device.getByRole("button", { name: "Free cuda:1", exact: true }).waitFor();
}

/** Unload by the button. */
export async function unload({ boss, page }) {
  await boss.ask("POST", "/api/v1/load", { model_name: "quick" });
  await open(page, boss, "models");
  const row = page.locator('tr[data-model="quick"]');
  await says(row, /loaded on/);
  await row.getByRole("button", { name: "Unload quick", exact: true }).click();
  await confirm(page, "Unload");
  await says(row, /unloaded/);
}

/** An order that fails says why, in the server's words. */
export async function fault_of_an_order({ boss, page }) {
  await open(page, boss, "models");
  const row = page.locator('tr[data-model="heavy"]');
  await row.getByRole("button", { name: "Load heavy", exact: true }).click();
  await page.locator("dialog").getByLabel("Context in tokens").fill("0");
  await page.locator("dialog").getByRole("button", { name: "Load", exact: true }).click();
  await says(page.locator("dialog .fault"), /at least 1 token/);
  await confirm(page, "Cancel");
  await row.getByRole("button", { name: "Load heavy", exact: true }).click();
  await page
    .locator("dialog")
    .getByLabel("Device")
    .evaluate((select) => select.append(new Option("cuda:9", "cuda:9")));
  await page.locator("dialog").getByLabel("Device").selectOption("cuda:9");
  await confirm(page, "Load");
  await says(page.locator("#toasts"), /cuda:9/);
}

/** A coordinator that ends is told at once, and one that comes back is found. */
export async function not_connected({ boss, page }) {
  await open(page, boss);
  await boss.down();
  await page.waitForSelector('#connection[data-state="down"]');
  await says(page.locator("#notice"), /Not connected: .*What is shown is from before/);
  check(await page.locator("body.stale").count(), "the page is marked as old");
  const resumed = page.waitForRequest(
    (request) => /\/events$/.test(request.url()) && request.headers()["last-event-id"],
  );
  await boss.up();
  await resumed;
  await page.waitForSelector('#connection[data-state="live"]', { timeout: 20_000 });
  check(await page.locator("#notice").isHidden(), "the notice has gone");
}
