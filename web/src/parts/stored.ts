/** Preferences of the logged-in user, kept in this browser. */
import { useSyncExternalStore } from "react";
import { useSession } from "./session";
import { toast } from "./toasts";

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

function parse(text: string): unknown {
  if (!parsed.has(text)) {
    try {
      parsed.set(text, JSON.parse(text));
    } catch {
      parsed.set(text, undefined);
    }
  }
  return parsed.get(text);
}

/**
 * Like `useState`, for all pages and windows of the user; another user of the browser has other values. `valid` checks
 * what an earlier version of the page may have stored.
 */
export function useStored<T>(name: string, first: T, valid: (value: unknown) => value is T): [T, (next: T) => void] {
  const { info } = useSession();
  const key = [PREFIX, info.owner, name].join(" ");
  const text = useSyncExternalStore(subscribe, () => localStorage.getItem(key));
  const found = text === null ? undefined : parse(text);
  const set = (next: T) => {
    try {
      localStorage.setItem(key, JSON.stringify(next));
    } catch {
      toast("Not saved: browser storage is full", "bad");
    }
    for (const listener of listeners) listener();
  };
  return [valid(found) ? found : first, set];
}

export function isTexts(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((each) => typeof each === "string");
}

export function isNumber(value: unknown): value is number {
  return typeof value === "number";
}

export function isFlag(value: unknown): value is boolean {
  return typeof value === "boolean";
}
