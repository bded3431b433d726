/** Whether the window is as narrow as a phone: graphs are then vertical. */
import { useSyncExternalStore } from "react";

const phone = window.matchMedia("(max-width: 720px)");

function subscribe(listener: () => void): () => void {
  phone.addEventListener("change", listener);
  return () => phone.removeEventListener("change", listener);
}

export function useIsPhone(): boolean {
  return useSyncExternalStore(subscribe, () => phone.matches);
}
