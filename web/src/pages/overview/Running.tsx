/** Running tasks as live strips: loss, progress, time left, worker. */
import { Link } from "@tanstack/react-router";
import type { TaskView } from "../../api/schema";
import { duration, number, ranSeconds } from "../../lib/format";
import { isTraining } from "../../lib/words";
import { Progress, Sparkline, Status, TaskLink } from "../../parts/bits";
import { useNow } from "../../parts/clock";
import { WorkerLink } from "../../parts/Fleet";
import { useSession } from "../../parts/session";
import { Empty } from "../../parts/states";

const SHOWN = 20;

export function Running({ tasks }: { tasks: readonly TaskView[] }) {
  const { mayChange } = useSession();
  if (tasks.length === 0)
    return (
      <Empty title="Nothing is running">
        {mayChange ? (
          <Link to="/train" className="button">
            Start a fine-tune
          </Link>
        ) : (
          "Active runs appear here."
        )}
      </Empty>
    );
  return (
    <ul className="strips">
      {tasks.slice(0, SHOWN).map((task) => (
        <Strip key={task.id} task={task} />
      ))}
      {tasks.length > SHOWN && (
        <li>
          <Link to="/tasks" search={{ status: "running,dispatched" }}>
            and {number(tasks.length - SHOWN)} more
          </Link>
        </li>
      )}
    </ul>
  );
}

function Strip({ task }: { task: TaskView }) {
  return (
    <li>
      <div className="what">
        <div className="cut">
          <TaskLink id={task.id} name={task.name} />
        </div>
        <div className="muted small cut">
          {task.kind}
          {task.worker_id && (
            <>
              {" on "}
              <WorkerLink id={task.worker_id} plain />
            </>
          )}
        </div>
      </div>
      {isTraining(task.kind) && <Loss task={task} />}
      <div className="state">
        {task.stalled_since ? (
          <Status status="paused" note="stalled" />
        ) : task.desired !== "run" ? (
          <Status status="paused" note={task.desired === "pause" ? "pausing" : "cancelling"} />
        ) : task.status === "dispatched" ? (
          <span className="muted">starting</span>
        ) : task.progress ? (
          <Progress progress={task.progress} compact />
        ) : (
          <Elapsed task={task} />
        )}
      </div>
    </li>
  );
}

function Elapsed({ task }: { task: TaskView }) {
  return <span className="muted num">running for {duration(ranSeconds(task, useNow()))}</span>;
}

function Loss({ task }: { task: TaskView }) {
  const values = (task.glance?.loss ?? [])
    .map((point) => point[1])
    .filter((value): value is number => typeof value === "number");
  const evalLoss = task.glance?.latest?.eval_loss;
  return (
    <div className="loss">
      <Sparkline values={values} label={`Loss, latest ${number(values.at(-1))}`} />
      <dl className="num small">
        <dt>Loss</dt>
        <dd>{number(values.at(-1))}</dd>
        {typeof evalLoss === "number" && (
          <>
            <dt>Eval</dt>
            <dd>{number(evalLoss)}</dd>
          </>
        )}
      </dl>
    </div>
  );
}
