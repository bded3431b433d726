/** One chat: status, the conversation with both models side by side, sampling parameters. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { ApiError, api, ask } from "../../api/client";
import { chatQuery } from "../../api/queries_data";
import type { ChatView, TaskAnswer } from "../../api/schema";
import { isFinal, plain } from "../../lib/words";
import { useMaySteer } from "../../parts/session";
import { toast } from "../../parts/toasts";
import { Ask } from "./Ask";
import { Drawing } from "./Drawing";
import { FIRST_SAMPLING, type Said, type Turn, useTalk } from "./talk";

export function Session({ task }: { task: TaskAnswer }) {
  const mine = useMaySteer(task);
  const chat = useQuery(chatQuery(task.id));
  const talk = useTalk(task.id);
  const [sampling, setSampling] = useState(FIRST_SAMPLING);
  const [only, setOnly] = useState<string | null>(null);
  const models = chat.data?.models ?? [];
  const together = sideBySide(models);
  const asked = only ? [only] : together;
  const ended = isFinal(task.status);
  return (
    <div className="session">
      <div className="row between">
        <h1>
          <span className="muted">Playground · </span>
          <Link to="/tasks/$taskId" params={{ taskId: task.id }} className="strong">
            {task.name}
          </Link>
        </h1>
        <div className="row tight">
          {models.length > 1 && (
            <select aria-label="Model" value={only ?? ""} onChange={(e) => setOnly(e.target.value || null)}>
              <option value="">{together.join(" and ")}</option>
              {models.map((each) => (
                <option key={each} value={each}>
                  Only {each}
                </option>
              ))}
            </select>
          )}
          <button type="button" disabled={talk.busy || talk.turns.length === 0} onClick={talk.reset}>
            New chat
          </button>
          {mine && !ended && <End task={task} />}
          <Link to="/playground" search={{}} className="button">
            All models
          </Link>
        </div>
      </div>
      <Standing task={task} chat={chat.data} />
      <Drawing sampling={sampling} onChange={setSampling} />
      <Conversation turns={talk.turns} ready={!!chat.data?.ready} />
      {mine ? (
        <Ask
          busy={talk.busy}
          disabled={ended || !chat.data?.ready}
          onSay={(question) => talk.say(question, asked, sampling)}
          onStop={talk.stop}
        />
      ) : (
        <p className="muted">Only the owner of this chat and administrators can send messages.</p>
      )}
    </div>
  );
}

function End({ task }: { task: TaskAnswer }) {
  const client = useQueryClient();
  const path = { params: { path: { task_id: task.id } } };
  const end = useMutation({
    mutationFn: async () => {
      try {
        await ask(api.DELETE("/api/v1/tasks/{task_id}/chat", path));
      } catch (error) {
        // A chat that has not started cannot end as completed.
        if (!(error instanceof ApiError && error.status === 409)) throw error;
        await ask(api.POST("/api/v1/tasks/{task_id}/cancel", path));
      }
    },
    onSuccess: () => toast("Chat ended", "good"),
    onSettled: () => client.invalidateQueries({ queryKey: ["task", task.id] }),
  });
  return (
    <button type="button" className="danger" disabled={end.isPending} onClick={() => end.mutate()}>
      End chat
    </button>
  );
}

/** The base and the fine-tuned model; otherwise, the first model. */
function sideBySide(models: readonly string[]): string[] {
  const both = models.filter((each) => each === "base" || each === "tuned");
  return both.length ? both : models.slice(0, 1);
}

/** Status text of the session. */
function Standing({ task, chat }: { task: TaskAnswer; chat?: ChatView }) {
  const words = standing(task, chat);
  return (
    <p className={chat?.error || task.status === "failed" ? "fault" : "muted"} role="status">
      {words}
    </p>
  );
}

export function standing(task: TaskAnswer, chat: ChatView | undefined): string {
  if (task.status === "failed") return `The chat failed: ${chat?.error ?? task.error ?? "unknown error"}`;
  if (isFinal(task.status))
    return `The chat is ${plain(task.status)}. The messages stay here until you leave this page.`;
  if (!chat || task.status === "pending" || task.status === "queued") return task.why ?? "Waiting for a worker …";
  if (chat.ready) return `Ready on ${task.worker_id}: ${sideBySide(chat.models).join(" and ")}.`;
  if (task.status === "dispatched") return `Starting on ${task.worker_id} …`;
  return `Loading the model on ${task.worker_id ?? "a worker"} …`;
}

function Conversation({ turns, ready }: { turns: readonly Turn[]; ready: boolean }) {
  const end = useRef<HTMLDivElement>(null);
  const length = turns.reduce(
    (sum, turn) => sum + Object.values(turn.answers).reduce((all, each) => all + each.text.length, 1),
    0,
  );
  // biome-ignore lint/correctness/useExhaustiveDependencies: it follows what is said
  useEffect(() => {
    end.current?.scrollIntoView({ block: "nearest" });
  }, [length]);
  return (
    <section className="conversation" aria-label="Conversation" tabIndex={0}>
      {turns.length === 0 && (
        <p className="muted nothing">
          {ready ? "Send a message to start." : "You can send messages once the model is loaded."}
        </p>
      )}
      {turns.map((turn) => (
        <article key={turn.id} className="turn">
          <div className="question">{turn.question}</div>
          <div className="answers">
            {Object.entries(turn.answers).map(([model, said]) => (
              <Answered key={model} model={model} said={said} />
            ))}
          </div>
        </article>
      ))}
      <div ref={end} />
    </section>
  );
}

function Answered({ model, said }: { model: string; said: Said }) {
  const going = said.finish === undefined && said.error === undefined;
  return (
    <div className={`answer ${model}`}>
      <div className="row between tight small">
        <strong>{model}</strong>
        <span className="muted num">{footnote(said)}</span>
      </div>
      <div className="text" data-model={model} aria-busy={going}>
        {said.text}
        {going && <span className="caret" aria-hidden="true" />}
      </div>
      {said.waiting && <div className="muted small">{said.waiting}</div>}
      {said.error && (
        <div className="fault small" role="alert">
          {said.error}
        </div>
      )}
    </div>
  );
}

function footnote({ finish, tokens, seconds }: Said): string {
  const parts = [];
  if (tokens !== undefined) parts.push(tokens === 1 ? "1 token" : `${tokens} tokens`);
  if (seconds !== undefined) parts.push(`${seconds.toFixed(1)} s`);
  if (finish === "length") parts.push("stopped at max tokens");
  if (finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}
