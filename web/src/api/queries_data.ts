/** Queries of the pages for datasets, new tasks and chats. */
import { queryOptions } from "@tanstack/react-query";
import { type Whole, whole } from "../lib/pages";
import { api, ask } from "./client";
import { MOST_ROWS, PAGE_ROWS } from "./queries";
import type { ArtifactView } from "./schema";

const ROWS = /\.(jsonl|ndjson|json|csv|tsv|parquet)$/i;
/** Uploaded datasets, and data files from tasks, newest first. */
export const datasetsQuery = queryOptions({
  queryKey: ["datasets"],
  queryFn: async ({ signal }): Promise<Whole<ArtifactView>> => {
    const { items, more } = await whole<ArtifactView>((cursor) => {
      const query = { kind: "dataset,file,files", limit: PAGE_ROWS, cursor };
      return ask(api.GET("/api/v1/artifacts", { params: { query }, signal }));
    }, MOST_ROWS);
    return { items: items.filter((each) => each.kind === "dataset" || ROWS.test(each.name)), more };
  },
  refetchInterval: 15_000,
});

/** Preview of a dataset: rows, format, errors. Content behind a digest never changes. */
export const lookQuery = (id: string, rows = 5) =>
  queryOptions({
    queryKey: ["look", id, rows],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/artifacts/{artifact_id}/look", {
          params: { path: { artifact_id: id }, query: { rows } },
          signal,
        }),
      ),
    staleTime: Number.POSITIVE_INFINITY,
  });

export const resultQuery = (taskId: string, wanted: boolean) =>
  queryOptions({
    queryKey: ["result", taskId],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/results/{task_id}", { params: { path: { task_id: taskId } }, signal })),
    enabled: wanted,
    staleTime: Number.POSITIVE_INFINITY,
  });

export const examplesQuery = queryOptions({
  queryKey: ["examples"],
  queryFn: ({ signal }) => ask(api.GET("/api/v1/examples", { signal })),
  staleTime: Number.POSITIVE_INFINITY,
});

export const schemaQuery = queryOptions({
  queryKey: ["schema"],
  queryFn: () => ask(api.GET("/api/v1/schema")),
  staleTime: Number.POSITIVE_INFINITY,
});

const LOOK_MS = 1000;

/** State of a chat; polled often until it is ready, then occasionally. */
export const chatQuery = (taskId: string) =>
  queryOptions({
    queryKey: ["chat", taskId],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/tasks/{task_id}/chat", { params: { path: { task_id: taskId } }, signal })),
    refetchInterval: (query) => (query.state.data?.ready ? 5 * LOOK_MS : LOOK_MS),
  });

export const chatsQuery = queryOptions({
  queryKey: ["chats"],
  queryFn: async ({ signal }) => {
    const query = { kind: "chat", status: "pending,queued,dispatched,running", limit: 50 };
    const page = await ask(api.GET("/api/v1/tasks", { params: { query }, signal }));
    return (page as Extract<typeof page, { items: unknown }>).items;
  },
  refetchInterval: 15_000,
});
