/** The workflow editor: text and form, validated while typing, submit. */
import { useQuery } from "@tanstack/react-query";
import { Link, lazyRouteComponent, useLocation } from "@tanstack/react-router";
import { Suspense } from "react";
import { schemaQuery } from "../../api/queries_data";
import type { Submitted } from "../../lib/along";
import type { SchemaNode } from "../../lib/schema";
import { useKept } from "../../parts/kept";
import { Loading } from "../../parts/states";
import { CheckResult } from "./CheckResult";
import { useCheck } from "./check";
import { Form } from "./Form";
import { Memory } from "./Memory";
import { useSubmission } from "./submission";

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
  const schema = useQuery(schemaQuery);
  const check = useCheck(text, earlier);
  const submit = useSubmission(text, earlier, draft.forget);
  return (
    <div className="page">
      <div className="row between">
        <h1>
          New workflow <span className="muted">· {title}</span>
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
          <CheckResult check={check} />
          <Form text={text} onChange={setText} />
          {check.faults.length === 0 &&
            check.forecasts.map((each) => each.memory && <Memory key={each.name} forecast={each} />)}
        </div>
      </div>
    </div>
  );
}
