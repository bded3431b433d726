/** Whether a key belongs to a field, an editor, or a dialog or menu that is open. */
export function isTyping(target: EventTarget | null): boolean {
  // A button that is disabled by its own click leaves the focus to the page while its menu is still open.
  if (document.querySelector("dialog[open], :popover-open")) return true;
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || target.closest("input:not([type=checkbox]), select, textarea, .cm-editor") !== null)
  );
}
