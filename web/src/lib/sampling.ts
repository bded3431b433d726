/** Sampling parameters of a chat, and their presets. Pure. */

export interface Sampling {
  system: string;
  temperature: string;
  top_p: string;
  max_tokens: string;
  seed: string;
}

export const PRESETS = {
  precise: { temperature: "0", top_p: "" },
  balanced: { temperature: "0.7", top_p: "0.95" },
  creative: { temperature: "1.1", top_p: "0.98" },
} as const;
export type Preset = keyof typeof PRESETS;
export const PRESET_NAMES: Record<Preset, string> = { precise: "Precise", balanced: "Balanced", creative: "Creative" };
export const PRESET_HINTS: Record<Preset, string> = {
  precise: "Always the most likely token: the same answer each time.",
  balanced: "Some variety; for most conversations.",
  creative: "Includes less likely tokens: for ideas and stories.",
};

export const FIRST_SAMPLING: Sampling = { system: "", ...PRESETS.balanced, max_tokens: "512", seed: "" };

/** The preset that the values are of; null: the user's own. */
export function presetOf({ temperature, top_p }: Sampling): Preset | null {
  const names = Object.keys(PRESETS) as Preset[];
  return names.find((name) => PRESETS[name].temperature === temperature && PRESETS[name].top_p === top_p) ?? null;
}

/** The fields of a request; an empty one takes the model's default. */
export function requestOf(sampling: Sampling): Record<string, number> {
  const { temperature, top_p, max_tokens, seed } = sampling;
  const given = Object.entries({ temperature, top_p, max_tokens, seed }).filter(([, value]) => value.trim() !== "");
  return Object.fromEntries(given.map(([name, value]) => [name, Number(value)]));
}
