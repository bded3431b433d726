/**
 * The live connection: one stream of server-sent events tells all that happens, and keeps what the page has fetched
 * fresh.
 *
 * Each message carries a place: up to where everything is known. A connection that broke goes on there, so nothing is
 * missed, whatever happened in between. Who has missed too much is told so, and reads everything anew.
 */
import type { QueryClient } from "@tanstack/react-query";
import { tellServerTime } from "../lib/servertime";
import { whileVisible } from "../lib/visible";
import { News } from "./news";
import { forgetNews, tellPoints } from "./points";
import { Refresher } from "./refresh";
import type { LiveCampaigns, LiveEvents, LiveHello, LiveLoads, LivePoints, LiveProgress } from "./schema";

/** `outdated`: open, to a server that is another version than the one that this page came from. */
export type LiveState = "connecting" | "open" | "outdated" | "lost";

const FIRST_RETRY_MS = 1000;
const LONGEST_RETRY_MS = 15000;
/** A page that goes and one that comes change whose points are wanted: both together are one new connection. */
const SETTLE_MS = 20;

let state: LiveState = "connecting";
let place: string | undefined;
let version: string | undefined;
let reopen: (() => void) | undefined;
let settling = 0;
const listeners = new Set<() => void>();
const followed = new Map<string, number>();

export function liveState(): LiveState {
  return state;
}

export function onLiveState(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function become(next: LiveState): void {
  if (state === next) return;
  state = next;
  for (const listener of listeners) listener();
}

/** Have the points of tasks told as they are logged; the answer ends it. */
export function followPoints(ids: readonly string[]): () => void {
  const change = (by: number) => {
    for (const id of ids) {
      const count = (followed.get(id) ?? 0) + by;
      if (count > 0) followed.set(id, count);
      else followed.delete(id);
    }
    window.clearTimeout(settling);
    settling = window.setTimeout(() => reopen?.(), SETTLE_MS);
  };
  change(1);
  return () => change(-1);
}

/**
 * Read a task's points now that what follows is told.
 *
 * A reading that is under way may have looked before: without an answer yet, it would not be begun again by itself.
 */
async function readAnew(client: QueryClient, id: string): Promise<void> {
  const queryKey = ["metrics", id];
  await client.cancelQueries({ queryKey });
  await client.invalidateQueries({ queryKey });
}

/** Read all but the points anew, for the same reason. Who is logged in is no part of what the stream tells. */
async function readAll(client: QueryClient): Promise<void> {
  const predicate = ({ queryKey }: { queryKey: readonly unknown[] }) =>
    !["metrics", "info"].includes(String(queryKey[0]));
  await client.cancelQueries({ predicate });
  await client.invalidateQueries({ predicate });
}

/** Open the stream; the answer closes it. */
export function follow(client: QueryClient): () => void {
  const refresher = new Refresher(client);
  const news = new News(client);
  let source: EventSource | undefined;
  let asked: ReadonlySet<string> = new Set();
  let told: ReadonlySet<string> = new Set();
  let retryMs = FIRST_RETRY_MS;
  let retryTimer = 0;
  let first = true;

  const open = () => {
    window.clearTimeout(retryTimer);
    source?.close();
    const wanted = new Set(followed.keys());
    asked = wanted;
    const query = new URLSearchParams();
    if (place !== undefined) query.set("after", place);
    if (wanted.size) query.set("points", [...wanted].join(","));
    const opened = new EventSource(`/api/v1/live?${query}`);
    source = opened;
    const on = <T>(kind: string, take: (message: T) => void) =>
      opened.addEventListener(kind, (message: MessageEvent<string>) => {
        place = message.lastEventId || place;
        take(JSON.parse(message.data) as T);
      });
    on<LiveHello>("hello", ({ missed, version: its, now, unknown }) => {
      const again = state === "lost";
      retryMs = FIRST_RETRY_MS;
      version ??= its;
      become(version === its ? "open" : "outdated");
      tellServerTime(now);
      if (missed) void client.resetQueries({ queryKey: ["metrics"] });
      // What changed while nobody listened is not told; points are told from where they were known.
      if (missed || again || first) void readAll(client);
      first = false;
      // A task that was removed while it was shown: the page says so.
      for (const id of unknown ?? []) void client.resetQueries({ queryKey: ["task", id] });
      for (const id of wanted) if (!told.has(id)) void readAnew(client, id);
      for (const id of told) if (!wanted.has(id)) forgetNews(id);
      told = wanted;
    });
    on<LiveEvents>("events", ({ events }) => {
      refresher.events(events);
      news.events(events);
    });
    on<LiveCampaigns>("campaigns", (message) => news.campaigns(message));
    on<LiveProgress>("progress", ({ tasks }) => refresher.progress(tasks));
    on<LiveLoads>("loads", ({ workers }) => refresher.loads(workers));
    on<LivePoints>("points", (message) => tellPoints(client, message));
    opened.onerror = () => {
      become("lost");
      void client.invalidateQueries({ queryKey: ["info"] });
      // The browser itself goes on only after a broken connection, not after an answer such as 502 or 401.
      if (opened.readyState === EventSource.CLOSED) {
        retryTimer = window.setTimeout(open, retryMs);
        retryMs = Math.min(LONGEST_RETRY_MS, retryMs * 2);
      }
    };
  };
  reopen = () => {
    // One that rests is opened with all that is followed then.
    if (!source) return;
    if (asked.size !== followed.size || [...asked].some((id) => !followed.has(id))) open();
  };
  const end = whileVisible(open, () => {
    window.clearTimeout(retryTimer);
    source?.close();
    source = undefined;
    // It may have rested for days.
    first = true;
  });
  return () => {
    reopen = undefined;
    end();
    place = undefined;
    become("connecting");
  };
}
