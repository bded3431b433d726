/** What the page asks the server for: one function for each thing, with the key that live events refresh it by. */
import { infiniteQueryOptions, type QueryClient, queryOptions } from "@tanstack/react-query";
import type { Point } from "../lib/series";
import { isFinal } from "../lib/words";
import { api, ask } from "./client";
import type { MetricsView } from "./schema";

export const PAGE_ROWS = 1000;
const MOST_POINTS = 5_000;
const AT_ONCE = 100_000;

export const infoQuery = queryOptions({
  queryKey: ["info"],
  queryFn: () => ask(api.GET("/api/v1/info")),
  staleTime: 60_000,
});

export interface TaskFilters {
  status?: string;
  kind?: string;
  owner?: string;
  worker_id?: string;
  workflow_id?: string;
}

/** All tasks that pass a filter, a thousand at a time. */
export const tasksQuery = (filters: TaskFilters) =>
  infiniteQueryOptions({
    queryKey: ["tasks", filters],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ask(
        api.GET("/api/v1/tasks", { params: { query: { ...filters, limit: PAGE_ROWS, cursor: pageParam } }, signal }),
      ).then((page) => page as Extract<typeof page, { items: unknown }>),
    getNextPageParam: (last) => last.next_cursor ?? undefined,
  });

export const overviewQuery = queryOptions({
  queryKey: ["overview"],
  queryFn: ({ signal }) => ask(api.GET("/api/v1/overview", { signal })),
  refetchInterval: 30_000,
});

const task = (task_id: string) => ({ params: { path: { task_id } } });

export const taskQuery = (id: string) =>
  queryOptions({
    queryKey: ["task", id],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/tasks/{task_id}", { ...task(id), signal })),
  });

export const whyQuery = (id: string) =>
  queryOptions({
    queryKey: ["why", id],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/tasks/{task_id}/why", { ...task(id), signal })),
  });

export const commandsQuery = (id: string) =>
  queryOptions({
    queryKey: ["commands", id],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/tasks/{task_id}/commands", { ...task(id), signal })),
  });

export const checkpointsQuery = (id: string) =>
  queryOptions({
    queryKey: ["checkpoints", id],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/tasks/{task_id}/checkpoints", { ...task(id), signal })),
  });

export const artifactsQuery = (id: string) =>
  queryOptions({
    queryKey: ["artifacts", id],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/tasks/{task_id}/artifacts", {
          params: { path: { task_id: id }, query: { limit: 200 } },
          signal,
        }),
      ),
  });

export const artifactQuery = (id: string) =>
  queryOptions({
    queryKey: ["artifact", id],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/artifacts/{artifact_id}", { params: { path: { artifact_id: id } }, signal })),
    staleTime: Number.POSITIVE_INFINITY,
  });

export const taskEventsQuery = (id: string) =>
  queryOptions({
    queryKey: ["task-events", id],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/events", { params: { query: { task_id: id, limit: 1000 } }, signal })),
  });

export const predictionsQuery = (id: string) =>
  queryOptions({
    queryKey: ["predictions", id],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/training/predictions/{task_id}", { params: { path: { task_id: id } }, signal })),
  });

export const workflowQuery = (id: string) =>
  queryOptions({
    queryKey: ["workflow", id],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/workflows/{workflow_id}", { params: { path: { workflow_id: id } }, signal })),
  });

export const workersQuery = queryOptions({
  queryKey: ["workers"],
  queryFn: ({ signal }) => ask(api.GET("/api/v1/workers", { params: { query: { limit: 500 } }, signal })),
  refetchInterval: 10_000,
});

export interface Metrics {
  names: string[];
  points: Point[];
  /** Whether the server has more points than these: a zoom asks for its own. */
  thinned: boolean;
  /** The launch count that they were read under: a resumed task's points may begin before the last one known. */
  attempts: number;
}

/** A task's points; asked for again, only what is new travels. */
export const metricsQuery = (client: QueryClient, id: string, attempts: number, status: string) =>
  queryOptions({
    queryKey: ["metrics", id, attempts, isFinal(status)],
    queryFn: async ({ signal, queryKey }): Promise<Metrics> => {
      const known = client.getQueryData<Metrics>(queryKey);
      const last = known?.points.at(-1)?.step;
      const query =
        known && last !== undefined ? { after_step: last - 1, max_points: AT_ONCE } : { max_points: MOST_POINTS };
      const view: MetricsView = await ask(
        api.GET("/api/v1/tasks/{task_id}/metrics", { params: { path: { task_id: id }, query }, signal }),
      );
      if (!known || last === undefined)
        return { points: [...view.points], names: [...view.names], thinned: view.total > view.points.length, attempts };
      const points = [...known.points.filter((point) => point.step < last), ...view.points];
      const names = [...new Set([...known.names, ...view.names])].sort();
      return { names, points, thinned: known.thinned, attempts };
    },
    structuralSharing: false,
  });

/** The points of a range of steps, as fine as a chart can show them. */
export const rangeQuery = (id: string, low: number, high: number, wanted: boolean) =>
  queryOptions({
    queryKey: ["range", id, low, high],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/tasks/{task_id}/metrics", {
          params: {
            path: { task_id: id },
            query: { after_step: Math.floor(low) - 1, to_step: Math.ceil(high), max_points: MOST_POINTS },
          },
          signal,
        }),
      ),
    enabled: wanted,
    structuralSharing: false,
  });
