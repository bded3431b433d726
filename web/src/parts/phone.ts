/** Whether the window is as narrow as a phone's: a drawing then goes downwards. */
import { useSyncExternalStore } from "react";

const phone = window.matchMedia("(max-width: 720px)");

function subscribe(listener: () => void): () => void {
  phone.addEventListener("change", listener);
  return () => phone.removeEventListener("change", listener);
}

export function useIsPhone(): boolean {
  return useSyncExternalStore(subscribe, () => phone.matches);
}
