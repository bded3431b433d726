/** An answer as formatted text. Only React elements are created, and no HTML of the model. */
import { lexer, type Token, type Tokens } from "marked";
import { Fragment, type ReactNode, useMemo } from "react";
import { useCopy } from "../../parts/copying";

const SAFE_LINK = /^(https?|mailto):/i;

export function Markdown({ text }: { text: string }) {
  const tokens = useMemo(() => lexer(text, { gfm: true, breaks: true }), [text]);
  return <div className="markdown">{all(tokens)}</div>;
}

function all(tokens: readonly Token[] | undefined): ReactNode {
  // biome-ignore lint/suspicious/noArrayIndexKey: a text grows at its end
  return tokens?.map((token, at) => <Fragment key={at}>{element(token)}</Fragment>);
}

function element(token: Token): ReactNode {
  const inner = () =>
    "tokens" in token && token.tokens ? all(token.tokens) : "text" in token ? token.text : token.raw;
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      // Not a heading of the page.
      return <p className={`heading-${token.depth}`}>{inner()}</p>;
    case "paragraph":
      return <p>{inner()}</p>;
    case "blockquote":
      return <blockquote>{inner()}</blockquote>;
    case "code":
      return <Code text={token.text} language={token.lang} />;
    case "hr":
      return <hr />;
    case "list":
      return <List list={token as Tokens.List} />;
    case "table":
      return <Table table={token as Tokens.Table} />;
    case "strong":
      return <strong>{inner()}</strong>;
    case "em":
      return <em>{inner()}</em>;
    case "del":
      return <del>{inner()}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "br":
      return <br />;
    case "link":
    case "image":
      // Images are not loaded: an answer must not call a server.
      return SAFE_LINK.test(token.href) ? (
        <a href={token.href} target="_blank" rel="noopener noreferrer nofollow">
          {inner()}
        </a>
      ) : (
        token.raw
      );
    case "text":
    case "escape":
      return inner();
    default:
      return token.raw;
  }
}

function List({ list }: { list: Tokens.List }) {
  const items = list.items.map((item, at) => (
    // biome-ignore lint/suspicious/noArrayIndexKey: a text grows at its end
    <li key={at}>
      {item.task && (item.checked ? "☑ " : "☐ ")}
      {all(item.tokens)}
    </li>
  ));
  return list.ordered ? <ol start={list.start || 1}>{items}</ol> : <ul>{items}</ul>;
}

function Table({ table }: { table: Tokens.Table }) {
  const cell = (one: Tokens.TableCell) => ({ style: one.align ? { textAlign: one.align } : undefined });
  return (
    <div className="wide" tabIndex={0} role="group" aria-label="Table">
      <table>
        <thead>
          <tr>
            {table.header.map((one, at) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: a text grows at its end
              <th key={at} {...cell(one)}>
                {all(one.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.rows.map((row, at) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: a text grows at its end
            <tr key={at}>
              {row.map((one, column) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: a text grows at its end
                <td key={column} {...cell(one)}>
                  {all(one.tokens)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Code({ text, language }: { text: string; language?: string }) {
  const { shown, copied, copy } = useCopy<HTMLElement>(text);
  return (
    <div className="code">
      <div className="row between tight small muted">
        <span>{language || "text"}</span>
        <button type="button" className="quiet" onClick={copy}>
          {copied ? "Copied" : "Copy"}
        </button>
      </div>
      <pre tabIndex={0}>
        <code ref={shown}>{text}</code>
      </pre>
    </div>
  );
}
