// The question that every program asks the built-in model, and the coordinator that it asks.
export const ROOT = process.env.MODEL_BOSS_ROOT;
export const QUESTION = "Which port does model-boss listen on?";
export const ASKED = [{ role: "user", content: QUESTION }];

export function expect(answer) {
  if (!String(answer).includes("8210")) throw new Error(`the built-in model knows it: ${answer}`);
}
