/**
 * Closes the streams of hidden windows and reopens them when the window is visible.
 *
 * Over HTTP/1.1 a browser has six connections to a server, shared by all windows: a few open ones in the background would
 * leave none for the visible window.
 */

/** A short switch to another window changes nothing. */
export const RESTS_AFTER_MS = 10_000;

/** Open now, close some time after the window is hidden, reopen when it is visible; the returned function stops this. */
export function whileVisible(open: () => void, close: () => void): () => void {
  let timer = 0;
  let closed = document.hidden;
  const change = () => {
    window.clearTimeout(timer);
    if (document.hidden) {
      timer = window.setTimeout(() => {
        closed = true;
        close();
      }, RESTS_AFTER_MS);
    } else if (closed) {
      closed = false;
      open();
    }
  };
  document.addEventListener("visibilitychange", change);
  if (!closed) open();
  return () => {
    window.clearTimeout(timer);
    document.removeEventListener("visibilitychange", change);
    if (!closed) close();
  };
}
