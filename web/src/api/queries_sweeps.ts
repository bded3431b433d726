/** Sweep queries. Trials change with the evaluations of their runs, so active sweeps are polled. */
import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, ask } from "./client";
import type { SweepView } from "./schema";

const POLL_MS = 2000;
const FINAL = new Set(["completed", "failed", "stopped"]);

export const sweepEnded = (sweep: SweepView) => FINAL.has(sweep.status);

export const sweepsQuery = infiniteQueryOptions({
  queryKey: ["sweeps"],
  initialPageParam: undefined as string | undefined,
  queryFn: ({ pageParam, signal }) =>
    ask(api.GET("/api/v1/sweeps", { params: { query: { limit: 100, cursor: pageParam } }, signal })),
  getNextPageParam: (last) => last.next_cursor ?? undefined,
  refetchInterval: (query) =>
    query.state.data?.pages.some((page) => page.items.some((each) => !sweepEnded(each))) ? POLL_MS : false,
});

export const sweepQuery = (id: string) =>
  queryOptions({
    queryKey: ["sweep", id],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/sweeps/{sweep_id}", { params: { path: { sweep_id: id } }, signal })),
    refetchInterval: (query) => (query.state.data && sweepEnded(query.state.data) ? false : POLL_MS),
  });

/** How much each parameter matters; changes only with another complete trial. */
export const importanceQuery = (id: string, complete: number) =>
  queryOptions({
    queryKey: ["sweep-importance", id, complete],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/sweeps/{sweep_id}/importance", { params: { path: { sweep_id: id } }, signal })),
  });
