/** A button that opens a small panel below it; Escape and a click elsewhere close it. */
import { type ReactNode, useId, useRef, useState } from "react";
import "../styles/edit.css";

const MARGIN_PX = 8;

export function Popover({
  label,
  title,
  disabled,
  children,
}: {
  label: ReactNode;
  title?: string;
  disabled?: boolean;
  /** The content, which is rendered while it is open. */
  children: (close: () => void) => ReactNode;
}) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const panel = useRef<HTMLDivElement>(null);
  const [open, setOpen] = useState(false);
  const place = () => {
    const at = button.current?.getBoundingClientRect();
    const it = panel.current;
    if (!at || !it) return;
    const left = Math.min(at.left, window.innerWidth - it.offsetWidth - MARGIN_PX);
    it.style.left = `${Math.max(MARGIN_PX, left)}px`;
    it.style.top = `${at.bottom + 4}px`;
    it.style.maxHeight = `${window.innerHeight - at.bottom - 4 - MARGIN_PX}px`;
  };
  return (
    <>
      <button
        ref={button}
        type="button"
        popoverTarget={id}
        aria-expanded={open}
        aria-haspopup="dialog"
        {...{ title, disabled }}
      >
        {label}
      </button>
      <div
        ref={panel}
        id={id}
        className="popover"
        popover="auto"
        role="dialog"
        aria-label={typeof label === "string" ? label : title}
        onToggle={(event) => {
          const opened = event.newState === "open";
          setOpen(opened);
          if (opened) requestAnimationFrame(place);
        }}
      >
        {open && children(() => panel.current?.hidePopover())}
      </div>
    </>
  );
}
