// Small helpers for checks.

import { until } from "./boss.mjs";

export function check(condition, what) {
  if (!condition) throw new Error(what);
}

/** Opens a view and waits until the page is live. */
export async function open(page, boss, view = "overview") {
  // Another fragment alone would be no new page.
  await page.goto("about:blank");
  await page.goto(`${boss.url}/#/${view}`);
  await page.waitForSelector('#connection[data-state="live"]');
}

/** The view that is shown. */
export function shown(page) {
  return page.locator("main > .view:not([hidden])");
}

/** Waits until a locator's text matches. */
export async function says(locator, pattern, seconds = 10) {
  let last = "";
  await until(
    `a text like ${pattern}, not ${JSON.stringify(last)}`,
    async () => {
      last = (await locator.allInnerTexts().catch(() => [])).join("\n");
      return pattern.test(last) && last;
    },
    seconds,
  ).catch((error) => {
    throw new Error(`${error.message}; the text is: ${last.slice(0, 500)}`);
  });
  return last;
}

/** Presses a button in the dialog that is open. */
export async function confirm(page, name) {
  await page.locator("dialog").getByRole("button", { name, exact: true }).click();
  await page.locator("dialog").waitFor({ state: "detached" });
}
