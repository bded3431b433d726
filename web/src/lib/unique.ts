/** A unique key. Pure except for randomness. */

const BYTES = 16;

/** Unlike `crypto.randomUUID`, this is available over plain HTTP too. */
export function unique(): string {
  const chance = crypto.getRandomValues(new Uint8Array(BYTES));
  return Array.from(chance, (each) => each.toString(16).padStart(2, "0")).join("");
}
