/** How what the page has fetched takes in what it is told. */
import type { QueryClient, QueryKey } from "@tanstack/react-query";

/**
 * Change what is known, wherever it is known.
 *
 * Unlike `setQueriesData` this leaves alone what the change does not touch, and what is to be read again stays so: a row
 * that has moved says nothing of the rows that a list lacks.
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

/** Whether a question is meant. */
export type Meant = (queryKey: QueryKey) => boolean;

/**
 * Has things read again without breaking off what is being read.
 *
 * On a busy server news comes faster than answers: to begin anew with each would end none. What is being read meanwhile
 * is read once more when its answer is there.
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
      // Only then what has come is put down as known.
      void promise.then(later(again), later(again));
    }
    void this.client.invalidateQueries({ predicate, refetchType }, { cancelRefetch: false });
  }
}

function later(call: () => void): () => void {
  return () => void window.setTimeout(call);
}
