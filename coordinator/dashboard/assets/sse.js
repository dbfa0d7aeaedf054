// Server-sent events from a stream of bytes.

/** The longest event in characters: a longer one is a fault of the server, and must not fill the memory. */
const LONGEST = 8 << 20;

/** Reads events: `{ event, data, id }`, and `{ comment }` for comments. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let now = { event: "message", data: [], id: undefined };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      if (rest.length > LONGEST) throw new Error("an event of the server has no end");
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
        if (line === "") {
          if (now.data.length) yield { ...now, data: now.data.join("\n") };
          now = { event: "message", data: [], id: undefined };
        } else if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
        else {
          const colon = line.indexOf(":");
          const field = colon < 0 ? line : line.slice(0, colon);
          const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
          if (field === "data") now.data.push(text);
          else if (field === "event") now.event = text;
          else if (field === "id") now.id = text;
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
