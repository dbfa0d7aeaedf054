// Decisions, leases, tasks, clients and plans.

import { check, open, says, shown } from "../expect.mjs";

/** Decisions by kind, by a text and by a request. */
export async function decisions_with_filters({ boss, page }) {
  await boss.ask("POST", "/api/v1/load", { model_name: "quick" });
  await boss.ask("POST", "/api/v1/load", { model_name: "heavy", device: "cuda:0" });
  await boss.ask("POST", "/api/v1/unload", { model_name: "quick" });
  await open(page, boss, "decisions");
  const rows = page.locator(".decision");
  await says(rows, /quick[\s\S]*heavy/);
  const all = await rows.count();
  await shown(page).getByLabel("Kind").selectOption("unload");
  await says(rows, /quick/);
  check((await rows.count()) < all && !/heavy/.test(await rows.first().innerText()), "a filter by kind");
  await shown(page).getByLabel("Kind").selectOption("");
  await shown(page).getByLabel("Model or reason").fill("HEAVY");
  const texts = await rows.allInnerTexts();
  check(texts.length && texts.every((text) => /heavy/.test(text)), `a filter by model: ${texts}`);
  await shown(page).getByLabel("Model or reason").fill("no such thing");
  await page.getByText("No decision matches.").waitFor();
  await shown(page).getByLabel("Model or reason").fill("");
  await shown(page).getByLabel("Request").fill("1");
  await says(rows, /request 1/);
  check(
    (await rows.allInnerTexts()).every((text) => /request 1\b/.test(text)),
    "a filter by request",
  );
  await shown(page).getByLabel("Request").fill("");
  // New decisions come by themselves, the newest first.
  await boss.ask("POST", "/api/v1/load", { model_name: "hostile" });
  await says(rows.first(), /ready[\s\S]*hostile/);
}

/** Leases of jobs, and a job that waits. */
export async function leases_with_waiters({ boss, page }) {
  const holder = boss.lease("training", "21GiB", "cuda:1");
  await open(page, boss, "leases");
  const row = page.locator('[data-lease="training"]');
  await says(row, /21\.0 GiB on cuda:1[\s\S]*active/);
  const waiter = boss.lease("evaluation", "20GiB", "cuda:1");
  await says(page.locator('[data-waiter="evaluation"]'), /evaluation[\s\S]*20\.0 GiB on cuda:1/);
  await page.getByRole("link", { name: "Overview" }).click();
  await says(page.locator('[data-device="cuda:1"]'), /lease: training\s*21\.0 GiB/);
  await waiter.end();
  await holder.end();
}

/** Tasks with the state of each rung. */
export async function tasks_and_ladders({ boss, page }) {
  await boss.ask("POST", "/api/v1/load", { model_name: "quick" });
  await open(page, boss, "tasks");
  await says(
    page.locator('[data-task="chat"]'),
    /task:chat[\s\S]*quick\s*loaded[\s\S]*endless\s*unloaded[\s\S]*nobody\s*not in the/,
  );
}

/** Clients with what they used. */
export async function clients_seen({ boss, page }) {
  check((await boss.chat("quick", "carol").done).status === 200, "an answer");
  await open(page, boss, "clients");
  await says(page.locator('[data-client="carol"]'), /carol[\s\S]*quick: answered/);
}

/** The last hour is there for a page that is opened later. */
export async function history_of_the_hour({ boss, page }) {
  check((await boss.chat("quick", "carol").done).status === 200, "an answer");
  const { body } = await boss.ask("GET", "/api/v1/history");
  check(body.requests.reduce((sum, count) => sum + count, 0) >= 1, JSON.stringify(body.requests));
  check(
    body.tokens_per_s.some((rate) => rate > 0),
    "tokens",
  );
  const held = body.devices.flatMap((device) => device.holders).find((holder) => holder.kind === "foreign");
  check(
    held?.bytes.some((bytes) => bytes > 0),
    "foreign memory",
  );
  await open(page, boss);
  await page.waitForFunction(() => globalThis.modelBoss.store.views.history);
  const painted = await page.evaluate(() =>
    [...document.querySelectorAll("canvas.bars")].map((canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const colours = new Set();
      for (let i = 0; i < data.length; i += 4)
        if (data[i + 3]) colours.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
      return [canvas.getAttribute("aria-label"), colours.size];
    }),
  );
  check(painted.length === 3 && painted.every(([, colours]) => colours >= 2), JSON.stringify(painted));
  check(
    painted.some(([label]) => /other programs 2\.00 GiB/.test(label)),
    JSON.stringify(painted),
  );
  const refused = await boss.ask("GET", "/api/v1/history?last=361");
  check(refused.status === 400 && refused.body.error.param === "last", JSON.stringify(refused));
}

/** A plan by its form. */
export async function plan_of_a_request({ boss, page }) {
  await boss.ask("POST", "/api/v1/load", { model_name: "heavy", device: "cuda:0" });
  await open(page, boss, "plan");
  await shown(page).getByLabel("Model or task").fill("heavy");
  await page.getByRole("button", { name: "Plan", exact: true }).click();
  const result = page.locator(".plan-answer");
  await says(result, /answered at once: the model is loaded/);
  await shown(page).getByLabel("Model or task").fill("task:chat");
  await shown(page).getByLabel("Model or task").press("Enter");
  await says(result, /Ladder[\s\S]*nobody/);
  await shown(page).getByLabel("Model or task").fill("nobody");
  await page.getByRole("button", { name: "Plan", exact: true }).click();
  await says(result, /was not found/);
}
