/** A new task: from an example or an earlier task, edited, checked as it is written, submitted. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { lazy, Suspense, useEffect, useMemo, useRef, useState } from "react";
import { parse, stringify } from "yaml";
import { ApiError, api, ask } from "../api/client";
import { taskQuery } from "../api/queries";
import type { FaultView, TaskForecast } from "../api/schema";
import { type Common, changed, commonFields } from "../lib/common";
import { pinned } from "../lib/pinned";
import type { SchemaNode } from "../lib/schema";
import { TEMPLATES } from "../lib/templates";
import { Panel } from "../parts/bits";
import { useSession } from "../parts/session";
import { Empty, Failed, Loading } from "../parts/states";
import { toast } from "../parts/toasts";

const Editor = lazy(() => import("../parts/Editor"));
const CHECK_AFTER_MS = 450;

export function New() {
  const { mayChange } = useSession();
  const { template, from, worker } = useSearch({ from: "/new" });
  if (!mayChange)
    return (
      <div className="page">
        <Empty title="Your key may only look">To submit takes a key with the role member or admin.</Empty>
      </div>
    );
  if (from) return <FromTask key={from} id={from} />;
  const chosen = TEMPLATES.find((each) => each.id === template);
  if (!chosen) return <Gallery />;
  const first = worker ? pinned(chosen.text, worker) : chosen.text;
  return <Edit key={chosen.id} title={worker ? `${chosen.title}, on ${worker}` : chosen.title} first={first} />;
}

function Gallery() {
  const navigate = useNavigate();
  const { worker } = useSearch({ from: "/new" });
  return (
    <div className="page">
      <h1>New task {worker && <span className="muted">· on {worker}</span>}</h1>
      <p className="muted">
        Begin with an example. They all run as they are: model and data come with Tunefleet. Each can be changed before
        it is submitted.
      </p>
      <div className="gallery">
        {TEMPLATES.map((each) => (
          <button
            key={each.id}
            type="button"
            onClick={() => void navigate({ to: "/new", search: { template: each.id, worker } })}
          >
            <strong>{each.title}</strong>
            <span>{each.about}</span>
          </button>
        ))}
      </div>
    </div>
  );
}

function FromTask({ id }: { id: string }) {
  const task = useQuery(taskQuery(id));
  if (task.data) {
    const { spec, name } = task.data;
    const text = stringify({ apiVersion: "tunefleet/v1", kind: "Workflow", metadata: { name }, spec });
    return <Edit title={`As ${name}`} first={text} />;
  }
  return <div className="page">{task.error ? <Failed error={task.error} /> : <Loading rows={8} />}</div>;
}

function Edit({ title, first }: { title: string; first: string }) {
  const [text, setText] = useState(first);
  const navigate = useNavigate();
  const schema = useQuery({
    queryKey: ["schema"],
    queryFn: () => ask(api.GET("/api/v1/schema")),
    staleTime: Number.POSITIVE_INFINITY,
  });
  const check = useCheck(text);
  // A repeated click, or one after a lost answer, submits nothing twice.
  const once = useRef({ text: "", key: "" });
  const submit = useMutation({
    mutationFn: () => {
      if (once.current.text !== text) once.current = { text, key: crypto.randomUUID() };
      return ask(
        api.POST("/api/v1/workflows", {
          params: { header: { "idempotency-key": once.current.key } },
          body: { document: text, filename: null, inputs: {}, strict: false },
        }),
      );
    },
    onSuccess: (made) => {
      for (const warning of made.warnings ?? []) toast(warning);
      const [only] = made.tasks;
      if (made.tasks.length === 1 && only) void navigate({ to: "/tasks/$taskId", params: { taskId: only.id } });
      else void navigate({ to: "/workflows/$workflowId", params: { workflowId: made.id } });
    },
  });
  const fields = useMemo(() => commonFields(text), [text]);
  return (
    <div className="page">
      <div className="row between">
        <h1>
          New task <span className="muted">· {title}</span>
        </h1>
        <div className="row tight">
          <Link to="/new" search={{}} className="button">
            Other examples
          </Link>
          <button
            type="button"
            className="primary"
            disabled={check.faults.length > 0 || submit.isPending}
            onClick={() => submit.mutate()}
          >
            {submit.isPending ? "Submitting …" : "Submit"}
          </button>
        </div>
      </div>
      <div className="editor">
        <Suspense fallback={<Loading rows={10} />}>
          <Editor text={text} onChange={setText} faults={check.faults} schema={schema.data as SchemaNode | undefined} />
        </Suspense>
        <div className="stack">
          <Verdict check={check} />
          {fields.length > 0 && (
            <Form fields={fields} onChange={(field, value) => setText(changed(text, field.path, value))} />
          )}
        </div>
      </div>
    </div>
  );
}

interface Check {
  faults: FaultView[];
  forecasts: TaskForecast[];
  busy: boolean;
  error?: ApiError;
}

/** Ask the server what it makes of the document, a moment after the last change. */
function useCheck(text: string): Check {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(text), CHECK_AFTER_MS);
    return () => window.clearTimeout(timer);
  }, [text]);
  const reply = useQuery({
    queryKey: ["validate", settled],
    queryFn: ({ signal }) =>
      ask(
        api.POST("/api/v1/workflows/validate", {
          params: { query: { dry_run: true } },
          body: { document: settled, filename: null, inputs: {}, strict: false },
          signal,
        }),
      ),
    placeholderData: (before) => before,
    gcTime: 30_000,
  });
  const error = reply.error instanceof ApiError ? reply.error : undefined;
  const faults = useMemo(() => [...(error?.faults ?? []), ...(reply.data?.faults ?? [])], [error, reply.data]);
  return { faults, forecasts: reply.data?.forecasts ?? [], busy: reply.isFetching || settled !== text, error };
}

function Verdict({ check }: { check: Check }) {
  if (check.faults.length > 0)
    return (
      <section className="panel bad" aria-label="Faults">
        <header>
          <h2>{check.faults.length === 1 ? "One fault" : `${check.faults.length} faults`}</h2>
        </header>
        <ul className="body stack">
          {check.faults.map((fault) => (
            <li key={`${fault.path} ${fault.message}`}>
              <div>{fault.message}</div>
              <div className="muted small">
                {!!fault.line && `line ${fault.line}, column ${fault.column} · `}
                {fault.path}
                {fault.hint && ` · ${fault.hint}`}
              </div>
            </li>
          ))}
        </ul>
      </section>
    );
  if (check.error) return <Failed error={check.error} />;
  return (
    <Panel title="Where it would run" actions={check.busy && <span className="muted small">checking …</span>}>
      {check.forecasts.length === 0 ? (
        <Loading rows={1} />
      ) : (
        <ul className="stack">
          {check.forecasts.map((each) => (
            <li key={each.name}>
              <div>
                <strong>{each.name}</strong> <span className="muted">{each.kind}</span>
              </div>
              <div className="small muted">
                {each.worker_id ? `on ${each.worker_id}, now` : (each.why ?? "not now")}
                {!!each.after?.length && ` · after ${each.after.join(", ")}`}
              </div>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Form({ fields, onChange }: { fields: Common[]; onChange: (field: Common, value: unknown) => void }) {
  return (
    <Panel title="Common fields">
      <div className="form">
        {fields.map((field) => (
          <label key={field.path.join(".")}>
            <span className="muted">{field.label}</span>
            {field.choices ? (
              <select
                value={String(field.value ?? "")}
                onChange={(event) => onChange(field, parse(event.target.value || "null"))}
              >
                {field.choices.map(([value, name]) => (
                  <option key={value} value={value}>
                    {name}
                  </option>
                ))}
              </select>
            ) : (
              <input
                key={String(field.value)}
                defaultValue={field.value == null ? "" : String(field.value)}
                onBlur={(event) => {
                  if (event.target.value !== String(field.value ?? ""))
                    onChange(field, parse(event.target.value || "null"));
                }}
                onKeyDown={(event) => {
                  if (event.key === "Enter") event.currentTarget.blur();
                }}
              />
            )}
          </label>
        ))}
      </div>
    </Panel>
  );
}
