/** A key that nobody else makes. Pure but for chance. */

const BYTES = 16;

/** Unlike `crypto.randomUUID`, this is there over plain HTTP too. */
export function unique(): string {
  const chance = crypto.getRandomValues(new Uint8Array(BYTES));
  return Array.from(chance, (each) => each.toString(16).padStart(2, "0")).join("");
}
