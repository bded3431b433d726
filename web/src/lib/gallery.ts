/** The examples as the gallery calls them: their order is the server's, their titles are people's. */

const TITLES: Record<string, string> = {
  lora_sft: "LoRA fine-tuning",
  sft: "Full fine-tuning",
  dpo: "Preferences (DPO)",
  ppo: "Rewards (PPO)",
  align: "Reward model and GRPO",
  two_stage_lora: "Two stages",
  diamond: "Two at once, then compared",
  evaluate: "Train, measure, gate",
  merge: "Merge adapters",
  pipeline: "Synthetic data to a model",
  synthesise: "Synthetic rows",
  data: "Prepare data",
  federated: "Federation",
  rag: "Retrieval",
  embedding: "Embeddings",
  chat: "Chat with a model",
  conditional: "Conditions",
  fan_out: "Parts on many workers",
  api: "Call an API",
  python: "Your own Python",
  echo: "Echo",
};

export function titleOf(name: string): string {
  const plain = name.replaceAll("_", " ");
  return TITLES[name] ?? plain.charAt(0).toUpperCase() + plain.slice(1);
}

/** The first sentence of a description. */
export function firstSentence(text: string): string {
  return /^.*?[.;:](?=\s|$)/.exec(text)?.[0].replace(/[;:]$/, ".") ?? text;
}
