/** Points of the shown tasks: read once, then appended from the live stream. */
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
/** Above this many points, they are refetched, thinned. */
const MOST_KEPT = 10_000;
/** Number of points kept while a read is in flight. */
const MOST_NEWS = 1_000;
/** Points received for a task while a read of its points is in flight. */
const news = new Map<string, LivePoints[]>();

/** Append newly logged points of a task. */
export function tellPoints(client: QueryClient, message: LivePoints): void {
  const queryKey = ["metrics", message.task_id];
  // Zoom data contains steps that are repeated.
  if (message.resumed?.length) void client.invalidateQueries({ queryKey: ["range", message.task_id] });
  const query = client.getQueryState<Metrics>(queryKey);
  if (query?.fetchStatus === "fetching") {
    keep(client, message);
    return;
  }
  // Not read yet; the next read includes these points.
  if (!query?.data) return;
  const next = client.setQueryData<Metrics>(queryKey, withNews(query.data, message));
  // A run may resume from a checkpoint of another machine, whose points do not count on this page.
  const again = Boolean(message.resumed?.length);
  if (next && (again || next.points.length > MOST_KEPT)) void client.invalidateQueries({ queryKey });
}

function keep(client: QueryClient, message: LivePoints): void {
  const kept = news.get(message.task_id) ?? [];
  if (kept.length < MOST_NEWS && !message.resumed?.length) {
    news.set(message.task_id, [...kept, message]);
    return;
  }
  // A response that is this late, or from before a resume, is older than all of these.
  news.delete(message.task_id);
  const queryKey = ["metrics", message.task_id];
  void client.cancelQueries({ queryKey }).then(() => client.invalidateQueries({ queryKey }));
}

/** Return the points that were read, followed by those received meanwhile. */
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
