/** Reads a paginated list completely. Pure except for the requests. */

interface Page<T> {
  items: readonly T[];
  next_cursor?: string | null;
}

export interface Whole<T> {
  items: T[];
  /** Whether there are more rows than were read; the page shows this. */
  more: boolean;
}

/** Read page after page, up to a maximum number of rows. */
export async function whole<T>(
  read: (cursor: string | undefined) => Promise<Page<T>>,
  most: number,
): Promise<Whole<T>> {
  const items: T[] = [];
  let cursor: string | undefined;
  do {
    const page = await read(cursor);
    items.push(...page.items);
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined && items.length < most);
  return { items, more: cursor !== undefined };
}
