/** Preferences of the logged-in user, kept in this browser. */
import { useSyncExternalStore } from "react";
import { useSession } from "./session";

const PREFIX = "tunefleet.preference";
const listeners = new Set<() => void>();

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  window.addEventListener("storage", listener);
  return () => {
    listeners.delete(listener);
    window.removeEventListener("storage", listener);
  };
}

/** Parsed values by their text, so that an unchanged one keeps its identity. */
const parsed = new Map<string, unknown>();

function parse<T>(text: string): T {
  if (!parsed.has(text)) parsed.set(text, JSON.parse(text));
  return parsed.get(text) as T;
}

/** Like `useState`, for all pages and windows of the user; another user of the browser has other values. */
export function useStored<T>(name: string, first: T): [T, (next: T) => void] {
  const { info } = useSession();
  const key = [PREFIX, info.owner, name].join(" ");
  const text = useSyncExternalStore(subscribe, () => localStorage.getItem(key));
  const set = (next: T) => {
    localStorage.setItem(key, JSON.stringify(next));
    for (const listener of listeners) listener();
  };
  return [text === null ? first : parse<T>(text), set];
}
