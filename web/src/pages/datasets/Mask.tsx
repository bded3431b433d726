/** Rows as the model is trained on them: trained text is highlighted, masked text is grey, truncated text is struck out. */
import type { DatasetLook, RowPiece } from "../../api/schema";
import { number } from "../../lib/format";

export interface TokenPiece {
  text: string;
  trained: boolean;
  cut: boolean;
  tokens: number;
}

export interface TokenRow {
  pieces: TokenPiece[];
  tokens: number;
  trained_tokens: number;
}

export function Legend({ cut }: { cut?: boolean }) {
  return (
    <span className="mask-legend small">
      <span className="mask counts">trained</span>
      <span className="mask context">masked</span>
      {cut && <span className="mask cut-off">truncated</span>}
    </span>
  );
}

/** Data that the rows have and the run does not use. */
export function Notes({ notes }: { notes: readonly string[] }) {
  if (!notes.length) return null;
  return (
    <ul className="note" aria-label="Notes">
      {notes.map((note) => (
        <li key={note}>{note}</li>
      ))}
    </ul>
  );
}

function CharacterRow({ pieces, count, line, size, counted }: Shown) {
  return (
    <li className="masked">
      <div className="muted small num">
        line {number(line)} · {number(size)} characters, {number(counted)} trained
      </div>
      {pieces.map((piece, at) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a row stay where they are
        <div key={at} className="said">
          <span className="part small">{piece.part}</span>
          <div>
            <span className={piece.counts ? "mask counts" : "mask context"}>{piece.text || "(empty)"}</span>
          </div>
        </div>
      ))}
      {count > pieces.length && (
        <div className="muted small">
          {number(count - pieces.length)} more {count - pieces.length === 1 ? "part" : "parts"}
        </div>
      )}
    </li>
  );
}

/** The first rows of a dataset, with the trained text marked. */
export function CharacterRows({ rows }: { rows: DatasetLook["shown"] }) {
  return (
    <>
      <Legend />
      <ul className="rows-shown" aria-label="Rows" tabIndex={0}>
        {rows.map((row) => (
          <CharacterRow
            key={row.line}
            pieces={row.pieces}
            count={row.piece_count}
            line={row.line}
            size={row.characters}
            counted={row.counted}
          />
        ))}
      </ul>
    </>
  );
}

interface Shown {
  pieces: readonly RowPiece[];
  /** Number of parts of the row; a long row is returned without its last ones. */
  count: number;
  line: number;
  size: number;
  counted: number;
}

export function TokensRow({ row, place }: { row: TokenRow; place: number }) {
  return (
    <li className="masked">
      <div className="muted small num">
        row {number(place)} · {number(row.tokens)} tokens, {number(row.trained_tokens)} trained
      </div>
      <div className="tokens">
        {row.pieces.map((piece, at) => (
          <span
            // biome-ignore lint/suspicious/noArrayIndexKey: the pieces of a row stay where they are
            key={at}
            className={piece.cut ? "mask cut-off" : piece.trained ? "mask counts" : "mask context"}
            title={`${piece.tokens} tokens`}
          >
            {piece.text}
          </span>
        ))}
      </div>
    </li>
  );
}

/** Distribution of row lengths; bars above the limit are highlighted. */
export function Histogram({
  edges,
  counts,
  unit,
  limit,
}: {
  edges: readonly number[];
  counts: readonly number[];
  unit: string;
  limit?: number;
}) {
  const most = Math.max(...counts, 1);
  const words = counts.map(
    (count, at) => `${count} rows with ${Math.round(edges[at] ?? 0)} to ${Math.round(edges[at + 1] ?? 0)} ${unit}`,
  );
  return (
    <figure>
      <div className="histogram" role="img" aria-label={`Row lengths: ${words.join(", ")}`}>
        {counts.map((count, at) => (
          <div
            // biome-ignore lint/suspicious/noArrayIndexKey: a bin is its place
            key={at}
            title={words[at]}
            className={limit !== undefined && (edges[at] ?? 0) >= limit ? "beyond" : undefined}
            style={{ height: `${count ? Math.max(3, (100 * count) / most) : 0}%` }}
          />
        ))}
      </div>
      <figcaption className="row between small muted num">
        <span>{number(Math.round(edges[0] ?? 0))}</span>
        <span>{unit} per row</span>
        <span>{number(Math.round(edges.at(-1) ?? 0))}</span>
      </figcaption>
    </figure>
  );
}
