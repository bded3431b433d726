/** A conversation with one or two models: each has its own history, all get the same message. */
import { useCallback, useEffect, useRef, useState } from "react";
import { ApiError, type ProblemBody } from "../../api/client";
import type { Message, Rated, Rating } from "../../lib/preferences";
import { requestOf, type Sampling } from "../../lib/sampling";
import { AnswerError, piecesOf } from "../../lib/stream";
import { unique } from "../../lib/unique";
import { allKept, forget, useKept } from "../../parts/kept";

/** One answer of a model. */
export interface Said {
  text: string;
  /** Why there is no output yet. */
  waiting?: string;
  error?: string;
  /** Undefined while the answer is being generated. */
  finish?: string;
  tokens?: number;
  seconds?: number;
  /** Time from the first to the last token, for the speed. */
  writing_s?: number;
  rating?: Rating;
}

export interface Turn {
  id: string;
  question: string;
  /** Model → its answers; a new one is added each time it is generated again. */
  answers: Record<string, Said[]>;
  /** Model → the answer that is shown, and part of the history. */
  shown: Record<string, number>;
}

/** A conversation as it is kept in the browser. */
export interface Conversation {
  turns: Turn[];
  /** Time of the last change, in milliseconds. */
  at: number;
  /** The model, as the list of conversations names it. */
  name: string;
}

const PREFIX = "chat ";
const MOST_CONVERSATIONS = 30;

export const conversationKey = (taskId: string) => `${PREFIX}${taskId}`;

/** The conversations of a user, newest first, by task; the oldest ones are dropped. */
export function conversations(owner: string | null | undefined): [taskId: string, Conversation][] {
  const found = [...allKept<Conversation>(owner, PREFIX)].sort(([, one], [, other]) => other.at - one.at);
  for (const [name] of found.slice(MOST_CONVERSATIONS)) forget(owner, name);
  return found.slice(0, MOST_CONVERSATIONS).map(([name, value]) => [name.slice(PREFIX.length), value]);
}

export interface Talk {
  turns: Turn[];
  busy: boolean;
  say: (question: string, models: readonly string[], sampling: Sampling) => void;
  /** Generate the answer to the last message again. */
  again: (turn: Turn, model: string, sampling: Sampling) => void;
  show: (turn: Turn, model: string, at: number) => void;
  rate: (turn: Turn, model: string, rating: Rating | undefined) => Turn;
  stop: () => void;
  reset: () => void;
}

/** `separator`: what follows a message in the prompt; a model of plain text was trained with it before each answer. */
export function useTalk(taskId: string, name: string, separator: string): Talk {
  const [first] = useState<Conversation>(() => ({ turns: [], at: Date.now(), name }));
  const kept = useKept(conversationKey(taskId), first, isAnswered, localStorage);
  const { turns } = kept.value;
  const setTurns = useCallback(
    (change: (turns: Turn[]) => Turn[]) =>
      kept.set((before) => ({ ...before, turns: change(before.turns), at: Date.now() })),
    [kept.set],
  );
  const [busy, setBusy] = useState(false);
  const stopper = useRef<AbortController | null>(null);

  /** Generate answers of some models into a turn, at the end of each model's answers. */
  const generate = (before: readonly Turn[], turn: Turn, models: readonly string[], sampling: Sampling) => {
    const control = new AbortController();
    stopper.current = control;
    setBusy(true);
    const all = models.map((model) => {
      const place = turn.answers[model]?.length ?? 0;
      const request = { model, stream: true, ...requestOf(sampling), messages: [] as Message[] };
      const history = historyOf(before, model, sampling.system);
      request.messages = [...history, { role: "user" as const, content: turn.question }].map((message) =>
        message.role === "user" ? { ...message, content: message.content + separator } : message,
      );
      return answer(
        taskId,
        request,
        (by) => setTurns((known) => changed(known, turn.id, model, place, by)),
        control.signal,
      );
    });
    void Promise.all(all).finally(() => setBusy(false));
  };
  const say = (question: string, models: readonly string[], sampling: Sampling) => {
    const turn: Turn = { id: unique(), question, answers: {}, shown: {} };
    setTurns((known) => [...known, started(turn, models)]);
    generate(turns, turn, models, sampling);
  };
  const again = (turn: Turn, model: string, sampling: Sampling) => {
    setTurns((known) => known.map((each) => (each.id === turn.id ? started(each, [model]) : each)));
    generate(
      turns.slice(
        0,
        turns.findIndex((each) => each.id === turn.id),
      ),
      turn,
      [model],
      sampling,
    );
  };
  const show = (turn: Turn, model: string, at: number) =>
    setTurns((known) =>
      known.map((each) => (each.id === turn.id ? { ...each, shown: { ...each.shown, [model]: at } } : each)),
    );
  const rate = (turn: Turn, model: string, rating: Rating | undefined) => {
    const [after] = changed([turn], turn.id, model, turn.shown[model] ?? 0, (said) => ({ ...said, rating }));
    setTurns((known) => known.map((each) => (each.id === turn.id && after ? after : each)));
    return after ?? turn;
  };
  useEffect(() => () => stopper.current?.abort(), []);
  const stop = useCallback(() => stopper.current?.abort(), []);
  const reset = () => kept.set(first);
  return { turns, busy, say, again, show, rate, stop, reset };
}

/** The rated answers of a turn, as a row of preferences. */
export function ratedOf(turns: readonly Turn[], turn: Turn, system: string, model: string, plain: boolean): Rated {
  const before = turns.slice(
    0,
    turns.findIndex((each) => each.id === turn.id),
  );
  // The histories of the models differ after the first turn; the fine-tuned one is the one to train.
  const history = historyOf(before, "tuned" in turn.answers ? "tuned" : (Object.keys(turn.answers)[0] ?? ""), system);
  return {
    id: turn.id,
    model,
    plain,
    messages: [...history, { role: "user", content: turn.question }],
    answers: Object.values(turn.answers)
      .flat()
      .filter((said) => said.error === undefined)
      .map(({ text, rating }) => ({ text, rating })),
  };
}

function historyOf(before: readonly Turn[], model: string, system: string): Message[] {
  const past = before.flatMap((turn): Message[] => {
    const said = turn.answers[model]?.[turn.shown[model] ?? 0];
    // A message without an answer is not part of the history.
    if (!said || said.error !== undefined) return [];
    return [
      { role: "user", content: turn.question },
      { role: "assistant", content: said.text },
    ];
  });
  return system.trim() ? [{ role: "system", content: system }, ...past] : past;
}

function started(turn: Turn, models: readonly string[]): Turn {
  const { answers, shown } = turn;
  const more = models.map((model) => ({ model, all: [...(answers[model] ?? []), { text: "" }] }));
  return {
    ...turn,
    answers: { ...answers, ...Object.fromEntries(more.map(({ model, all }) => [model, all])) },
    shown: { ...shown, ...Object.fromEntries(more.map(({ model, all }) => [model, all.length - 1])) },
  };
}

function changed(turns: Turn[], id: string, model: string, place: number, by: (said: Said) => Said): Turn[] {
  return turns.map((turn) => {
    if (turn.id !== id) return turn;
    const all = (turn.answers[model] ?? []).map((said, at) => (at === place ? by(said) : said));
    return { ...turn, answers: { ...turn.answers, [model]: all } };
  });
}

/** Interrupted answers are not kept. */
function isAnswered({ turns }: Conversation): boolean {
  return turns.every(({ answers }) =>
    Object.values(answers)
      .flat()
      .every((said) => said.finish ?? said.error),
  );
}

async function answer(
  taskId: string,
  request: object,
  change: (by: (said: Said) => Said) => void,
  signal: AbortSignal,
): Promise<void> {
  const began = performance.now();
  let wrote: number | undefined;
  const end = (more: Partial<Said>) => {
    const now = performance.now();
    const times = { seconds: (now - began) / 1000, writing_s: wrote === undefined ? undefined : (now - wrote) / 1000 };
    change((said) => ({ ...said, waiting: undefined, ...times, ...more }));
  };
  try {
    const reply = await fetch(`/api/v1/tasks/${encodeURIComponent(taskId)}/chat`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
      body: JSON.stringify(request),
      signal,
    });
    if (!reply.ok || !reply.body) throw new ApiError((await reply.json()) as ProblemBody);
    for await (const piece of piecesOf(reply.body)) {
      if (piece.waiting !== undefined) change((said) => ({ ...said, waiting: piece.waiting || undefined }));
      if (piece.text) {
        wrote ??= performance.now();
        change((said) => ({ ...said, waiting: undefined, text: said.text + piece.text }));
      }
      if (piece.finish) end({ finish: piece.finish, tokens: piece.tokens });
    }
  } catch (error) {
    if (signal.aborted) end({ finish: "stopped" });
    else if (error instanceof ApiError) end({ error: [error.message, error.hint].filter(Boolean).join(" ") });
    else if (error instanceof AnswerError) end({ error: error.message });
    else end({ error: "The connection to the server was lost. Send the message again; the chat is still open." });
  }
}
