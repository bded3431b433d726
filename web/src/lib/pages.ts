/** A list that the server sends in pages, read as one. Pure but for the asking. */

interface Page<T> {
  items: readonly T[];
  next_cursor?: string | null;
}

export interface Whole<T> {
  items: T[];
  /** Whether there is more than was read: what shows it says so. */
  more: boolean;
}

/** Read page after page, up to so many rows. */
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
