/** Groups the events of a task by its attempts. Pure. */
import type { AttemptView, EventView } from "../api/schema";

export interface AttemptEvents {
  /** `null`: before the first attempt. */
  attempt: AttemptView | null;
  /** Newest first; adjacent checkpoints are one entry. */
  entries: EventView[][];
}

/** An attempt has the events from its offer to the offer of the next one; newest attempt first. */
export function byAttempt(attempts: readonly AttemptView[], events: readonly EventView[]): AttemptEvents[] {
  const ordered = [...attempts].sort((a, b) => a.number - b.number);
  const offers = ordered.map((each) => Date.parse(each.offered_at));
  const groups: AttemptEvents[] = [null, ...ordered].map((attempt) => ({ attempt, entries: [] }));
  for (const event of events) {
    const at = Date.parse(event.at);
    const entries = groups[offers.filter((offered) => offered <= at).length]?.entries;
    const last = entries?.at(-1);
    if (last?.[0] && isCheckpoint(event) && isCheckpoint(last[0])) last.push(event);
    else entries?.push([event]);
  }
  for (const { entries } of groups) entries.reverse();
  return groups.filter(({ attempt, entries }) => attempt || entries.length > 0).reverse();
}

function isCheckpoint({ kind }: EventView): boolean {
  return kind.startsWith("checkpoint.");
}
