// needs: openai@6.49.0
// speaks: OpenAI
// when: always
import OpenAI from "openai";
import { ASKED, ROOT, expect } from "./question.mjs";

const client = new OpenAI({ baseURL: ROOT + "/v1", apiKey: "unused", maxRetries: 0 });
const options = { model: "guide", temperature: 0, max_tokens: 40, messages: ASKED };
expect((await client.chat.completions.create(options)).choices[0].message.content);
let text = "";
for await (const chunk of await client.chat.completions.create({ ...options, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
expect(text);
