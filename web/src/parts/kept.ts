/** Unsent input, kept in this window: an expired session does not lose it. Or what a user keeps in this browser. */
import { type Dispatch, type SetStateAction, useEffect, useState } from "react";
import { useSession } from "./session";
import { toast } from "./toasts";

const PREFIX = "tunefleet.kept";

export interface Kept<T> {
  value: T;
  set: Dispatch<SetStateAction<T>>;
  /** Whether it existed when the page was opened. */
  found: boolean;
  forget: () => void;
}

/**
 * Like `useState`, for the logged-in user.
 *
 * `settled`: whether the current value is worth keeping. `store`: `localStorage` keeps it for later visits, too.
 */
export function useKept<T>(
  name: string,
  first: T,
  settled: (value: T) => boolean = () => true,
  store: Storage = sessionStorage,
): Kept<T> {
  const { info } = useSession();
  const key = keyOf(info.owner, name);
  const [before] = useState(() => store.getItem(key));
  const [found, setFound] = useState(before !== null);
  const [value, set] = useState<T>(() => (before === null ? first : (JSON.parse(before) as T)));
  const worth = settled(value) && value !== first;
  useEffect(() => {
    if (worth) keep(store, key, JSON.stringify(value));
    else if (value === first) store.removeItem(key);
  }, [store, key, value, first, worth]);
  const forget = () => {
    store.removeItem(key);
    setFound(false);
  };
  return { value, set, found, forget };
}

/** Clear it for the next user of this window. */
export function forgetKept(): void {
  for (const key of Object.keys(sessionStorage)) if (key.startsWith(PREFIX)) sessionStorage.removeItem(key);
}

/** Everything that a user keeps in this browser under names with a prefix: name → value. */
export function allKept<T>(owner: string | null | undefined, prefix: string): Map<string, T> {
  const start = keyOf(owner, "");
  const names = Object.keys(localStorage).filter((key) => key.startsWith(start + prefix));
  return new Map(names.map((key) => [key.slice(start.length), JSON.parse(localStorage.getItem(key) ?? "null") as T]));
}

export function forget(owner: string | null | undefined, name: string): void {
  localStorage.removeItem(keyOf(owner, name));
}

/** Keep a value under a name that no component shows yet. */
export function keepAs(owner: string | null | undefined, name: string, value: unknown): void {
  keep(localStorage, keyOf(owner, name), JSON.stringify(value));
}

function keyOf(owner: string | null | undefined, name: string): string {
  return [PREFIX, owner, name].join(" ");
}

function keep(store: Storage, key: string, text: string): void {
  try {
    store.setItem(key, text);
  } catch {
    toast("Draft not saved: browser storage is full", "bad", "Your text is lost when you leave this page.");
  }
}
