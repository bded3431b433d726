/** Message input: Enter sends, Shift+Enter starts a new line. */
import { type KeyboardEvent, useRef, useState } from "react";

export function Ask({
  busy,
  disabled,
  onSay,
  onStop,
}: {
  busy: boolean;
  disabled: boolean;
  onSay: (question: string) => void;
  onStop: () => void;
}) {
  const [text, setText] = useState("");
  const box = useRef<HTMLTextAreaElement>(null);
  const send = () => {
    if (busy || disabled || !text.trim()) return;
    onSay(text);
    setText("");
    box.current?.focus();
  };
  const key = (event: KeyboardEvent) => {
    // During text composition, Enter belongs to the input method.
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    send();
  };
  return (
    <div className="ask">
      <textarea
        ref={box}
        aria-label="Message"
        placeholder="Message (Enter to send, Shift+Enter for a new line)"
        rows={2}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={key}
      />
      {busy ? (
        <button type="button" onClick={onStop}>
          Stop
        </button>
      ) : (
        <button type="button" className="primary" disabled={disabled || !text.trim()} onClick={send}>
          Send
        </button>
      )}
    </div>
  );
}
