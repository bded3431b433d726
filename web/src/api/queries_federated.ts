/** Federation queries; live events refresh them by these keys. */
import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, ask } from "./client";

const ROUNDS = 50;
const UPDATES = 300;
const REFUSED = 50;
const VERSIONS = 200;
const of = (federation_id: string) => ({ path: { federation_id } });

export const federationsQuery = infiniteQueryOptions({
  queryKey: ["federations"],
  initialPageParam: undefined as string | undefined,
  queryFn: ({ pageParam, signal }) =>
    ask(api.GET("/api/v1/federations", { params: { query: { limit: 100, cursor: pageParam } }, signal })),
  getNextPageParam: (last) => last.next_cursor ?? undefined,
});

export const federationQuery = (id: string) =>
  queryOptions({
    queryKey: ["federation", id],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/federations/{federation_id}", { params: of(id), signal })),
  });

/** The newest rounds, newest first. */
export const roundsQuery = (id: string) =>
  queryOptions({
    queryKey: ["federation-rounds", id],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/federations/{federation_id}/rounds", {
          params: { ...of(id), query: { limit: ROUNDS } },
          signal,
        }),
      ),
  });

/** The newest updates, newest first. */
export const updatesQuery = (id: string) =>
  queryOptions({
    queryKey: ["federation-updates", id, "all"],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/federations/{federation_id}/updates", {
          params: { ...of(id), query: { limit: UPDATES } },
          signal,
        }),
      ),
  });

/** The newest rejected updates, newest first. */
export const refusedQuery = (id: string) =>
  queryOptions({
    queryKey: ["federation-updates", id, "refused"],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/federations/{federation_id}/updates", {
          params: { ...of(id), query: { limit: REFUSED, state: "rejected,discarded" } },
          signal,
        }),
      ),
  });

/** The newest versions, newest first. */
export const versionsQuery = (id: string) =>
  queryOptions({
    queryKey: ["federation-versions", id],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/federations/{federation_id}/versions", {
          params: { ...of(id), query: { limit: VERSIONS } },
          signal,
        }),
      ),
  });

/** One version in full; it never changes. */
export const versionQuery = (id: string, version: number) =>
  queryOptions({
    queryKey: ["federation-version", id, version],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/federations/{federation_id}/versions/{version}", {
          params: { path: { federation_id: id, version } },
          signal,
        }),
      ),
    staleTime: Number.POSITIVE_INFINITY,
  });
