/** A prompt as people read it: the messages behind the tokens of a chat template. Pure. */

export interface PromptPart {
  /** Null: plain text. */
  role: string | null;
  text: string;
}

/** The start of a message, in the templates of ChatML, Llama 3, Gemma, Phi and Llama 2. */
const STARTS =
  /<\|im_start\|>(\w+)\n?|<\|start_header_id\|>(\w+)<\|end_header_id\|>\s*|<start_of_turn>(\w+)\n?|<\|(system|user|assistant|tool)\|>\n?|(\[INST\]|\[\/INST\])/g;
const OTHERS = /<\|[a-z_0-9]+\|>|<end_of_turn>|<\/?s>|<(?:bos|eos|pad)>|<<\/?SYS>>/g;
const ROLES: Record<string, string> = { "[INST]": "user", "[/INST]": "assistant", model: "assistant" };

export function partsOf(prompt: string): PromptPart[] {
  const starts = [...prompt.matchAll(STARTS)];
  const clean = (text: string) => text.replace(OTHERS, "").trim();
  const found: PromptPart[] = [{ role: null, text: clean(prompt.slice(0, starts[0]?.index)) }];
  starts.forEach((start, at) => {
    const name = start.slice(1).find((each) => each !== undefined) ?? "";
    const text = clean(prompt.slice(start.index + start[0].length, starts[at + 1]?.index));
    found.push({ role: ROLES[name] ?? name, text });
  });
  // The last one is empty: the answer goes there.
  return found.filter((part) => part.text !== "");
}

/** The last message of the user, as a title. */
export function questionOf(prompt: string): string {
  const parts = partsOf(prompt);
  return (parts.findLast((part) => part.role === "user") ?? parts.at(-1))?.text ?? "";
}
