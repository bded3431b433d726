/** Whether a key belongs to what has the focus: a field, an editor, a dialog or a menu. */
export function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable ||
      target.closest("input:not([type=checkbox]), select, textarea, dialog, [popover], .cm-editor") !== null)
  );
}
