/** Pages are loaded when they are first opened. While the server does not respond, loading waits instead of failing. */
import { lazyRouteComponent } from "@tanstack/react-router";

const RETRY_MS = 1000;

/** `name`: the export of the module that is the component. */
export function lazyPage<M extends Record<string, unknown>, K extends keyof M = "default">(
  load: () => Promise<M>,
  name?: K,
) {
  return lazyRouteComponent(() => patiently(load), name);
}

async function patiently<M>(load: () => Promise<M>): Promise<M> {
  try {
    return await load();
  } catch (error) {
    // The server responds but has no such file: it was updated.
    if (await responds()) throw error;
  }
  do await new Promise((done) => window.setTimeout(done, RETRY_MS));
  while (!(await responds()));
  try {
    return await load();
  } catch {
    // Some browsers remember a module that failed to load.
    location.reload();
    return new Promise(() => {});
  }
}

function responds(): Promise<boolean> {
  return fetch("/healthz", { cache: "no-store" }).then(
    (answer) => answer.ok,
    () => false,
  );
}
