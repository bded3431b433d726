/** A streamed response: server-sent events over `fetch`. Pure except for the reader. */

export interface Piece {
  text?: string;
  finish?: string;
  waiting?: string;
  tokens?: number;
}

interface Chunk {
  choices?: { delta: { content?: string }; finish_reason?: string | null }[];
  usage?: { completion_tokens: number };
  waiting?: string;
  error?: { message: string; hint?: string | null };
}

export class AnswerError extends Error {}

/** Content of one event; null ends the response. */
export function pieceOf(data: string): Piece | null {
  if (data === "[DONE]") return null;
  const chunk = JSON.parse(data) as Chunk;
  if (chunk.error) throw new AnswerError([chunk.error.message, chunk.error.hint].filter(Boolean).join(" "));
  const choice = chunk.choices?.[0];
  return {
    text: choice?.delta.content,
    finish: choice?.finish_reason ?? undefined,
    waiting: chunk.waiting,
    tokens: chunk.usage?.completion_tokens,
  };
}

/** Take complete events from the start of a text; the rest is incomplete. */
export function eventsIn(text: string): { events: string[]; rest: string } {
  const parts = text.replaceAll("\r\n", "\n").split("\n\n");
  const rest = parts.pop() ?? "";
  const events = parts
    .map((part) =>
      part
        .split("\n")
        .filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).replace(/^ /, ""))
        .join("\n"),
    )
    .filter((data) => data !== "");
  return { events, rest };
}

export async function* piecesOf(body: ReadableStream<Uint8Array>): AsyncGenerator<Piece> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done)
      throw new AnswerError(
        "The connection to the server was lost during the answer. Send the message again; the chat is still open.",
      );
    // The network may split a line ending.
    const found = eventsIn(rest + value);
    rest = found.rest;
    for (const event of found.events) {
      const piece = pieceOf(event);
      if (piece === null) {
        await reader.cancel();
        return;
      }
      yield piece;
    }
  }
}
