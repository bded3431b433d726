import { expect, test } from "vitest";
import { whole } from "./pages";

const read = (cursor: string | undefined) => {
  const at = Number(cursor ?? 0);
  return Promise.resolve({ items: [at, at + 1], next_cursor: at < 8 ? String(at + 2) : null });
};

test("a list is read to its end, or to the limit with a flag for more", async () => {
  expect(await whole(read, 100)).toEqual({ items: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], more: false });
  expect(await whole(read, 4)).toEqual({ items: [0, 1, 2, 3], more: true });
});
