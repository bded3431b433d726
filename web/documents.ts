/** The documentation as pages of the web page: each Markdown file of `docs/` becomes a module with its HTML. */
import { posix, relative, sep } from "node:path";
import { Marked, type Token } from "marked";
import type { Plugin } from "vite";

/** Links of other files lead out of the documentation; they are not part of an installation. */
const PAGE = /^(?!\.\.)(.+)\.md(#.*)?$/;
const KEY = /^<\/?kbd>$/;
const BASE = "/ui/docs/";

export function documents(root: string): Plugin {
  return {
    name: "tunefleet-documents",
    transform(text, id) {
      if (!id.endsWith(".md")) return undefined;
      const folder = posix.dirname(relative(root, id).split(sep).join("/"));
      return { code: `export default ${JSON.stringify(htmlOf(text, folder))};`, map: null };
    },
  };
}

/** `folder`: where the file is in `docs/`, to which its links are relative. */
function htmlOf(text: string, folder: string): { title: string; html: string } {
  const used = new Map<string, number>();
  const marked = new Marked({ gfm: true });
  marked.use({
    renderer: {
      html: ({ text: tag }) => (KEY.test(tag) ? tag : ""),
      image: () => "",
      heading({ tokens, depth }) {
        const name = anchorOf(tokens.map((each) => each.raw).join(""), used);
        return `<h${depth} id="${name}">${this.parser.parseInline(tokens)}</h${depth}>`;
      },
      link({ href, tokens }) {
        const inner = this.parser.parseInline(tokens);
        if (/^https?:/.test(href)) return `<a href="${href}" target="_blank" rel="noopener noreferrer">${inner}</a>`;
        if (href.startsWith("#")) return `<a href="${href}">${inner}</a>`;
        const [, page, anchor = ""] = PAGE.exec(posix.normalize(posix.join(folder, href))) ?? [];
        return page ? `<a href="${BASE}${page}${anchor}">${inner}</a>` : inner;
      },
      table(token) {
        const cell = (tag: string, tokens: Token[]) => `<${tag}>${this.parser.parseInline(tokens)}</${tag}>`;
        const cells = (row: { tokens: Token[] }[], tag: string) =>
          row.map(({ tokens }) => (tokens.length ? cell(tag, tokens) : cell("td", tokens))).join("");
        const body = token.rows.map((row) => `<tr>${cells(row, "td")}</tr>`).join("");
        return `<div class="wide" tabindex="0"><table><thead><tr>${cells(token.header, "th")}</tr></thead><tbody>${body}</tbody></table></div>`;
      },
      code({ text: code }) {
        return `<pre tabindex="0"><code>${escaped(code)}</code></pre>`;
      },
    },
  });
  const html = marked.parse(text, { async: false });
  return { title: /^# (.+)$/m.exec(text)?.[1]?.replaceAll("`", "") ?? "Documentation", html };
}

/** The anchor of a heading, as GitHub makes it. */
function anchorOf(heading: string, used: Map<string, number>): string {
  const plain = heading
    .toLowerCase()
    .replace(/\[([^\]]*)\]\([^)]*\)/g, "$1")
    .replace(/[^\p{L}\p{N}\s_-]/gu, "")
    .trim()
    .replace(/\s/g, "-");
  const count = used.get(plain) ?? 0;
  used.set(plain, count + 1);
  return count === 0 ? plain : `${plain}-${count}`;
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
