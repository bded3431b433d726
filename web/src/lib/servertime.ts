/** The server's time: events are stamped with it, so ages are computed from it and not from the local clock. */

/** A smaller difference is network latency. */
const ALIKE_MS = 2000;
let ahead = 0;

export function tellServerTime(at: string): void {
  const by = Date.parse(at) - Date.now();
  ahead = Math.abs(by) > ALIKE_MS ? by : 0;
}

export function serverNow(): number {
  return Date.now() + ahead;
}
