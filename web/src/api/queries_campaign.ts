/** Campaign queries; live events refresh them by these keys. */
import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, ask } from "./client";

const CYCLES = 50;
const LINES = 200;
const VERSIONS = 200;
const named = (campaign: string) => ({ path: { campaign } });

export const campaignsQuery = infiniteQueryOptions({
  queryKey: ["campaigns"],
  initialPageParam: undefined as string | undefined,
  queryFn: ({ pageParam, signal }) =>
    ask(api.GET("/api/v1/campaigns", { params: { query: { limit: 100, cursor: pageParam } }, signal })),
  getNextPageParam: (last) => last.next_cursor ?? undefined,
});

export const campaignQuery = (name: string) =>
  queryOptions({
    queryKey: ["campaign", name],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/campaigns/{campaign}", { params: named(name), signal })),
  });

/** Cycles older than those included in the campaign, newest first. */
export const olderCyclesQuery = (name: string, before: number) =>
  infiniteQueryOptions({
    queryKey: ["campaign-cycles", name, before],
    initialPageParam: String(before),
    queryFn: ({ pageParam, signal }) =>
      ask(
        api.GET("/api/v1/campaigns/{campaign}/cycles", {
          params: { ...named(name), query: { limit: CYCLES, cursor: pageParam } },
          signal,
        }),
      ),
    getNextPageParam: (last) => last.next_cursor ?? undefined,
  });

/** The newest log lines, of one cycle or of all. */
export const campaignLogQuery = (name: string, cycle: number | undefined) =>
  queryOptions({
    queryKey: ["campaign-log", name, cycle ?? "all"],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/campaigns/{campaign}/log", {
          params: { ...named(name), query: { limit: LINES, cycle } },
          signal,
        }),
      ),
  });

/** The versions of the campaign's model, newest first. */
export const modelsQuery = (name: string, owner: string) =>
  queryOptions({
    queryKey: ["campaign-models", name, owner],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/models", { params: { query: { name, owner, limit: VERSIONS } }, signal })),
  });
