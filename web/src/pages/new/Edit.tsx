/** The document: edited as text or by the form, checked as it is written, submitted. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { lazy, Suspense, useRef, useState } from "react";
import { api, ask } from "../../api/client";
import { schemaQuery } from "../../api/queries_data";
import type { SchemaNode } from "../../lib/schema";
import { Loading } from "../../parts/states";
import { toast } from "../../parts/toasts";
import { useCheck } from "./check";
import { Form } from "./Form";
import { Memory } from "./Memory";
import { Verdict } from "./Verdict";

const Editor = lazy(() => import("../../parts/Editor"));

export function Edit({ title, first }: { title: string; first: string }) {
  const [text, setText] = useState(first);
  const navigate = useNavigate();
  const schema = useQuery(schemaQuery);
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
          <Form text={text} onChange={setText} />
          {check.faults.length === 0 &&
            check.forecasts.map((each) => each.memory && <Memory key={each.name} forecast={each} />)}
        </div>
      </div>
    </div>
  );
}
