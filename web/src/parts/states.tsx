/** Loading, empty, error and no-access states of a page. */
import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { ApiError } from "../api/client";

export function Loading({ rows = 3 }: { rows?: number }) {
  return (
    <div className="loading" role="status" aria-label="Loading">
      {Array.from({ length: rows }, (_, row) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the rows are all alike
        <div key={row} className="bone" style={{ width: `${90 - ((row * 23) % 50)}%` }} />
      ))}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <strong>{title}</strong>
      {children && <div className="muted">{children}</div>}
    </div>
  );
}

/** Note at the end of a truncated list. */
export function Cut({ more, children }: { more: boolean; children?: ReactNode }) {
  return more && <p className="muted small">Only the newest are shown. {children}</p>;
}

export function Failed({ error, retry }: { error: unknown; retry?: () => void }) {
  const ours = error instanceof ApiError ? error : undefined;
  if (ours?.status === 403)
    return (
      <div className="empty" role="alert">
        <strong>Your key has no access to this</strong>
        <div className="muted">{ours.message}</div>
        {ours.hint && <div className="muted">{ours.hint}</div>}
      </div>
    );
  return (
    <div className="empty" role="alert">
      <strong>{ours?.status === 404 ? "Not found" : "Loading failed"}</strong>
      <div className="muted">{ours?.message ?? String(error)}</div>
      {ours?.hint && <div className="muted">{ours.hint}</div>}
      {retry && (
        <button type="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

/** Show the result of a query, or its loading or error state. */
export function Answer<T>({
  query,
  rows,
  children,
}: {
  query: UseQueryResult<T>;
  rows?: number;
  children: (data: T) => ReactNode;
}) {
  if (query.data !== undefined) return <>{children(query.data)}</>;
  if (query.error) return <Failed error={query.error} retry={() => void query.refetch()} />;
  return <Loading rows={rows} />;
}
