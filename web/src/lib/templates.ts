/** The examples that need nothing but the package, as templates: a document's first comment says what it does. */

const FILES = import.meta.glob<string>("../../../examples/{lora_sft,sft,workflows/*}.yaml", {
  query: "?raw",
  import: "default",
  eager: true,
});

/** In the order in which people meet them; what needs code, a service or another environment is left out. */
const SHOWN: readonly (readonly [string, string])[] = [
  ["lora_sft", "LoRA fine-tuning"],
  ["sft", "Full fine-tuning"],
  ["dpo", "Preferences (DPO)"],
  ["align", "Reward model and GRPO"],
  ["two_stage_lora", "Two stages"],
  ["diamond", "Two at once, then compared"],
  ["evaluate", "Train, measure, gate"],
  ["merge", "Merge adapters"],
  ["pipeline", "From prompts to a model"],
  ["synthesise", "Synthetic rows"],
  ["data", "Prepare data"],
  ["federated", "Federation"],
  ["rag", "Retrieval"],
  ["embedding", "Embeddings"],
  ["chat", "Chat with a model"],
  ["conditional", "Conditions"],
  ["fan_out", "Parts on many workers"],
];

export interface Template {
  id: string;
  title: string;
  about: string;
  text: string;
}

export const TEMPLATES: readonly Template[] = SHOWN.flatMap(([id, title]) => {
  const path = Object.keys(FILES).find((each) => each.endsWith(`/${id}.yaml`));
  const text = path ? FILES[path] : undefined;
  return text ? [{ id, title, about: firstSentence(text), text }] : [];
});

/** The first sentence of the comment that a document begins with. */
export function firstSentence(text: string): string {
  const lines: string[] = [];
  for (const line of text.split("\n")) {
    if (!line.startsWith("# ")) break;
    lines.push(line.slice(2));
  }
  const all = lines.join(" ");
  return /^.*?[.;:](?=\s|$)/.exec(all)?.[0].replace(/[;:]$/, ".") ?? all;
}
