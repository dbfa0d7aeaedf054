// needs: ollama@0.6.4
// speaks: Ollama
// when: always
import { Ollama } from "ollama";
import { ASKED, ROOT, expect } from "./question.mjs";

const client = new Ollama({ host: ROOT });
const options = { temperature: 0, num_predict: 40 };
expect((await client.chat({ model: "guide", messages: ASKED, options })).message.content);
let text = "";
for await (const part of await client.chat({ model: "guide", messages: ASKED, options, stream: true })) {
  text += part.message.content;
}
expect(text);
if ((await client.pull({ model: "guide" })).status !== "success") throw new Error("not pulled");
