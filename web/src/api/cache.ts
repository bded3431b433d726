/** Updates cached query data from live messages. */
import type { QueryClient, QueryKey } from "@tanstack/react-query";

/**
 * Update cached data wherever it is cached.
 *
 * Unlike `setQueriesData`, this leaves unchanged entries alone and keeps stale entries stale: a moved row says nothing
 * about rows that the list is missing.
 */
export function amend<T>(client: QueryClient, queryKey: QueryKey, change: (known: T) => T): void {
  for (const query of client.getQueryCache().findAll({ queryKey })) {
    const known = query.state.data as T | undefined;
    if (known === undefined) continue;
    const next = change(known);
    if (next === known) continue;
    const { isInvalidated, dataUpdatedAt } = query.state;
    client.setQueryData(query.queryKey, next, { updatedAt: dataUpdatedAt });
    if (isInvalidated) query.invalidate();
  }
}

/** Like `map`, but the same list where nothing has changed. */
export function mapped<T>(items: T[], change: (item: T) => T): T[] {
  const next = items.map(change);
  return next.some((item, at) => item !== items[at]) ? next : items;
}

/** Whether the change applies to this query. */
export type Meant = (queryKey: QueryKey) => boolean;

/**
 * Refetch without cancelling requests in flight.
 *
 * On a busy server, messages arrive faster than responses; cancelling on each one would finish none. Queries in flight
 * are fetched once more after their response.
 */
export class Rereading {
  private readonly due = new Set<string>();

  constructor(private readonly client: QueryClient) {}

  ask(meant: Meant, refetchType: "active" | "none" = "active"): void {
    const predicate = ({ queryKey }: { queryKey: QueryKey }) => meant(queryKey);
    for (const query of this.client.getQueryCache().findAll({ predicate, fetchStatus: "fetching" })) {
      const { promise } = query;
      if (!promise || this.due.has(query.queryHash)) continue;
      this.due.add(query.queryHash);
      const again = () => {
        this.due.delete(query.queryHash);
        this.ask((queryKey) => queryKey === query.queryKey, refetchType);
      };
      // Only now the received data is in the cache.
      void promise.then(later(again), later(again));
    }
    void this.client.invalidateQueries({ predicate, refetchType }, { cancelRefetch: false });
  }
}

function later(call: () => void): () => void {
  return () => void window.setTimeout(call);
}
