/** The server's time: what happened is stamped by it, so ages are told from it and not from this machine's clock. */

/** What the way of a message takes is no other clock. */
const ALIKE_MS = 2000;
let ahead = 0;

export function tellServerTime(at: string): void {
  const by = Date.parse(at) - Date.now();
  ahead = Math.abs(by) > ALIKE_MS ? by : 0;
}

export function serverNow(): number {
  return Date.now() + ahead;
}
