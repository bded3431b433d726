/** The title of the browser tab: what the page shows, first. */
import { useEffect } from "react";

const NAME = "Tunefleet";

/** `undefined`: a page inside sets it. */
export function useTitle(text: string | undefined): void {
  useEffect(() => {
    if (text === undefined) return;
    document.title = `${text} · ${NAME}`;
    return () => {
      document.title = NAME;
    };
  }, [text]);
}
