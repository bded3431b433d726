/** Spec, lineage and result of a task. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { stringify } from "yaml";
import { artifactQuery } from "../../api/queries";
import type { ArtifactView, TaskAnswer } from "../../api/schema";
import { bytes } from "../../lib/format";
import { Panel, TaskLink } from "../../parts/bits";
import { useSession } from "../../parts/session";

export function Spec({ task }: { task: TaskAnswer }) {
  const { mayChange } = useSession();
  const inputs = Object.entries(task.inputs ?? {});
  return (
    <div className="columns">
      <Panel
        title="Spec"
        actions={
          mayChange && (
            <Link to="/new" search={{ from: task.id }}>
              Clone
            </Link>
          )
        }
      >
        <pre>{stringify(task.spec)}</pre>
      </Panel>
      <div className="stack">
        <Panel title="Lineage">
          <dl className="facts">
            <dt>Workflow</dt>
            <dd>
              <Link to="/workflows/$workflowId" params={{ workflowId: task.workflow_id }}>
                {task.workflow_name ?? task.workflow_id}
              </Link>
            </dd>
            {task.parent_task_id && (
              <>
                <dt>Resumed from</dt>
                <dd>
                  <TaskLink id={task.parent_task_id} />
                </dd>
              </>
            )}
            {task.depends_on.length > 0 && (
              <>
                <dt>Depends on</dt>
                <dd>
                  {task.depends_on.map((id) => (
                    <div key={id}>
                      <TaskLink id={id} />
                    </div>
                  ))}
                </dd>
              </>
            )}
            {inputs.map(([pointer, digest]) => (
              <Input key={pointer} pointer={pointer} digest={digest} />
            ))}
          </dl>
        </Panel>
        {task.resolved && (
          <Panel title="Resolved spec">
            <details>
              <summary>References resolved</summary>
              <pre>{stringify(task.resolved)}</pre>
            </details>
          </Panel>
        )}
        {task.result && (
          <Panel title="Result">
            <details>
              <summary>All values</summary>
              <pre>{stringify(task.result)}</pre>
            </details>
          </Panel>
        )}
      </div>
    </div>
  );
}

/** An uploaded or referenced file: links to the task that created it, or to the dataset. */
function Input({ pointer, digest }: { pointer: string; digest: string }) {
  const artifact = useQuery({ ...artifactQuery(digest), retry: false });
  return (
    <>
      <dt>{pointer}</dt>
      <dd title={digest}>
        {artifact.data ? (
          <Named artifact={artifact.data} />
        ) : (
          <code>{digest.replace(/^sha256:/, "").slice(0, 12)}</code>
        )}
        {artifact.data && <span className="muted num"> {bytes(artifact.data.size_bytes)}</span>}
        {artifact.error && <span className="muted"> removed</span>}
      </dd>
    </>
  );
}

function Named({ artifact: { id, name, task_id } }: { artifact: ArtifactView }) {
  if (task_id)
    return (
      <Link to="/tasks/$taskId" params={{ taskId: task_id }} search={{ tab: "files" }} hash={id}>
        {name}
      </Link>
    );
  return (
    <Link to="/datasets" search={{ id }}>
      {name}
    </Link>
  );
}
