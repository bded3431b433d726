/** Titles of the examples in the gallery; the server defines their order. */

const TITLES: Record<string, string> = {
  lora_sft: "LoRA fine-tuning",
  sft: "Full fine-tuning",
  dpo: "Preferences (DPO)",
  ppo: "Rewards (PPO)",
  align: "Reward model and GRPO",
  two_stage_lora: "Two stages",
  diamond: "Parallel runs, compared",
  evaluate: "Train, evaluate, gate",
  merge: "Merge adapters",
  push: "Train, merge, publish",
  pipeline: "Train on synthetic data",
  synthesise: "Synthetic data",
  data: "Prepare data",
  federated: "Federation",
  rag: "Retrieval",
  embedding: "Embeddings",
  chat: "Chat with a model",
  conditional: "Conditional stages",
  fan_out: "Map over workers",
  api: "Call an API",
  python: "Custom Python",
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
