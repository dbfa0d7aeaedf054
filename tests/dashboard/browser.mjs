// A Chromium without connections of its own, and the faults of its pages.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const ARGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--force-prefers-reduced-motion",
];

/** Opens Chromium with a profile of its own. */
export async function openBrowser(chromium, executable, options = {}) {
  const profile = mkdtempSync(join(tmpdir(), "model-boss-dashboard-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: executable,
    headless: true,
    args: ARGS,
    viewport: { width: 1280, height: 900 },
    ...options,
  });
  context.setDefaultTimeout(10_000);
  const faults = [];
  context.on("page", (page) => watch(page, faults));
  for (const page of context.pages()) watch(page, faults);
  const close = async () => {
    await context.close();
    rmSync(profile, { recursive: true, force: true });
  };
  return { context, page: context.pages()[0], faults, close };
}

function watch(page, faults) {
  page.on("pageerror", (error) => faults.push(`exception: ${error.stack ?? error}`));
  page.on("console", (message) => {
    // The browser itself reports answers with an error and connections that break; the page shows those.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource"))
      faults.push(message.text());
  });
  page.on("request", (request) => {
    const host = new URL(request.url()).hostname;
    if (!request.url().startsWith("data:") && host !== "127.0.0.1") faults.push(`a request to ${request.url()}`);
  });
}
