// Tests of the dashboard in a real Chromium, against real coordinators with the fake worker.
//
// node run.mjs [--measure] [NAME…]: `--measure` takes figures in place of the checks; names select checks.
// MODEL_BOSS_TEST_BIN_DIR has the programs, MODEL_BOSS_CHROMIUM the browser, MODEL_BOSS_DASHBOARD_REPORT the folder for
// screenshots and the report, MODEL_BOSS_DASHBOARD_NODE_MODULES the packages of package.json.

import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

import { Boss } from "./boss.mjs";
import { openBrowser } from "./browser.mjs";
import * as chat from "./checks/chat.mjs";
import * as keys from "./checks/keys.mjs";
import * as looks from "./checks/looks.mjs";
import * as machine from "./checks/machine.mjs";
import * as measure from "./checks/measure.mjs";
import * as parts from "./checks/modules.mjs";
import * as views from "./checks/views.mjs";

const setting = (name) => {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: scripts/test sets it`);
  return value;
};

const bin = resolve(setting("MODEL_BOSS_TEST_BIN_DIR"));
const report = resolve(setting("MODEL_BOSS_DASHBOARD_REPORT"));
const modules = createRequire(join(resolve(setting("MODEL_BOSS_DASHBOARD_NODE_MODULES")), "package.json"));
const { chromium } = modules("playwright-core");
const axe = readFileSync(modules.resolve("axe-core/axe.min.js"), "utf8");

const wanted = process.argv.slice(2).filter((name) => !name.startsWith("--"));
const groups = process.argv.includes("--measure")
  ? { measure }
  : { looks, machine, views, chat, keys, modules: parts };

rmSync(report, { recursive: true, force: true });
mkdirSync(report, { recursive: true });
// Every child is killed with this process, however it ends.
process.setMaxListeners(100);
const outcome = { lines: [], passed: 0, failed: 0 };

/** Runs the checks of one group, one after another, with a coordinator and a browser of their own. */
async function runGroup([group, checks]) {
  const names = Object.keys(checks).filter((name) => name !== "settings");
  const isWanted = (name) => !wanted.length || wanted.some((part) => name.includes(part) || part === group);
  const chosen = names.filter(isWanted);
  if (!chosen.length) return;
  const folder = join(report, `boss-${group}`);
  const boss = await Boss.start(bin, folder, checks.settings);
  const browser = await openBrowser(chromium, setting("MODEL_BOSS_CHROMIUM"));
  try {
    for (const name of chosen) await runCheck(`${group}.${name}`, checks[name], boss, browser);
  } finally {
    await browser.close();
    await boss.down();
    rmSync(folder, { recursive: true, force: true });
  }
}

async function runCheck(name, check, boss, browser) {
  const began = Date.now();
  browser.faults.length = 0;
  const say = (line) => {
    outcome.lines.push(line);
    console.log(line);
  };
  try {
    const figures = await check({ boss, page: browser.page, context: browser.context, axe, report });
    if (browser.faults.length) throw new Error(`faults of the page:\n  ${browser.faults.join("\n  ")}`);
    outcome.passed += 1;
    say(`ok    ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
    if (figures) say(`      ${JSON.stringify(figures)}`);
  } catch (error) {
    outcome.failed += 1;
    await browser.page.screenshot({ path: join(report, `failed-${name}.png`) }).catch(() => {});
    say(`FAIL  ${name}: ${error.stack ?? error}\n${boss.output.slice(-2000)}`);
  }
}

// Two groups at a time: each waits for loads and for the next look of the page most of its time.
const waiting = Object.entries(groups);
const lane = async () => {
  while (waiting.length) await runGroup(waiting.shift());
};
await Promise.all([lane(), lane()]);

writeFileSync(join(report, "report.txt"), `${outcome.lines.join("\n")}\n`);
console.log(`${outcome.passed} passed, ${outcome.failed} failed; screenshots in ${report}`);
process.exit(outcome.failed ? 1 : 0);
