// needs: ai@6.0.326 @ai-sdk/openai-compatible@2.0.91
// speaks: OpenAI
// when: all
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import { QUESTION, ROOT, expect } from "./question.mjs";

const model = createOpenAICompatible({ name: "boss", baseURL: ROOT + "/v1", apiKey: "unused" })("guide");
const options = { model, prompt: QUESTION, temperature: 0, maxOutputTokens: 40, maxRetries: 0 };
expect((await generateText(options)).text);
let text = "";
for await (const piece of streamText(options).textStream) text += piece;
expect(text);
