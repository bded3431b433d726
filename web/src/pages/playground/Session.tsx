/** One chat: status, the conversation with both models side by side, sampling parameters, ratings. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useCallback, useEffect, useRef, useState } from "react";
import { ApiError, api, ask } from "../../api/client";
import { chatQuery } from "../../api/queries_data";
import { libraryQuery } from "../../api/queries_models";
import type { TaskAnswer } from "../../api/schema";
import { sideBySide, standingOf } from "../../lib/chats";
import { LOADED, shortName } from "../../lib/models";
import { type Rating, rated } from "../../lib/preferences";
import { FIRST_SAMPLING } from "../../lib/sampling";
import { Copyable, Status } from "../../parts/bits";
import { useMaySteer } from "../../parts/session";
import { useStored } from "../../parts/stored";
import { useTitle } from "../../parts/title";
import { toast } from "../../parts/toasts";
import { type AnswerActions, Answered } from "./Answered";
import { Ask } from "./Ask";
import { type ChatSettings, Parameters } from "./Parameters";
import { Ratings, useRatings } from "./Ratings";
import { Steps } from "./Steps";
import { useReload } from "./start";
import { ratedOf, type Turn, useTalk } from "./talk";

const FIRST_SETTINGS: ChatSettings = { sampling: FIRST_SAMPLING, markdown: true };

function isChatSettings(value: unknown): value is ChatSettings {
  const { sampling, markdown } = (value ?? {}) as Partial<ChatSettings>;
  return (
    typeof markdown === "boolean" &&
    Object.keys(FIRST_SAMPLING).every((key) => isText(Reflect.get(sampling ?? {}, key)))
  );
}

function isText(value: unknown): value is string {
  return typeof value === "string";
}

interface ChatSpec {
  model?: { source?: { identifier?: string } };
  inference?: { chat_template?: boolean };
}

export function Session({ task }: { task: TaskAnswer }) {
  const mine = useMaySteer(task);
  const chat = useQuery(chatQuery(task.id));
  const name = task.name.replace(/^chat with /, "");
  const spec = task.spec as ChatSpec;
  const base = shortName(spec.model?.source?.identifier ?? "base");
  useTitle(`${name} · Playground`);
  const isPlain = spec.inference?.chat_template === false;
  const library = useQuery({ ...libraryQuery, enabled: isPlain }).data?.items;
  const loaded = library?.find(({ artifact }) => artifact.digest === task.inputs?.[LOADED]);
  const talk = useTalk(task.id, name, (isPlain && loaded?.artifact.origin?.separator) || "");
  const [settings, setSettings] = useStored("playground", FIRST_SETTINGS, isChatSettings);
  const { sampling, markdown } = settings;
  const ratings = useRatings();
  const [only, setOnly] = useState<string | null>(null);
  const [wide] = useState(() => window.matchMedia("(min-width: 1001px)").matches);
  const models = chat.data?.models ?? [];
  const together = sideBySide(models);
  const { phase } = standingOf(task, chat.data);
  const ended = phase === "ended";
  const mayAsk = mine && !ended && !!chat.data?.ready && !talk.busy;
  const actions: AnswerActions = useStable({
    onAgain: (turn, model) => talk.again(turn, model, sampling),
    onShow: talk.show,
    onRate: (turn, model, rating) => {
      const after = talk.rate(turn, model, rating);
      ratings.set(rated(ratings.value, ratedOf(talk.turns, after, sampling.system, name, isPlain)));
    },
  });
  return (
    <div className="session">
      <div className="row between">
        <div className="row">
          <h1>{name}</h1>
          {phase === "ready" && <Status status="online" note={`ready on ${task.worker_id}`} />}
          {phase === "ended" && <Status status={task.status} />}
        </div>
        <div className="row tight">
          <button type="button" disabled={talk.busy || talk.turns.length === 0} onClick={talk.reset}>
            New chat
          </button>
          {mine && (ended ? <Reload task={task} /> : <End task={task} />)}
          <Link to="/playground" search={{}} className="button">
            All models
          </Link>
        </div>
      </div>
      <Steps task={task} chat={chat.data} model={name === base ? name : `${name} and its base ${base}`} />
      <div className="chat">
        <div className="talk">
          <Conversation
            turns={talk.turns}
            names={{ base, tuned: name }}
            markdown={markdown}
            mayAsk={mayAsk}
            ready={!!chat.data?.ready}
            actions={actions}
          />
          <Ratings ratings={ratings} model={name} />
          {mine ? (
            <Ask
              busy={talk.busy}
              disabled={ended || !chat.data?.ready}
              onSay={(question) => talk.say(question, only ? [only] : together, sampling)}
              onStop={talk.stop}
            />
          ) : (
            <p className="muted">Only the owner of this chat and administrators can send messages.</p>
          )}
        </div>
        <details className="panel sampling" open={wide}>
          <summary>Settings</summary>
          <div className="stack">
            {models.length > 1 && (
              <label className="field">
                <span className="muted small">Answers from</span>
                <select value={only ?? ""} onChange={(event) => setOnly(event.target.value || null)}>
                  <option value="">{together.map(titled).join(" and ")}</option>
                  {models.map((each) => (
                    <option key={each} value={each}>
                      Only {titled(each)}
                    </option>
                  ))}
                </select>
              </label>
            )}
            <Parameters settings={settings} onChange={setSettings} />
            <details className="small">
              <summary>Use in a program</summary>
              <p className="muted">Base URL for OpenAI clients; the key is one of your API keys.</p>
              <Copyable text={`${location.origin}/api/v1/tasks/${task.id}/v1`} />
            </details>
          </div>
        </details>
      </div>
    </div>
  );
}

const titled = (model: string) => (model === "base" ? "Base" : model === "tuned" ? "Tuned" : model);

/** The same functions at each render, so that unchanged answers are not drawn again. */
function useStable(actions: AnswerActions): AnswerActions {
  const newest = useRef(actions);
  newest.current = actions;
  const onAgain = useCallback((turn: Turn, model: string) => newest.current.onAgain(turn, model), []);
  const onShow = useCallback((turn: Turn, model: string, at: number) => newest.current.onShow(turn, model, at), []);
  const onRate = useCallback(
    (turn: Turn, model: string, rating: Rating | undefined) => newest.current.onRate(turn, model, rating),
    [],
  );
  return { onAgain, onShow, onRate };
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

function Reload({ task }: { task: TaskAnswer }) {
  const reload = useReload(task);
  return (
    <button type="button" className="primary" disabled={reload.isPending} onClick={() => reload.mutate()}>
      Load again
    </button>
  );
}

function Conversation({
  turns,
  names,
  markdown,
  mayAsk,
  ready,
  actions,
}: {
  turns: readonly Turn[];
  /** Model → its name. */
  names: Record<string, string>;
  markdown: boolean;
  mayAsk: boolean;
  ready: boolean;
  actions: AnswerActions;
}) {
  const end = useRef<HTMLDivElement>(null);
  const box = useRef<HTMLElement>(null);
  const asked = turns.length;
  useEffect(() => {
    if (asked) end.current?.scrollIntoView({ block: "nearest" });
  }, [asked]);
  // Follow the answer, unless the user has scrolled up.
  useEffect(() => {
    const { current } = box;
    if (turns.length && current && current.scrollHeight - current.scrollTop - current.clientHeight < NEAR_PX)
      current.scrollTop = current.scrollHeight;
  }, [turns]);
  return (
    <section ref={box} className="conversation" aria-label="Conversation" tabIndex={0}>
      {turns.length === 0 && (
        <p className="muted nothing">
          {ready ? "Send a message to start." : "You can send messages once the model is loaded."}
        </p>
      )}
      {turns.map((turn, number) => (
        <article key={turn.id} className="turn">
          <div className="question">{turn.question}</div>
          <div className="replies">
            {Object.entries(turn.answers).map(([model, all]) => {
              const said = all[turn.shown[model] ?? 0];
              return (
                said && (
                  <Answered
                    key={model}
                    turn={turn}
                    model={model}
                    name={names[model] ?? ""}
                    said={said}
                    markdown={markdown}
                    mayAsk={mayAsk}
                    isLast={number === turns.length - 1}
                    {...actions}
                  />
                )
              );
            })}
          </div>
        </article>
      ))}
      <div ref={end} />
    </section>
  );
}

const NEAR_PX = 160;
