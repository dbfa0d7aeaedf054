// Single modules of the page, with input that a coordinator seldom sends.

import { check, open, says } from "../expect.mjs";

/** Points of the history meet, overlap, or leave a gap. */
export async function history_merges({ boss, page }) {
  await open(page, boss);
  const found = await page.evaluate(async () => {
    const { merge } = await import("/dashboard/history.js");
    const part = (first, rates, holders) => ({
      first,
      from: 1000 + first * 10,
      interval_s: 10,
      tokens_per_s: rates,
      queued: rates.map(() => 1),
      devices: [{ id: "cuda:0", capacity: 100, holders }],
    });
    const holder = (name, bytes) => ({ kind: "model", name, bytes });
    const before = part(5, [1, 2, 3], [holder("a", [7, 7, 7])]);
    const long = part(
      0,
      Array.from({ length: 360 }, (_, i) => i),
      [],
    );
    return {
      whole: merge(undefined, before).tokens_per_s,
      joined: merge(before, part(7, [30, 4], [holder("b", [1, 2])])),
      gap: merge(before, part(9, [1], [])) ?? "gap",
      earlier: merge(before, part(3, [1], [])) ?? "gap",
      restarted: merge(before, { ...part(7, [1], []), from: 99_999 }) ?? "gap",
      full: merge(long, part(358, [1, 2, 3], [])),
    };
  });
  check(found.whole.join() === "1,2,3", "the first answer is taken whole");
  check(found.joined.tokens_per_s.join() === "1,2,30,4" && found.joined.first === 5, JSON.stringify(found.joined));
  const holders = Object.fromEntries(found.joined.devices[0].holders.map(({ name, bytes }) => [name, bytes.join()]));
  check(holders.a === "7,7,0,0" && holders.b === ",,1,2", JSON.stringify(holders));
  check(found.gap === "gap" && found.earlier === "gap" && found.restarted === "gap", "parts that do not meet");
  check(found.full.tokens_per_s.length === 360 && found.full.first === 1, "an hour and no more");
  check(found.full.tokens_per_s.slice(-4).join() === "357,1,2,3", found.full.tokens_per_s.slice(-4).join());
}

/** Markdown that is nested, not finished, or no markdown at all. */
export async function markdown_cases({ boss, page }) {
  await open(page, boss);
  const faults = await page.evaluate(async () => {
    const { blocks, blockNode } = await import("/dashboard/markdown.js");
    const shown = (text) => {
      const host = document.createElement("div");
      host.append(...blocks(text).map((block) => blockNode(block)));
      return host.innerHTML.replaceAll(/ (tabindex|role|aria-label|scope|rel|target|referrerpolicy)="[^"]*"/g, "");
    };
    const cases = [
      ["plain", "<p>plain</p>"],
      ["a\nb\n\nc", "<p>a\nb</p><p>c</p>"],
      ["2 * 3 * 4 and snake_case_name", "<p>2 * 3 * 4 and snake_case_name</p>"],
      ["*a* _b_ **c** ~~d~~ `e`", "<p><em>a</em> <em>b</em> <strong>c</strong> <s>d</s> <code>e</code></p>"],
      ["**a *b* c**", "<p>**a <em>b</em> c**</p>"],
      ["``a ` b``", "<p><code>a ` b</code></p>"],
      ["```js\nlet a;\n", "<pre><code>let a;\n</code></pre>"],
      ["~~~\n# no heading\n~~~\nafter", "<pre><code># no heading</code></pre><p>after</p>"],
      ["- a\n  - b\n- c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"],
      ["3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'],
      ["---", "<hr>"],
      [
        "a | b\n--|--\n1 | 2 | 3\n4",
        "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>",
      ],
      ["[a](https://b.c/d) [x](data:text/html,y)", '<p><a href="https://b.c/d">a</a> [x](data:text/html,y)</p>'],
      ["[a](JaVaScRiPt:alert(1))", "<p>[a](JaVaScRiPt:alert(1))</p>"],
      ["&lt;b&gt; <b>", "<p>&amp;lt;b&amp;gt; &lt;b&gt;</p>"],
    ];
    const wrong = cases.map(([text, expected]) => [text, expected, shown(text)]);
    const deep = shown("> ".repeat(5_000) + "x");
    const began = performance.now();
    shown("*".repeat(20_000));
    shown("[".repeat(20_000));
    shown("`".repeat(20_000));
    shown("| ".repeat(5_000) + "\n" + "-|".repeat(5_000));
    const took = performance.now() - began;
    return {
      wrong: wrong.filter(([, expected, got]) => !got.includes(expected)),
      deep: deep.length,
      took,
    };
  });
  check(faults.wrong.length === 0, faults.wrong.map((one) => one.join("\n  ")).join("\n"));
  check(faults.deep > 5_000 && faults.took < 2_000, JSON.stringify([faults.deep, faults.took]));
}

/** Events that are cut anywhere. */
export async function events_in_pieces({ boss, page }) {
  await open(page, boss);
  const all = await page.evaluate(async () => {
    const { events } = await import("/dashboard/sse.js");
    const text =
      ': a comment\n\nid: 7\r\nevent: slot\r\ndata: {"a":\r\ndata: "ü"}\r\n\r\ndata: x\n\ndata: unfinished\n';
    const bytes = new TextEncoder().encode(text);
    const results = [];
    for (const size of [1, 2, 3, 5, 1_000]) {
      const stream = new ReadableStream({
        start(controller) {
          for (let i = 0; i < bytes.length; i += size) controller.enqueue(bytes.slice(i, i + size));
          controller.close();
        },
      });
      const got = [];
      for await (const event of events(stream)) got.push(event);
      results.push(JSON.stringify(got));
    }
    return results;
  });
  const expected = [
    { comment: "a comment" },
    { event: "slot", data: '{"a":\n"ü"}', id: "7" },
    { event: "message", data: "x" },
  ];
  check(
    all.every((one) => one === JSON.stringify(expected)),
    all.join("\n"),
  );
}

/** Streamed layers stand in their slot, with the figures of the worker's last report. */
export async function streamed_layers({ boss, page }) {
  await boss.ask("POST", "/api/v1/load", { model_name: "quick" });
  const { slots } = (await boss.ask("GET", "/api/v1/slots")).body;
  const layers = {
    resident_layers: 10,
    streamed_layers: 22,
    step_bytes: 3 << 29,
    bytes_per_second: 2 ** 31,
    overlap: 0.97,
    store: "direct reads",
  };
  const streamed = slots.map((slot) => ({ ...slot, streamed: true, layers }));
  await page.route("**/api/v1/slots", (route) => route.fulfill({ json: { slots: streamed } }));
  await open(page, boss);
  await page.evaluate(async (slot) => (await import("/dashboard/store.js")).takeEvent("slot", slot), streamed[0]);
  const cell = page.locator('tr[data-slot="quick"]');
  await says(cell, /22 streamed, 10 stay[\s\S]*1\.50 GiB a step, 2\.00 GiB\/s from direct reads, 97 % overlap/);
  await page.unroute("**/api/v1/slots");
}

/** Lists keep within their bounds, whatever the server sends. */
export async function bounded_lists({ boss, page }) {
  await open(page, boss, "decisions");
  const kept = await page.evaluate(async () => {
    const { store, takeEvent } = await import("/dashboard/store.js");
    for (let i = 1; i <= 20_000; i += 1) {
      takeEvent("decision", { seq: 1e6 + i, at: 1, what: "load", model: `m${i}`, request: null, reasons: ["r"] });
      takeEvent("model", { id: `m${i}`, status: "unloaded", failure: null });
      takeEvent("queue", { id: `m${i}`, queued: 1, running: 0 });
    }
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    const rows = document.querySelectorAll(".decision").length;
    return [store.decisions.length, store.models.size, store.queues.size, rows];
  });
  check(kept.join() === "500,5000,5000,200", kept.join());
}

/** A hidden page asks nothing, and one that is shown again asks at once. */
export async function hidden_page_asks_nothing({ boss, page }) {
  await open(page, boss);
  await page.waitForFunction(() => globalThis.modelBoss.store.views.queue);
  const hide = (hidden) =>
    page.evaluate((value) => {
      Object.defineProperty(document, "hidden", { get: () => value, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
  await hide(true);
  let asked = 0;
  const count = () => (asked += 1);
  page.on("request", count);
  // The queue would be read every three seconds.
  await page.waitForTimeout(3_500);
  check(asked === 0, `${asked} requests while hidden`);
  const again = page.waitForRequest((request) => request.url().includes("/api/v1/queue"));
  await hide(false);
  await again;
  page.off("request", count);
}
