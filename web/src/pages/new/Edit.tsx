/** The workflow editor: text and form, validated while typing, submit. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link, lazyRouteComponent, useLocation, useNavigate } from "@tanstack/react-router";
import { Suspense, useRef } from "react";
import { api, ask } from "../../api/client";
import { schemaQuery } from "../../api/queries_data";
import { inputsOf, type Submitted } from "../../lib/along";
import type { SchemaNode } from "../../lib/schema";
import { unique } from "../../lib/unique";
import { useKept } from "../../parts/kept";
import { Loading } from "../../parts/states";
import { toast } from "../../parts/toasts";
import { useCheck } from "./check";
import { Form } from "./Form";
import { Memory } from "./Memory";
import { Verdict } from "./Verdict";

/** Unlike `lazy`, this reloads the page if the server was updated. */
const Editor = lazyRouteComponent(() => import("../../parts/Editor"));

const NONE: readonly Submitted[] = [];

/** `earlier`: the tasks that the workflow file was made from; their files are uploaded with it again. */
export function Edit({
  title,
  first,
  earlier = NONE,
}: {
  title: string;
  first: string;
  earlier?: readonly Submitted[];
}) {
  const { href } = useLocation();
  const draft = useKept(href, first);
  const { value: text, set: setText } = draft;
  const navigate = useNavigate();
  const schema = useQuery(schemaQuery);
  const check = useCheck(text, earlier);
  // A repeated click, or one after a lost response, does not submit twice.
  const once = useRef({ text: "", key: "" });
  const submit = useMutation({
    mutationFn: () => {
      if (once.current.text !== text) once.current = { text, key: unique() };
      return ask(
        api.POST("/api/v1/workflows", {
          params: { header: { "idempotency-key": once.current.key } },
          body: { document: text, filename: null, inputs: inputsOf(text, earlier), strict: false },
        }),
      );
    },
    onSuccess: (made) => {
      draft.forget();
      for (const warning of made.warnings ?? []) toast(warning);
      const [only] = made.tasks;
      if (made.tasks.length === 1 && only) void navigate({ to: "/tasks/$taskId", params: { taskId: only.id } });
      else void navigate({ to: "/workflows/$workflowId", params: { workflowId: made.id } });
    },
  });
  return (
    <div className="page">
      <div className="row between">
        <h1>
          New run <span className="muted">· {title}</span>
        </h1>
        <div className="row tight">
          <Link to="/new" search={{}} className="button">
            All examples
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
      {draft.found && (
        <div className="note row between">
          <span>Draft restored.</span>
          <button
            type="button"
            onClick={() => {
              draft.forget();
              setText(first);
            }}
          >
            Discard draft
          </button>
        </div>
      )}
      <div className="editor">
        <Suspense fallback={<Loading rows={10} />}>
          <Editor text={text} onChange={setText} faults={check.faults} schema={schema.data as SchemaNode | undefined} />
        </Suspense>
        <div className="stack">
          <Verdict check={check} />
          <Form text={text} onChange={setText} />
          {check.faults.length === 0 &&
            check.forecasts.map((each) => each.memory && <Memory key={each.name} forecast={each} />)}
        </div>
      </div>
    </div>
  );
}
