/** Pages are loaded when they are first opened. While the server does not respond, loading waits instead of failing. */
import { lazyRouteComponent } from "@tanstack/react-router";
import { useEffect } from "react";
import { Loading } from "./states";

const RETRY_MS = 1000;

/** `name`: the export of the module that is the component. */
export function lazyPage<M extends Record<string, unknown>, K extends keyof M & string = "default" & keyof M>(
  load: () => Promise<M>,
  name = "default" as K,
) {
  return lazyRouteComponent(() => patiently(load, name), name);
}

async function patiently<M extends Record<string, unknown>>(load: () => Promise<M>, name: keyof M): Promise<M> {
  try {
    return await load();
  } catch (error) {
    // The server responds but has no such file: it was updated.
    if (await responds()) throw error;
  }
  do await new Promise((done) => window.setTimeout(done, RETRY_MS));
  while (!(await responds()));
  // Browsers remember a module that failed to load, until the page is reloaded.
  return load().catch(() => ({ [name]: Reload }) as unknown as M);
}

/** Reloads only once it is shown: a page is also loaded while the pointer is over its link. */
function Reload() {
  useEffect(() => location.reload(), []);
  return <Loading />;
}

function responds(): Promise<boolean> {
  return fetch("/healthz", { cache: "no-store" }).then(
    (answer) => answer.ok,
    () => false,
  );
}
