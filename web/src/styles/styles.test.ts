import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

test("a class has its rules in one file: all files are one stylesheet of all pages", () => {
  const files = readdirSync(import.meta.dirname).filter((name) => name.endsWith(".css"));
  expect(files.length).toBeGreaterThan(5);
  const homes = new Map<string, Set<string>>();
  for (const file of files) {
    const text = readFileSync(join(import.meta.dirname, file), "utf8");
    for (const [, name = ""] of text.matchAll(/^\.([\w-]+)(?= \{|,$)/gm))
      homes.set(name, (homes.get(name) ?? new Set()).add(file));
  }
  const shared = [...homes].filter(([, where]) => where.size > 1).map(([name, where]) => [name, ...where].join(" "));
  expect(shared).toEqual([]);
});
