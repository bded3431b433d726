/** What a task was asked to do, what it came from, and what it answered. */
import { Link } from "@tanstack/react-router";
import { stringify } from "yaml";
import type { TaskAnswer } from "../../api/schema";
import { Panel, TaskLink } from "../../parts/bits";

export function Spec({ task }: { task: TaskAnswer }) {
  const inputs = Object.entries(task.inputs ?? {});
  return (
    <div className="columns">
      <Panel
        title="Spec"
        actions={
          <Link to="/new" search={{ from: task.id }}>
            change and submit again
          </Link>
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
                <dt>Goes on from</dt>
                <dd>
                  <TaskLink id={task.parent_task_id} />
                </dd>
              </>
            )}
            {task.depends_on.length > 0 && (
              <>
                <dt>Needs</dt>
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
          <Panel title="As it is run">
            <details>
              <summary>References replaced</summary>
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

function Input({ pointer, digest }: { pointer: string; digest: string }) {
  return (
    <>
      <dt>{pointer}</dt>
      <dd>
        <code>{digest.slice(0, 12)}</code>
      </dd>
    </>
  );
}
