// Coordinators with a simulated machine, each with a state of its own.

import { spawn } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";

const HERE = import.meta.dirname;

/** Port numbers that nobody uses at the moment. */
async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Waits until `look` gives a value; fails with `what` otherwise. */
export async function until(what, look, seconds = 15) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await look();
    if (value) return value;
    if (Date.now() > end) throw new Error(`not in ${seconds} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export class Boss {
  /** Starts a coordinator whose files are below `folder`. */
  static async start(bin, folder, { keys } = {}) {
    const boss = new Boss();
    boss.bin = bin;
    boss.folder = folder;
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder, { recursive: true });
    cpSync(join(HERE, "machine"), folder, { recursive: true });
    const manifest = (name, behaviour) => writeFileSync(join(folder, "manifests", `${name}.toml`), behaviour);
    const quoted = (text) => JSON.stringify(text);
    const hostile = readFileSync(join(HERE, "machine/hostile.txt"), "utf8");
    const head = (name, more = "") => `name = "${name}"\nbackend = "fake"\nvram = "1GiB"\n${more}[custom.fake]\n`;
    manifest("hostile", `${head("hostile")}reply = ${quoted(hostile)}\ntokens_per_s = 400\n`);
    manifest("thinker", `${head("thinker")}raw = { first = ${quoted(thinkingAnswer())} }\n`);
    if (keys) writeFileSync(join(folder, "api-keys"), keys);
    boss.port = await freePort();
    const workers = await freePort();
    const args = [
      "serve",
      "--simulate",
      join(folder, "gpus.toml"),
      "--manifests",
      join(folder, "manifests"),
      "--tasks",
      join(folder, "tasks.yaml"),
      "--port",
      boss.port,
      "--state-dir",
      join(folder, "state"),
      "--runtime-dir",
      join(folder, "run"),
      "--worker-ports",
      `${workers}-${workers + 40}`,
    ];
    if (keys) args.push("--api-keys", join(folder, "api-keys"));
    boss.args = args.map(String);
    await boss.up();
    return boss;
  }

  get url() {
    return `http://127.0.0.1:${this.port}`;
  }

  async up() {
    this.output = "";
    const environment = { ...process.env, RUST_LOG: "warn" };
    for (const name of Object.keys(environment)) if (name.startsWith("MODEL_BOSS_")) delete environment[name];
    this.process = spawn(join(this.bin, "model-boss"), this.args, {
      env: environment,
      stdio: ["ignore", "pipe", "pipe"],
    });
    const { process: child } = this;
    process.once("exit", () => child.kill("SIGKILL"));
    for (const stream of [this.process.stdout, this.process.stderr]) {
      stream.on("data", (data) => (this.output = (this.output + data).slice(-20_000)));
    }
    await until("the coordinator answers", async () => {
      if (this.process.exitCode !== null) throw new Error(`the coordinator ended:\n${this.output}`);
      return fetch(`${this.url}/live`).then(
        (answer) => answer.ok,
        () => false,
      );
    });
  }

  async down() {
    const { process: child } = this;
    if (child.exitCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGTERM");
    // A second signal ends requests that run.
    const timer = setTimeout(() => child.kill("SIGTERM"), 200);
    await ended;
    clearTimeout(timer);
  }

  /** A request to the API as another client sends it. */
  async ask(method, path, body, key) {
    const headers = { "content-type": "application/json" };
    if (key) headers.authorization = `Bearer ${key}`;
    const answer = await fetch(this.url + path, { method, headers, body: body && JSON.stringify(body) });
    return { status: answer.status, body: await answer.json() };
  }

  /** A chat as another client sends it; resolves with the status at its end. */
  chat(model, client, stream = true) {
    const body = { model, stream, messages: [{ role: "user", content: "?" }], x_client_id: client };
    const headers = { "content-type": "application/json" };
    const stop = new AbortController();
    const done = fetch(`${this.url}/v1/chat/completions`, {
      method: "POST",
      headers,
      body: JSON.stringify(body),
      signal: stop.signal,
    })
      .then(async (answer) => ({ status: answer.status, text: await answer.text() }))
      .catch(() => ({ status: 0, text: "" }));
    return { done, stop: () => stop.abort() };
  }

  /** A program that holds a lease until the process is ended. */
  lease(label, size, device) {
    const args = ["lease", "run", "--label", label, "--vram", size, "--device", device, "--", "sleep", "600"];
    const child = spawn(join(this.bin, "model-boss"), args, {
      env: { ...process.env, MODEL_BOSS_URL: this.url },
      stdio: "ignore",
    });
    process.once("exit", () => child.kill("SIGTERM"));
    const ended = new Promise((resolve) => child.once("exit", resolve));
    return { end: () => (child.kill("SIGTERM"), ended) };
  }
}

/** An answer with thoughts and a call of a tool, byte for byte. */
function thinkingAnswer() {
  const pieces = [
    { role: "assistant", content: "" },
    { reasoning_content: "The user asks for the " },
    { reasoning_content: "weather: <b>call the tool</b>." },
    { content: "Let me look." },
    { tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "get_weather", arguments: "" } }] },
    { tool_calls: [{ index: 0, function: { arguments: '{"city": "Ghe' } }] },
    { tool_calls: [{ index: 0, function: { arguments: 'nt"}' } }] },
  ];
  const head = { id: "chatcmpl-1", object: "chat.completion.chunk", created: 1, model: "thinker" };
  const event = (delta, finish = null) =>
    `data: ${JSON.stringify({ ...head, choices: [{ index: 0, delta, logprobs: null, finish_reason: finish }] })}\n\n`;
  const body = pieces.map((piece) => event(piece)).join("") + event({}, "tool_calls") + "data: [DONE]\n\n";
  return `HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n${body}`;
}
