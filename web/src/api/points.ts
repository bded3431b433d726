/** The points of tasks that a page shows: read once, then told one by one. */
import type { QueryClient } from "@tanstack/react-query";
import { type Point, told } from "../lib/series";
import type { LivePoints, MetricsView } from "./schema";

export interface Metrics {
  names: string[];
  points: Point[];
  /** Whether the server has more points than these: a zoom asks for its own. */
  thinned: boolean;
}

/** The series that the charts show. */
const SERIES = "train";
/** Where so many have come together they are read anew, thinned. */
const MOST_KEPT = 10_000;
/** So much is kept while points are read. */
const MOST_NEWS = 1_000;
/** What was told of a task while its points were being read. */
const news = new Map<string, LivePoints[]>();

/** Put what a task has logged behind what is known of it. */
export function tellPoints(client: QueryClient, message: LivePoints): void {
  const queryKey = ["metrics", message.task_id];
  // What was read for a zoom holds steps that are done again.
  if (message.resumed?.length) void client.invalidateQueries({ queryKey: ["range", message.task_id] });
  const query = client.getQueryState<Metrics>(queryKey);
  if (query?.fetchStatus === "fetching") {
    keep(client, message);
    return;
  }
  // Nobody has read them, and who will reads this too.
  if (!query?.data) return;
  const next = client.setQueryData<Metrics>(queryKey, withNews(query.data, message));
  // A training may go on from a checkpoint whose points do not count on this page: another machine's.
  const again = Boolean(message.resumed?.length);
  if (next && (again || next.points.length > MOST_KEPT)) void client.invalidateQueries({ queryKey });
}

function keep(client: QueryClient, message: LivePoints): void {
  const kept = news.get(message.task_id) ?? [];
  if (kept.length < MOST_NEWS && !message.resumed?.length) {
    news.set(message.task_id, [...kept, message]);
    return;
  }
  // An answer that is so long in coming, or from before a resume, is older than all of this.
  news.delete(message.task_id);
  const queryKey = ["metrics", message.task_id];
  void client.cancelQueries({ queryKey }).then(() => client.invalidateQueries({ queryKey }));
}

/** Return what was read, and behind it what was told meanwhile. */
export function caughtUp(view: MetricsView): Metrics {
  const read: Metrics = { names: view.names, points: view.points, thinned: view.total > view.points.length };
  const meanwhile = news.get(view.task_id) ?? [];
  news.delete(view.task_id);
  return meanwhile.reduce(withNews, read);
}

export function forgetNews(id: string): void {
  news.delete(id);
}

function withNews(known: Metrics, message: LivePoints): Metrics {
  const fresh = (message.points ?? []).filter((point) => point.series === SERIES);
  const from = (message.resumed ?? []).map((each) => each.from_step);
  const points = told(known.points, from, fresh);
  const names = new Set([...known.names, ...fresh.flatMap((point) => Object.keys(point.values))]);
  return { ...known, points, names: names.size > known.names.length ? [...names].sort() : known.names };
}
