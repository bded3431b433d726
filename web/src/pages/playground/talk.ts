/** A conversation with one or two models: each has its own history, all get the same message. */
import { useCallback, useEffect, useRef, useState } from "react";
import { ApiError, type ProblemBody } from "../../api/client";
import { AnswerError, piecesOf } from "../../lib/stream";
import { useKept } from "../../parts/kept";

export interface Sampling {
  system: string;
  temperature: string;
  top_p: string;
  max_tokens: string;
  seed: string;
}

export const FIRST_SAMPLING: Sampling = { system: "", temperature: "0.7", top_p: "", max_tokens: "512", seed: "" };

export interface Said {
  text: string;
  /** Why there is no output yet. */
  waiting?: string;
  error?: string;
  /** Undefined while the answer is being generated. */
  finish?: string;
  tokens?: number;
  seconds?: number;
}

export interface Turn {
  id: number;
  question: string;
  answers: Record<string, Said>;
}

export interface Talk {
  turns: Turn[];
  busy: boolean;
  say: (question: string, models: readonly string[], sampling: Sampling) => void;
  stop: () => void;
  reset: () => void;
}

const NOTHING_SAID: Turn[] = [];

export function useTalk(taskId: string): Talk {
  const kept = useKept(`chat ${taskId}`, NOTHING_SAID, isAnswered);
  const { value: turns, set: setTurns } = kept;
  const [busy, setBusy] = useState(false);
  const stopper = useRef<AbortController | null>(null);
  const next = useRef(turns.length + 1);
  const known = useRef<Turn[]>([]);
  known.current = turns;

  const say = useCallback(
    (question: string, models: readonly string[], sampling: Sampling) => {
      const control = new AbortController();
      stopper.current = control;
      const id = next.current++;
      const before = known.current;
      const change = (model: string, by: (said: Said) => Said) =>
        setTurns((all) =>
          all.map((turn) =>
            turn.id === id
              ? { ...turn, answers: { ...turn.answers, [model]: by(turn.answers[model] ?? { text: "" }) } }
              : turn,
          ),
        );
      setTurns([...before, { id, question, answers: Object.fromEntries(models.map((each) => [each, { text: "" }])) }]);
      setBusy(true);
      const all = models.map((model) =>
        answer(taskId, body(model, before, question, sampling), (by) => change(model, by), control.signal),
      );
      void Promise.all(all).finally(() => setBusy(false));
    },
    [taskId, setTurns],
  );
  useEffect(() => () => stopper.current?.abort(), []);
  const stop = useCallback(() => stopper.current?.abort(), []);
  const reset = () => {
    kept.forget();
    setTurns(NOTHING_SAID);
  };
  return { turns, busy, say, stop, reset };
}

/** Interrupted answers are not kept. */
function isAnswered(turns: Turn[]): boolean {
  return turns.every(({ answers }) => Object.values(answers).every((said) => said.finish ?? said.error));
}

function body(model: string, before: readonly Turn[], question: string, sampling: Sampling) {
  const past = before.flatMap((turn) => {
    const said = turn.answers[model];
    // A message without an answer is not part of the history.
    if (!said || said.error !== undefined) return [];
    return [
      { role: "user", content: turn.question },
      { role: "assistant", content: said.text },
    ];
  });
  const system = sampling.system.trim() ? [{ role: "system", content: sampling.system }] : [];
  const drawn = Object.entries({
    temperature: sampling.temperature,
    top_p: sampling.top_p,
    max_tokens: sampling.max_tokens,
    seed: sampling.seed,
  }).filter(([, value]) => value.trim() !== "");
  return {
    model,
    stream: true,
    messages: [...system, ...past, { role: "user", content: question }],
    ...Object.fromEntries(drawn.map(([name, value]) => [name, Number(value)])),
  };
}

async function answer(
  taskId: string,
  request: object,
  change: (by: (said: Said) => Said) => void,
  signal: AbortSignal,
): Promise<void> {
  const began = performance.now();
  const end = (more: Partial<Said>) =>
    change((said) => ({ ...said, waiting: undefined, seconds: (performance.now() - began) / 1000, ...more }));
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
      if (piece.text) change((said) => ({ ...said, waiting: undefined, text: said.text + piece.text }));
      if (piece.finish) end({ finish: piece.finish, tokens: piece.tokens });
    }
  } catch (error) {
    if (signal.aborted) end({ finish: "stopped" });
    else if (error instanceof ApiError) end({ error: [error.message, error.hint].filter(Boolean).join(" ") });
    else if (error instanceof AnswerError) end({ error: error.message });
    else end({ error: "The connection to the server was lost. Send the message again; the chat is still open." });
  }
}
