/** Copy to the clipboard. Over plain HTTP there is no clipboard access: the text is selected instead. */
import { type RefObject, useEffect, useRef, useState } from "react";
import { toast } from "./toasts";

const SAID_MS = 1500;

/** `shown`: the element that contains only the text. */
export function useCopy<E extends HTMLElement>(
  text: string,
): { shown: RefObject<E | null>; copied: boolean; copy: () => void } {
  const shown = useRef<E>(null);
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = window.setTimeout(() => setCopied(false), SAID_MS);
    return () => window.clearTimeout(timer);
  }, [copied]);
  const select = () => {
    if (shown.current) window.getSelection()?.selectAllChildren(shown.current);
    toast("The browser does not allow copying", "plain", "The text is selected. Copy it with Ctrl+C.");
  };
  const copy = () => {
    // Missing except on HTTPS and localhost, despite its type.
    const clipboard = navigator.clipboard as Clipboard | undefined;
    if (clipboard) void clipboard.writeText(text).then(() => setCopied(true), select);
    else select();
  };
  return { shown, copied, copy };
}
