// Keyboard, colours, narrow screens, and axe.

import { join } from "node:path";

import { check, open, says, shown } from "../expect.mjs";

const VIEWS = ["overview", "models", "decisions", "leases", "tasks", "clients", "chat", "plan"];

/** The rules of axe that another form may break; all of them where none are named. */
const RULES = { dark: ["color-contrast"] };

/** Something to see in every view. */
async function scene(boss) {
  await boss.ask("POST", "/api/v1/load", { model_name: "heavy", device: "cuda:0" });
  await boss.ask("POST", "/api/v1/load", { model_name: "quick", device: "cuda:1" });
  const running = boss.chat("endless", "alice");
  const waiting = boss.chat("endless", "bob");
  const lease = boss.lease("training", "8GiB", "cuda:1");
  return async () => {
    running.stop();
    waiting.stop();
    await lease.end();
  };
}

/** Every view in three forms: no finding of axe that is serious, nothing wider than the screen. */
export async function axe_and_width({ boss, page, axe, report }) {
  const end = await scene(boss);
  const findings = [];
  const forms = [
    ["light", 1280, 900],
    ["dark", 1280, 900],
    ["phone", 360, 740],
  ];
  for (const [name, width, height] of forms) {
    await page.emulateMedia({ colorScheme: name === "dark" ? "dark" : "light" });
    await page.setViewportSize({ width, height });
    await open(page, boss);
    // The policy of the page stands in the way of scripts that are not its own, so axe comes through the debugger.
    await page.evaluate(axe);
    for (const view of VIEWS) {
      await page.evaluate((name) => (location.hash = `#/${name}`), view);
      await page.locator(`#view-${view}`).waitFor();
      if (view === "overview") await says(page.locator("main"), /training[\s\S]*endless works on 1 of 1/);
      if (view === "plan") {
        await shown(page).getByLabel("Model or task").fill("task:chat");
        await page.getByRole("button", { name: "Plan", exact: true }).click();
        await says(page.locator(".plan-answer"), /Ladder/);
      }
      if (view === "chat") {
        await shown(page).getByLabel("Model or task").selectOption("hostile");
        await page.locator("#chat-input").fill("Show me");
        await page.locator("#chat-input").press("Enter");
        await says(page.locator(".message.answer .figures"), /tokens/, 20);
      }
      const over = await page.evaluate(
        () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
      );
      if (over > 0) findings.push(`${view} ${name}: ${over} px wider than the screen`);
      const violations = await page.evaluate(async (rules) => {
        const options = { resultTypes: ["violations"], ...(rules && { runOnly: rules }) };
        return (await globalThis.axe.run(document, options)).violations;
      }, RULES[name]);
      for (const { id, impact, nodes } of violations) {
        const where = nodes
          .slice(0, 3)
          .map((node) => `${node.target} ${node.failureSummary}`)
          .join("; ");
        if (["serious", "critical"].includes(impact)) findings.push(`${view} ${name}: ${impact} ${id}: ${where}`);
      }
      await page.screenshot({ path: join(report, `${view}-${name}.png`), fullPage: name === "phone" });
    }
  }
  await page.emulateMedia({ colorScheme: null });
  await page.setViewportSize({ width: 1280, height: 900 });
  await end();
  check(findings.length === 0, findings.join("\n"));
}

/** The switch of the theme goes through its three states, and is kept. */
export async function theme_switch({ boss, page }) {
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.emulateMedia({ colorScheme: "light" });
  await open(page, boss);
  const light = await ground();
  const button = page.locator("#theme");
  await says(button, /Theme: system/);
  await button.click();
  await says(button, /Theme: light/);
  await button.click();
  await says(button, /Theme: dark/);
  const dark = await ground();
  check(dark !== light, "dark differs from light");
  await page.reload();
  await says(button, /Theme: dark/);
  check((await ground()) === dark, "the choice is kept");
  await button.click();
  check((await ground()) === light, "as the system again");
  await page.emulateMedia({ colorScheme: "dark" });
  check((await ground()) === dark, "the system's dark");
  await page.emulateMedia({ colorScheme: null });
}

/** The order of the Tab key, the dialog that keeps the focus, and where the focus returns. */
export async function keyboard({ boss, page }) {
  await boss.ask("POST", "/api/v1/load", { model_name: "quick" });
  await open(page, boss, "models");
  await page.locator('tr[data-model="quick"]').waitFor();
  const focus = () =>
    page.evaluate(() => {
      const one = document.activeElement;
      return one.id || one.getAttribute("aria-label") || one.textContent.trim();
    });
  const walked = [];
  for (let i = 0; i < 14; i += 1) {
    await page.keyboard.press("Tab");
    walked.push(await focus());
  }
  const names = ["Overview", "Models", "Decisions", "Leases", "Tasks", "Clients", "Chat", "Plan"];
  const expected = ["Skip to the content", ...names, "key", "theme", "model-filter"];
  check(walked.slice(0, 12).join() === expected.join(), walked.join(" → "));
  check(/^Load /.test(walked[12]), walked.join(" → "));
  const row = page.locator('tr[data-model="quick"]');
  await row.getByRole("button", { name: "Unload quick", exact: true }).focus();
  await page.keyboard.press("Enter");
  await page.locator("dialog").waitFor();
  for (let i = 0; i < 6; i += 1) {
    await page.keyboard.press("Tab");
    const inside = await page.evaluate(
      () =>
        document.activeElement === document.body || document.querySelector("dialog").contains(document.activeElement),
    );
    check(inside, "the focus stays in the dialog");
  }
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  check((await focus()) === "Unload quick", `the focus returns: ${await focus()}`);
  await says(row, /loaded on/);
  const outlined = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  check(outlined === "solid", "the focus is visible");
}
