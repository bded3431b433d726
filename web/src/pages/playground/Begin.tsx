/** Choose a model to chat with, or continue a chat. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { type FormEvent, type ReactNode, useState } from "react";
import { chatsQuery } from "../../api/queries_data";
import { libraryQuery } from "../../api/queries_models";
import { ago } from "../../lib/format";
import {
  BUILTIN,
  type Entry,
  entriesOf,
  FORM_NAMES,
  loadingOf,
  loadingOfName,
  type Model,
  type Loading as ModelLoading,
  shortName,
} from "../../lib/models";
import { changeOf } from "../../lib/result";
import { Panel, Status, Time } from "../../parts/bits";
import { useNow } from "../../parts/clock";
import { forget } from "../../parts/kept";
import { useSession } from "../../parts/session";
import { Answer, Empty } from "../../parts/states";
import { Ratings, useRatings } from "./Ratings";
import { useStart } from "./start";
import { conversationKey, conversations } from "./talk";

type Template = "" | "true" | "false";
type OnChat = (loading: ModelLoading) => void;

/** More entries than this can be searched. */
const MANY = 8;

export function Begin({ task }: { task?: string }) {
  const library = useQuery(libraryQuery);
  const start = useStart();
  const [template, setTemplate] = useState<Template>("");
  const onChat = (loading: ModelLoading) =>
    start.mutate({ loading, template: template === "" ? null : template === "true" });
  return (
    <div className="begin">
      <div className="stack">
        <Answer query={library} rows={5}>
          {({ items }) => (
            <Choices entries={entriesOf(items)} task={task} busy={start.isPending} onChat={onChat}>
              <label className="row tight small">
                <span className="muted">Chat template</span>
                <select value={template} onChange={(event) => setTemplate(event.target.value as Template)}>
                  <option value="">As trained</option>
                  <option value="true">On</option>
                  <option value="false">Off (plain text)</option>
                </select>
              </label>
            </Choices>
          )}
        </Answer>
        <Named busy={start.isPending} onChat={onChat} />
      </div>
      <div className="stack">
        <Active />
        <Earlier />
        <AllRatings />
      </div>
    </div>
  );
}

function Choices({
  entries,
  task,
  busy,
  onChat,
  children,
}: {
  entries: readonly Entry[];
  task?: string;
  busy: boolean;
  onChat: OnChat;
  /** Options of all chats. */
  children: ReactNode;
}) {
  const [typed, setTyped] = useState("");
  const isWanted = ({ versions }: Entry) => !!task && versions.some(({ artifact }) => artifact.task_id === task);
  const words = typed.toLowerCase().split(/\s+/);
  const shown = entries
    .filter(({ name, base }) => words.every((word) => `${name} ${base}`.toLowerCase().includes(word)))
    .toSorted((one, other) => Number(isWanted(other)) - Number(isWanted(one)));
  const tuned = shown.filter((each) => each.base !== null);
  const bases = shown.filter((each) => each.base === null);
  return (
    <>
      {task && !entries.some(isWanted) && <p className="note">This run has no model to chat with yet.</p>}
      <Panel
        title="Fine-tuned models"
        actions={
          <>
            {children}
            {entries.length > MANY && (
              <input
                type="search"
                aria-label="Search"
                placeholder="Search"
                value={typed}
                onChange={(event) => setTyped(event.target.value)}
              />
            )}
          </>
        }
        flush={tuned.length > 0}
      >
        {tuned.length > 0 ? (
          <ul className="entries" aria-label="Fine-tuned models">
            {tuned.map((each) => (
              <Choice key={each.key} entry={each} task={task} wanted={isWanted(each)} busy={busy} onChat={onChat} />
            ))}
          </ul>
        ) : typed ? (
          <Empty title="No matching models" />
        ) : (
          <Empty title="No fine-tuned models yet">
            <Link to="/train">Start a fine-tune</Link>
          </Empty>
        )}
      </Panel>
      <Panel title="Base models" flush>
        <ul className="entries" aria-label="Base models">
          {bases.map((each) => (
            <Choice key={each.key} entry={each} wanted={false} busy={busy} onChat={onChat} />
          ))}
          <li>
            <span className="grow">
              <strong>{shortName(BUILTIN)}</strong> <span className="muted small">built-in, 2M parameters</span>
            </span>
            <button type="button" disabled={busy} onClick={() => onChat(loadingOfName(BUILTIN))}>
              Chat
            </button>
          </li>
        </ul>
      </Panel>
    </>
  );
}

function Choice({
  entry,
  task,
  wanted,
  busy,
  onChat,
}: {
  entry: Entry;
  task?: string;
  /** The page was opened for it. */
  wanted: boolean;
  busy: boolean;
  onChat: OnChat;
}) {
  const { name, base, form, versions } = entry;
  const first =
    versions.find(({ artifact }) => artifact.task_id === task) ?? versions.find((each) => each.form === form);
  const [id, setId] = useState(first?.artifact.id);
  const chosen = versions.find(({ artifact }) => artifact.id === id) ?? versions[0];
  const now = useNow();
  if (!chosen) return null;
  const loading = loadingOf(chosen);
  const { origin, created_at } = chosen.artifact;
  const loss = changeOf(origin?.eval_loss?.[0], origin?.eval_loss?.[1]);
  return (
    <li className={wanted ? "chosen" : undefined}>
      <span className="grow">
        <Link to="/models" search={{ id: chosen.artifact.id }} className="strong">
          {name}
        </Link>{" "}
        <span className="tag">{FORM_NAMES[form]}</span>
        <span className="muted small about">
          {base && <span>of {shortName(base)}</span>}
          {loss?.percent != null && (
            <span className="num">
              eval loss {loss.percent > 0 ? "+" : "−"}
              {Math.abs(loss.percent).toFixed(0)}%
            </span>
          )}
          <span>{ago(created_at, now)}</span>
        </span>
      </span>
      {versions.length > 1 && (
        <select
          aria-label={`Version of ${name}`}
          value={chosen.artifact.id}
          onChange={(event) => setId(event.target.value)}
        >
          {versions.map((each, at) => (
            <option key={each.artifact.id} value={each.artifact.id}>
              {versionName(each, at, now)}
            </option>
          ))}
        </select>
      )}
      <button
        type="button"
        className={wanted ? "primary" : undefined}
        disabled={busy || typeof loading === "string"}
        title={typeof loading === "string" ? loading : undefined}
        onClick={() => typeof loading !== "string" && onChat(loading)}
      >
        Chat
      </button>
    </li>
  );
}

function versionName({ form, artifact }: Model, at: number, now: number): string {
  const what = form === "checkpoint" ? artifact.name.replace("-", " ") : at === 0 ? "Newest" : FORM_NAMES[form];
  return `${what}, ${ago(artifact.created_at, now)}`;
}

/** A model by its name. */
function Named({ busy, onChat }: { busy: boolean; onChat: OnChat }) {
  const [name, setName] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onChat(loadingOfName(name.trim()));
  };
  return (
    <form className="row panel named" onSubmit={submit}>
      <label className="row tight grow">
        <span className="muted small nowrap">Hugging Face id</span>
        <input
          className="grow"
          required
          placeholder="Qwen/Qwen3-0.6B"
          value={name}
          onChange={(event) => setName(event.target.value)}
        />
      </label>
      <button
        type="submit"
        disabled={busy || !name.trim()}
        title={name.trim() ? undefined : "Enter the id of a model."}
      >
        Start chat
      </button>
    </form>
  );
}

function Active() {
  const chats = useQuery(chatsQuery);
  if (!chats.data?.length) return null;
  return (
    <Panel title="Active chats" flush>
      <ul className="entries">
        {chats.data.map((each) => (
          <li key={each.id}>
            <span className="grow">
              <Link to="/playground" search={{ task: each.id }} className="strong">
                {each.name.replace(/^chat with /, "")}
              </Link>
              <span className="muted small about">
                {each.worker_id && <span>on {each.worker_id}</span>}
                <Time at={each.created_at} relative />
              </span>
            </span>
            <Status status={each.status} />
          </li>
        ))}
      </ul>
    </Panel>
  );
}

/** Conversations in this browser, besides those of active chats. */
function Earlier() {
  const { info } = useSession();
  const active = new Set(useQuery(chatsQuery).data?.map((each) => each.id));
  const [found, setFound] = useState(() => conversations(info.owner));
  const now = useNow();
  const shown = found.filter(([id, { turns }]) => turns.length > 0 && !active.has(id));
  if (shown.length === 0) return null;
  return (
    <Panel title="Conversations" flush>
      <ul className="entries">
        {shown.map(([id, { name, at, turns }]) => (
          <li key={id}>
            <span className="grow">
              <Link to="/playground" search={{ task: id }} className="strong cut">
                {turns[0]?.question}
              </Link>
              <span className="muted small about">
                <span>{name}</span>
                <span>{ago(new Date(at).toISOString(), now)}</span>
              </span>
            </span>
            <button
              type="button"
              className="quiet"
              aria-label="Delete conversation"
              title="Delete conversation"
              onClick={() => {
                forget(info.owner, conversationKey(id));
                setFound(conversations(info.owner));
              }}
            >
              ×
            </button>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function AllRatings() {
  const ratings = useRatings();
  const models = [...new Set(ratings.value.map((each) => each.model))];
  if (models.length === 0) return null;
  return (
    <Panel title="Ratings">
      <div className="stack">
        {models.map((each) => (
          <div key={each}>
            <strong>{each}</strong>
            <Ratings ratings={ratings} model={each} />
          </div>
        ))}
      </div>
    </Panel>
  );
}
