// Figures of the page: first paint, a burst of events, memory. They are printed, and held to no limit here.

import { check, open } from "../expect.mjs";

/** The first paint of a page that was never open, and of one that was. */
export async function first_paint({ boss, context }) {
  const figures = [];
  for (let i = 0; i < 11; i += 1) {
    const page = await context.newPage();
    await page.goto(`${boss.url}/`);
    await page.waitForSelector('#connection[data-state="live"]');
    figures.push(
      await page.evaluate(() => ({
        paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
        live: performance.now(),
      })),
    );
    await page.close();
  }
  const median = (name) => figures.map((one) => one[name]).sort((a, b) => a - b)[5];
  return {
    first: Math.round(figures[0].paint),
    median_paint_ms: Math.round(median("paint")),
    median_live_ms: Math.round(median("live")),
  };
}

/** 10,000 events in a minute through a stream of the test's own, with the real page: frames, long tasks, memory. */
export async function events_per_minute({ boss, page, context }) {
  const seconds = 60;
  const rate = 10_000 / 60;
  await open(page, boss);
  const state = await page.evaluate(async () => {
    const reader = (await fetch("/api/v1/events?follow=false")).body.getReader();
    return new TextDecoder().decode((await reader.read()).value);
  });
  const first = JSON.parse(state.split("\ndata: ")[1].split("\n\n")[0]);
  // Eight slots on two devices, whose progress and requests change all the time, and decisions.
  const slot = (id, n) => ({
    id,
    generation: 1,
    model: `model-${id}`,
    category: "llm",
    state: n % 50 < 40 ? "loading" : "ready",
    phase: n % 50 < 40 ? "weights" : "serving",
    progress: (n % 40) / 40,
    parts: [[`cuda:${id % 2}`, 2 << 30]],
    pid: 1,
    port: 1,
    context_length: 4096,
    kv_cache_type: "auto",
    size_rule: "manifest",
    streamed: false,
    moving: false,
    cores: null,
    cpu_share: null,
    running: n % 7,
    max_concurrent: 8,
    completed: n,
    pinned: false,
    revision: 1,
    stale: false,
    rank: 5,
    last_used: 1,
    ready_at: 1,
    load_ms: 10,
    unload_at: null,
    leaving: null,
  });
  let n = 0;
  const next = () => {
    n += 1;
    if (n % 10 === 0)
      return [
        "decision",
        {
          seq: 1e6 + n,
          at: Date.now() / 1000,
          what: "load",
          model: `model-${n % 8}`,
          request: n,
          reasons: ["a reason"],
        },
      ];
    if (n % 10 < 3) return ["device", { ...first.devices[1 + (n % 2)], charged: n }];
    if (n % 10 < 5) return ["queue", { id: `model-${n % 8}`, queued: n % 9, running: n % 3 }];
    return ["slot", slot(n % 8, n)];
  };
  const { createServer } = await import("node:http");
  const feed = createServer((request, answer) => {
    answer.writeHead(200, { "content-type": "text/event-stream", "access-control-allow-origin": "*" });
    answer.write(state);
    const began = Date.now();
    let sent = 0;
    const timer = setInterval(() => {
      const due = ((Date.now() - began) / 1000) * rate;
      let text = "";
      for (; sent < due && sent < 10_000; sent += 1) {
        const [kind, value] = next();
        text += `id: ${1e6 + sent}\nevent: ${kind}\ndata: ${JSON.stringify(value)}\n\n`;
      }
      if (text) answer.write(text);
    }, 20);
    answer.on("close", () => clearInterval(timer));
  });
  await new Promise((resolve) => feed.listen(0, "127.0.0.1", resolve));
  const burst = await context.newPage();
  await burst.route("**/api/v1/events", (route) =>
    route.continue({ url: `http://127.0.0.1:${feed.address().port}/` }),
  );
  await burst.addInitScript(() => {
    globalThis.frames_ = [];
    globalThis.long_ = [];
    new PerformanceObserver((list) => globalThis.long_.push(...list.getEntries().map((one) => one.duration))).observe(
      { type: "longtask", buffered: true },
    );
    const frame = (at) => (globalThis.frames_.push(at), requestAnimationFrame(frame));
    requestAnimationFrame(frame);
  });
  await burst.goto(`${boss.url}/`);
  await burst.waitForSelector('#connection[data-state="live"]');
  const session = await context.newCDPSession(burst);
  const heap = async () => {
    await session.send("HeapProfiler.collectGarbage");
    const { usedSize } = await session.send("Runtime.getHeapUsage");
    const nodes = await burst.evaluate(() => document.querySelectorAll("*").length);
    return [Math.round(usedSize / 1024), nodes];
  };
  await burst.waitForTimeout(3_000);
  const before = await heap();
  await burst.evaluate(() => ((globalThis.frames_.length = 0), (globalThis.long_.length = 0)));
  await burst.waitForTimeout((seconds - 4) * 1000);
  const told = await burst.evaluate(() => {
    const gaps = globalThis.frames_
      .slice(1)
      .map((at, i) => at - globalThis.frames_[i])
      .sort((a, b) => a - b);
    const at = (share) => Math.round(gaps[Math.floor(share * (gaps.length - 1))] * 10) / 10;
    return {
      frames: gaps.length,
      gap_p50_ms: at(0.5),
      gap_p99_ms: at(0.99),
      gap_max_ms: at(1),
      long_tasks: globalThis.long_.length,
      longest_task_ms: Math.round(Math.max(0, ...globalThis.long_)),
      events: globalThis.modelBoss.store.received,
      decisions: globalThis.modelBoss.store.decisions.length,
    };
  });
  const after = await heap();
  await burst.close();
  feed.closeAllConnections();
  feed.close();
  check(told.events > 9_000, JSON.stringify(told));
  return { ...told, heap_kib: [before[0], after[0]], nodes: [before[1], after[1]] };
}
