/** Rated answers of chats, and the preference pairs that they make. Pure. */

export type Rating = 1 | -1;
export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

/** The rated answers to one message. */
export interface Rated {
  /** Id of the turn. */
  id: string;
  /** The fine-tuned model, for the name of the dataset. */
  model: string;
  /** Whether the chat had no chat template: prompt and answers are plain text. */
  plain: boolean;
  /** The conversation up to the message. */
  messages: Message[];
  answers: { text: string; rating?: Rating }[];
}

export interface Preference {
  prompt: string | Message[];
  chosen: string | Message[];
  rejected: string | Message[];
}

/** The ratings after a change; a turn without a rating is dropped. */
export function rated(all: readonly Rated[], one: Rated): Rated[] {
  const others = all.filter((each) => each.id !== one.id);
  return one.answers.some((each) => each.rating) ? [...others, one] : others;
}

/**
 * Preference pairs: each good answer with each bad one to the same message.
 *
 * If only good or only bad answers are rated, the others count as worse or better: a thumbs-up on one of two answers is
 * a choice.
 */
export function preferencesOf(all: readonly Rated[]): Preference[] {
  const texts = all.every(({ plain, messages }) => plain && messages.length === 1);
  return all.flatMap(({ messages, answers }) => {
    const said = answers.filter((each) => each.text.trim());
    const good = said.filter((each) => each.rating === 1);
    const bad = said.filter((each) => each.rating === -1);
    const unrated = said.filter((each) => !each.rating);
    const chosen = new Set((good.length ? good : unrated).map((each) => each.text.trim()));
    const rejected = new Set((bad.length ? bad : unrated).map((each) => each.text.trim()));
    const written = (content: string) => (texts ? content : [{ role: "assistant" as const, content }]);
    const prompt = texts ? (messages[0]?.content ?? "") : messages;
    return [...chosen].flatMap((better) =>
      [...rejected]
        .filter((worse) => worse !== better)
        .map((worse) => ({ prompt, chosen: written(better), rejected: written(worse) })),
    );
  });
}

/** The file of a preference dataset. */
export function jsonLines(rows: readonly Preference[]): string {
  return rows.map((row) => `${JSON.stringify(row)}\n`).join("");
}
