/**
 * The live connection: one stream of server-sent events keeps all cached data fresh.
 *
 * Each message carries a position. A broken connection resumes from that position, so no message is lost. If the client
 * missed too many messages, the server reports it and everything is refetched.
 */
import type { QueryClient } from "@tanstack/react-query";
import { tellServerTime } from "../lib/servertime";
import { whileVisible } from "../lib/visible";
import { News } from "./news";
import { forgetNews, tellPoints } from "./points";
import { Refresher } from "./refresh";
import type { LiveCampaigns, LiveEvents, LiveHello, LiveLoads, LivePoints, LiveProgress } from "./schema";

/** `outdated`: open, but the server runs another version than the one that served this page. */
export type LiveState = "connecting" | "open" | "outdated" | "lost";

const FIRST_RETRY_MS = 1000;
const LONGEST_RETRY_MS = 15000;
/** Leaving one page and opening another changes the followed tasks; both changes share one new connection. */
const SETTLE_MS = 20;

let state: LiveState = "connecting";
let place: string | undefined;
let version: string | undefined;
let reopen: (() => void) | undefined;
let retry: (() => void) | undefined;
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

/** Retry a lost connection now. */
export function reconnect(): void {
  retry?.();
}

function become(next: LiveState): void {
  if (state === next) return;
  state = next;
  for (const listener of listeners) listener();
}

/** Subscribe to the points of tasks; the returned function unsubscribes. */
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
 * Refetch a task's points once the stream follows them.
 *
 * A request in flight may predate the subscription; without data, it would not be restarted automatically.
 */
async function readAnew(client: QueryClient, id: string): Promise<void> {
  const queryKey = ["metrics", id];
  await client.cancelQueries({ queryKey });
  await client.invalidateQueries({ queryKey });
}

/** Refetch everything except points, for the same reason. The session is not part of the stream. */
async function readAll(client: QueryClient): Promise<void> {
  const predicate = ({ queryKey }: { queryKey: readonly unknown[] }) =>
    !["metrics", "info"].includes(String(queryKey[0]));
  await client.cancelQueries({ predicate });
  await client.invalidateQueries({ predicate });
}

/** Open the stream; the returned function closes it. */
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
      // Changes while disconnected are not sent; points are sent from the last known one.
      if (missed || again || first) void readAll(client);
      first = false;
      // A task that was removed while shown: refetch so that the page shows it.
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
      // The browser reconnects only after a broken connection, not after a response such as 502 or 401.
      if (opened.readyState === EventSource.CLOSED) {
        retryTimer = window.setTimeout(open, retryMs);
        retryMs = Math.min(LONGEST_RETRY_MS, retryMs * 2);
      }
    };
  };
  reopen = () => {
    // A suspended stream picks up the followed tasks when it reopens.
    if (!source) return;
    if (asked.size !== followed.size || [...asked].some((id) => !followed.has(id))) open();
  };
  retry = open;
  const end = whileVisible(open, () => {
    window.clearTimeout(retryTimer);
    source?.close();
    source = undefined;
    // It may have been suspended for days.
    first = true;
  });
  return () => {
    reopen = undefined;
    retry = undefined;
    end();
    place = undefined;
    become("connecting");
  };
}
