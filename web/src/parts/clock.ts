/** One clock for all ages and durations: it ticks while the page is visible. */
import { useSyncExternalStore } from "react";
import { serverNow } from "../lib/servertime";

let now = serverNow();
let timer = 0;
const listeners = new Set<() => void>();

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  if (!timer)
    timer = window.setInterval(() => {
      now = serverNow();
      for (const each of listeners) each();
    }, 1000);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      window.clearInterval(timer);
      timer = 0;
    }
  };
}

export function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}
