/** A list page, newest first, with the first action in its empty state. */
import type { UseInfiniteQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Panel } from "./bits";
import { Answer } from "./states";

export interface Listed<T> {
  title: string;
  cell: (item: T) => ReactNode;
  /** CSS classes of its cells, such as `num` and `muted`. */
  className?: string;
  /** Also shown on a phone. */
  phone?: boolean;
}

export function Listing<T extends { id: string }>({
  title,
  query,
  summary,
  begin,
  columns,
}: {
  title: string;
  query: UseInfiniteQueryResult<{ pages: { items: T[] }[] }>;
  /** Content next to the title. */
  summary: (items: readonly T[]) => string;
  /** Content of the empty state. */
  begin: ReactNode;
  columns: readonly Listed<T>[];
}) {
  const items = query.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <div className="page">
      <div className="row">
        <h1>{title}</h1>
        {items.length > 0 && <span className="muted num">{summary(items)}</span>}
      </div>
      <Panel flush={items.length > 0}>
        <Answer query={query} rows={6}>
          {() => (items.length === 0 ? begin : <Table items={items} columns={columns} />)}
        </Answer>
      </Panel>
      {query.hasNextPage && (
        <div>
          <button type="button" onClick={() => void query.fetchNextPage()}>
            Show more
          </button>
        </div>
      )}
    </div>
  );
}

function Table<T extends { id: string }>({ items, columns }: { items: readonly T[]; columns: readonly Listed<T>[] }) {
  const classOf = ({ className, phone }: Listed<T>) => [className, !phone && "hide-phone"].filter(Boolean).join(" ");
  return (
    <table>
      <thead>
        <tr>
          {columns.map((column) => (
            <th key={column.title} className={classOf({ ...column, className: column.className?.match(/num/)?.[0] })}>
              {column.title}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {items.map((item) => (
          <tr key={item.id}>
            {columns.map((column) => (
              <td key={column.title} className={classOf(column)}>
                {column.cell(item)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
