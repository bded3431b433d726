/** A workflow: its tasks as a live graph, and as a list. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { useState } from "react";
import { api, ask } from "../api/client";
import { workflowQuery } from "../api/queries";
import type { TaskView, WorkflowDetail } from "../api/schema";
import { duration, ranSeconds } from "../lib/format";
import { Confirm, Id, Panel, Status, TaskLink, Time } from "../parts/bits";
import { useCanonical } from "../parts/canonical";
import { useNow } from "../parts/clock";
import { useMaySteer, useSession } from "../parts/session";
import { Answer } from "../parts/states";
import { toast } from "../parts/toasts";
import { Drawing } from "./workflow/Drawing";

export function Workflow() {
  const { workflowId } = useParams({ from: "/workflows/$workflowId" });
  const navigate = useNavigate({ from: "/workflows/$workflowId" });
  const workflow = useQuery(workflowQuery(workflowId));
  useCanonical(
    "workflow",
    [[workflowId, workflow.data]],
    ([id = workflowId]) => void navigate({ params: { workflowId: id }, replace: true }),
  );
  return (
    <div className="page">
      {!workflow.data && <h1>Workflow {workflowId}</h1>}
      <Answer query={workflow} rows={6}>
        {(found) => <Shown workflow={found} />}
      </Answer>
    </div>
  );
}

function Shown({ workflow }: { workflow: WorkflowDetail }) {
  return (
    <>
      <div className="row between">
        <div className="row">
          <h1>{workflow.name}</h1>
          <Status status={workflow.status} />
          <Id value={workflow.id} />
        </div>
        <Actions workflow={workflow} />
      </div>
      <div className="row muted small facts-line">
        <span>owner {workflow.owner}</span>
        <span>
          submitted <Time at={workflow.created_at} relative />
        </span>
        {workflow.retried_as && (
          <span>
            retried as{" "}
            <Link to="/workflows/$workflowId" params={{ workflowId: workflow.retried_as.id }}>
              {workflow.retried_as.id}
            </Link>
          </span>
        )}
      </div>
      {(workflow.warnings ?? []).map((warning) => (
        <div key={warning} className="note">
          {warning}
        </div>
      ))}
      {workflow.tasks.length > 1 && <Drawing id={workflow.id} tasks={workflow.tasks} />}
      <Panel title="Tasks" flush>
        <table>
          <thead>
            <tr>
              <th>Task</th>
              <th className="hide-phone">Kind</th>
              <th>Status</th>
              <th className="hide-phone">Worker</th>
              <th className="num">Duration</th>
            </tr>
          </thead>
          <tbody>
            {workflow.tasks.map((task) => (
              <tr key={task.id}>
                <td>
                  <TaskLink id={task.id} name={task.name} />
                </td>
                <td className="muted hide-phone">{task.kind}</td>
                <td>
                  <Status status={task.status} />
                  {(task.why || task.error) && <div className="muted small">{task.error ?? task.why}</div>}
                </td>
                <td className="muted hide-phone">{task.worker_id}</td>
                <td className="num muted">
                  <Ran task={task} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Panel>
      <Panel title="Workflow file">
        <details>
          <summary>As submitted</summary>
          <pre>{workflow.document}</pre>
        </details>
      </Panel>
    </>
  );
}

function Ran({ task }: { task: TaskView }) {
  return <>{duration(ranSeconds(task, useNow()))}</>;
}

function Actions({ workflow }: { workflow: WorkflowDetail }) {
  const { mayChange } = useSession();
  const mine = useMaySteer(workflow);
  const client = useQueryClient();
  const navigate = useNavigate();
  const [asking, setAsking] = useState(false);
  const path = { params: { path: { workflow_id: workflow.id } } };
  const cancel = useMutation({
    mutationFn: () => ask(api.POST("/api/v1/workflows/{workflow_id}/cancel", path)),
    onSettled: () => client.invalidateQueries({ queryKey: ["workflow", workflow.id] }),
  });
  const retry = useMutation({
    mutationFn: () =>
      ask(api.POST("/api/v1/workflows/{workflow_id}/retry", { ...path, body: { overrides: {}, again: false } })),
    onSuccess: (made) => {
      toast("Unfinished tasks resubmitted", "good");
      void navigate({ to: "/workflows/$workflowId", params: { workflowId: made.id } });
    },
  });
  if (!mayChange) return null;
  return (
    <div className="row tight">
      {mine && workflow.status === "running" && (
        <button type="button" className="danger" onClick={() => setAsking(true)}>
          Cancel all
        </button>
      )}
      {(workflow.status === "failed" || workflow.status === "cancelled") && (
        <button type="button" onClick={() => retry.mutate()} disabled={retry.isPending}>
          Retry unfinished
        </button>
      )}
      {asking && (
        <Confirm
          title="Cancel this workflow?"
          action="Cancel all tasks"
          danger
          onDo={() => cancel.mutate()}
          onClose={() => setAsking(false)}
        >
          Running tasks stop after the current step. Saved checkpoints are kept, and you can resume from them.
        </Confirm>
      )}
    </div>
  );
}
