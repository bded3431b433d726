/** A button that opens a list of actions. */
import { type ReactNode, useEffect, useRef } from "react";

export function Menu({ label, children }: { label: string; children: ReactNode }) {
  const box = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = () => {
      if (box.current) box.current.open = false;
    };
    const outside = (event: Event) => {
      if (!box.current?.contains(event.target as Node)) close();
    };
    const onEscape = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || !box.current?.open) return;
      // In a dialog, the key closes the menu and not the dialog.
      event.preventDefault();
      close();
      box.current.querySelector("summary")?.focus();
    };
    document.addEventListener("pointerdown", outside);
    document.addEventListener("focusin", outside);
    document.addEventListener("keydown", onEscape);
    return () => {
      document.removeEventListener("pointerdown", outside);
      document.removeEventListener("focusin", outside);
      document.removeEventListener("keydown", onEscape);
    };
  }, []);
  return (
    <details ref={box} className="menu">
      <summary aria-label={label} title={label}>
        <span aria-hidden="true">⋯</span>
      </summary>
      {/* biome-ignore lint/a11y/noStaticElementInteractions lint/a11y/useKeyWithClickEvents: the items are buttons; this closes the list after any of them */}
      <div
        className="items"
        onClick={() => {
          if (box.current) box.current.open = false;
        }}
      >
        {children}
      </div>
    </details>
  );
}
