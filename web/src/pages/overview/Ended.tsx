/** Results, pauses and failures, newest first, each with its next action. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { api, ask } from "../../api/client";
import { taskQuery } from "../../api/queries";
import { resultQuery } from "../../api/queries_data";
import type { TaskView } from "../../api/schema";
import { duration, number, ranSeconds } from "../../lib/format";
import { changeOf, type TrainingResult } from "../../lib/result";
import { canChat, isTraining, NEXT, plain } from "../../lib/words";
import { Gain, TaskLink, Time } from "../../parts/bits";
import { useMaySteer, useSession } from "../../parts/session";

const FAILURES_SHOWN = 5;

export function Results({ tasks }: { tasks: readonly TaskView[] }) {
  return (
    <ul className="entries">
      {tasks.map((task) => (
        <li key={task.id}>
          <Head task={task} />
          <div className="row between tight">
            <Outcome task={task} />
            {canChat(task.kind) && (
              <Link to="/playground" search={{ task: task.id }} className="button small">
                Chat
              </Link>
            )}
          </div>
        </li>
      ))}
    </ul>
  );
}

/** Eval loss before and after; training loss if nothing was evaluated. */
function Outcome({ task }: { task: TaskView }) {
  const result = useQuery(resultQuery(task.id, true)).data?.result as TrainingResult | undefined;
  const { held_out, losses } = result ?? {};
  const evaluated = changeOf(held_out?.loss_before, held_out?.loss_after);
  const change = evaluated ?? changeOf(losses?.train_first, losses?.train_last);
  return (
    <span className="small num">
      {change ? (
        <>
          <span className="muted">{evaluated ? "Eval loss" : "Training loss"}</span> {number(change.before)} →{" "}
          <strong>{number(change.after)}</strong> <Gain change={change} good={change.after < change.before} />
        </>
      ) : (
        <span className="muted">completed</span>
      )}
      <span className="muted hide-phone"> · {duration(ranSeconds(task, 0))}</span>
    </span>
  );
}

export function Paused({ tasks }: { tasks: readonly TaskView[] }) {
  return (
    <ul className="entries">
      {tasks.map((task) => (
        <PausedRun key={task.id} task={task} />
      ))}
    </ul>
  );
}

function PausedRun({ task }: { task: TaskView }) {
  const mine = useMaySteer(task);
  const again = useAgain(task);
  // A list has the progress of running tasks only.
  const { step, max_steps } = useQuery(taskQuery(task.id)).data?.progress ?? {};
  return (
    <li>
      <div className="row between tight">
        <div className="what">
          <TaskLink id={task.id} name={task.name} />
          <div className="muted small num">
            {task.kind}
            {!!step && ` · step ${number(step)}${max_steps ? ` of ${number(max_steps)}` : ""}`}
          </div>
        </div>
        {mine && (
          <button type="button" onClick={() => again.mutate("resume")} disabled={again.isPending}>
            Resume
          </button>
        )}
      </div>
    </li>
  );
}

export function Failures({ tasks }: { tasks: readonly TaskView[] }) {
  return (
    <ul className="entries">
      {tasks.slice(0, FAILURES_SHOWN).map((task) => (
        <Failure key={task.id} task={task} />
      ))}
    </ul>
  );
}

function Failure({ task }: { task: TaskView }) {
  const next = NEXT[task.reason ?? ""];
  return (
    <li>
      <Head task={task} />
      <div className="small reason">{task.error ?? plain(task.reason)}</div>
      <div className="row between tight">
        <span className="muted small grow">{next?.advice}</span>
        <FailureAction task={task} retry={next?.retry === true} />
      </div>
    </li>
  );
}

/** Retry what may succeed unchanged; edit what cannot. */
function FailureAction({ task, retry }: { task: TaskView; retry: boolean }) {
  const { mayChange } = useSession();
  const again = useAgain(task);
  if (!mayChange) return null;
  if (task.reason === "upstream_failed")
    return (
      <Link to="/workflows/$workflowId" params={{ workflowId: task.workflow_id }} className="button small">
        Open workflow
      </Link>
    );
  if (retry)
    return (
      <button type="button" className="small" onClick={() => again.mutate("retry")} disabled={again.isPending}>
        Retry
      </button>
    );
  return (
    <Link to={isTraining(task.kind) ? "/train" : "/new"} search={{ from: task.id }} className="button small">
      Edit and rerun
    </Link>
  );
}

function Head({ task }: { task: TaskView }) {
  return (
    <div className="row between tight head">
      <span className="cut">
        <TaskLink id={task.id} name={task.name} /> <span className="muted small">{task.kind}</span>
      </span>
      <span className="muted small nowrap">
        <Time at={task.finished_at} relative />
      </span>
    </div>
  );
}

/** Resume a paused run, or submit a failed one again. */
function useAgain(task: TaskView) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const path = { params: { path: { task_id: task.id } } };
  return useMutation({
    mutationFn: (verb: "resume" | "retry") =>
      verb === "resume"
        ? ask(api.POST("/api/v1/tasks/{task_id}/resume", { ...path, body: {} }))
        : ask(api.POST("/api/v1/tasks/{task_id}/retry", path)),
    onSuccess: (made) => void navigate({ to: "/tasks/$taskId", params: { taskId: made.id } }),
    onSettled: () =>
      client.invalidateQueries({ predicate: ({ queryKey }) => String(queryKey[0]).startsWith("overview") }),
  });
}
