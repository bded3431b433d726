/**
 * Streams of a window that nobody sees are closed, and opened again when somebody looks.
 *
 * Over HTTP/1.1 a browser has six connections to a server, in all windows together: a few that stand open in the
 * background would leave none for the one in front.
 */

/** Who goes to another window for a moment finds all as it was. */
export const RESTS_AFTER_MS = 10_000;

/** Open now, close a while after the window was hidden, open again when it is seen; the answer ends it. */
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
