import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test, vi } from "vitest";

// The API client reads it when it is loaded.
vi.stubGlobal("location", { origin: "http://127.0.0.1" });
const { Markdown } = await import("./Markdown");

const drawn = (text: string) => renderToStaticMarkup(createElement(Markdown, { text }));

test("text is formatted", () => {
  const html = drawn(
    "# Sums\n\n- **2** and `2`\n- *4*\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\nx = 1 < 2\n```",
  );
  for (const part of [
    "<strong>2</strong>",
    "<code>2</code>",
    "<em>4</em>",
    "<td>1</td>",
    '<td style="text-align:right">2</td>',
    "x = 1 &lt; 2",
  ])
    expect(html).toContain(part);
  expect(html).not.toContain("<h1");
});

test("HTML and scripts of an answer are text", () => {
  const html = drawn('<img src=x onerror="alert(1)">\n\nHi <script>alert(1)</script> [a](javascript:alert(1)) &amp;');
  expect(html).not.toMatch(/<img|<script|href="javascript/i);
  expect(html).toContain("&lt;script&gt;alert(1)&lt;/script&gt;");
  expect(drawn("[a](https://example.org)")).toContain('rel="noopener noreferrer nofollow"');
  expect(drawn("![a](https://example.org/x.png)")).not.toContain("<img");
});
