/** New workflow: from an example, an earlier run or a dataset. */
import { useQueries, useQuery } from "@tanstack/react-query";
import { useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { stringify } from "yaml";
import { artifactQuery, taskQuery, workflowQuery } from "../api/queries";
import { datasetsQuery, examplesQuery, lookQuery } from "../api/queries_data";
import type { TaskAnswer } from "../api/schema";
import { titleOf } from "../lib/gallery";
import { pinned } from "../lib/pinned";
import { trainingDocument } from "../lib/traindoc";
import { useSession } from "../parts/session";
import { Empty, Failed, Loading } from "../parts/states";
import "../styles/new.css";
import { Edit } from "./new/Edit";
import { Gallery } from "./new/Gallery";

export function New() {
  const { mayChange } = useSession();
  const { template, from, data, worker } = useSearch({ from: "/new" });
  if (!mayChange)
    return (
      <div className="page">
        <Empty title="Your key is read-only">To submit runs, use a key with the member or admin role.</Empty>
      </div>
    );
  if (from) return <FromTask key={from} id={from} />;
  if (data) return <FromData key={data} id={data} />;
  return template ? <FromExample key={template} name={template} worker={worker} /> : <Gallery />;
}

function FromExample({ name, worker }: { name: string; worker: string | undefined }) {
  const examples = useQuery(examplesQuery);
  const chosen = examples.data?.find((each) => each.name === name);
  if (chosen && worker)
    return <Edit title={`${titleOf(name)}, on ${worker}`} first={pinned(chosen.document, worker)} />;
  if (chosen) return <Edit title={titleOf(name)} first={chosen.document} />;
  if (examples.data) return <Gallery />;
  return <Waiting error={examples.error} />;
}

function FromTask({ id }: { id: string }) {
  const task = useQuery(taskQuery(id));
  if (!task.data) return <Waiting error={task.error} />;
  return <FromFound task={task.data} />;
}

/** The task as it was when the editor was opened: later changes do not alter the text. */
function FromFound({ task }: { task: TaskAnswer }) {
  const [found] = useState(task);
  const { spec, resolved, name, inputs, depends_on, workflow_id } = found;
  // A stage with unresolved references cannot run alone.
  if (depends_on.length > 0 && !resolved) return <FromWorkflow id={workflow_id} />;
  const own = resolved ?? spec;
  const text = stringify({ apiVersion: "tunefleet/v1", kind: "Workflow", metadata: { name }, spec: own });
  return <Edit title={`Clone of ${name}`} first={text} earlier={[{ name, spec: own, inputs }]} />;
}

function FromWorkflow({ id }: { id: string }) {
  const workflow = useQuery(workflowQuery(id));
  const tasks = useQueries({ queries: (workflow.data?.tasks ?? []).map((each) => taskQuery(each.id)) });
  const earlier = tasks.flatMap(({ data }) => (data ? { name: data.name, spec: data.spec, inputs: data.inputs } : []));
  if (!workflow.data || earlier.length < workflow.data.tasks.length)
    return <Waiting error={workflow.error ?? tasks.find((each) => each.error)?.error} />;
  return <Edit title={`Clone of ${workflow.data.name}`} first={workflow.data.document} earlier={earlier} />;
}

function FromData({ id }: { id: string }) {
  const artifact = useQuery(artifactQuery(id));
  const look = useQuery(lookQuery(id));
  const examples = useQuery(examplesQuery);
  const datasets = useQuery(datasetsQuery);
  if (!artifact.data || !look.data || !examples.data || !datasets.data)
    return <Waiting error={artifact.error ?? look.error ?? examples.error ?? datasets.error} />;
  const { use, rows, recognised } = look.data;
  const example = examples.data.find((each) => each.name === use?.kind);
  if (!use || !example)
    return (
      <div className="page">
        <Empty title="Dataset not usable for training">The dataset page lists the errors.</Empty>
      </div>
    );
  const { name } = artifact.data;
  // A name refers to the newest upload with that name; anything else is referenced by id.
  const newest = datasets.data.items.find((each) => each.name === name && !each.task_id);
  const reference = newest?.id === id ? name : id;
  const dataset = { reference, name, rows, recognised: recognised ?? "rows" };
  return <Edit title={`Train on ${name}`} first={trainingDocument(example.document, dataset, use)} />;
}

function Waiting({ error }: { error: unknown }) {
  return <div className="page">{error ? <Failed error={error} /> : <Loading rows={8} />}</div>;
}
