// needs: @anthropic-ai/sdk@1.12.0
// speaks: Anthropic
// when: always
import Anthropic from "@anthropic-ai/sdk";
import { ASKED, ROOT, expect } from "./question.mjs";

const client = new Anthropic({ baseURL: ROOT, apiKey: "unused", maxRetries: 0 });
const options = { model: "guide", max_tokens: 40, messages: ASKED };
expect((await client.messages.create({ ...options, temperature: 0 })).content[0].text);
const stream = client.messages.stream({ ...options });
const last = await stream.finalMessage();
if (!(last.usage.input_tokens > 0)) throw new Error(JSON.stringify(last.usage));
if ((await client.models.list()).data[0].type !== "model") throw new Error("no models");
