/** Actions on a task, and the outcome of its commands. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { api, ask } from "../../api/client";
import { checkpointsQuery, commandsQuery, workersQuery } from "../../api/queries";
import type { CommandView, TaskAnswer } from "../../api/schema";
import { number } from "../../lib/format";
import { COMMANDS, isFinal, isTraining } from "../../lib/words";
import { Confirm, Status, Time } from "../../parts/bits";
import { useMaySteer, useSession } from "../../parts/session";
import { toast } from "../../parts/toasts";

type Asking = "stop" | "abort" | "cancel" | null;
const SHOWN = 6;

export function Controls({ task }: { task: TaskAnswer }) {
  const { mayChange } = useSession();
  const commands = useQuery(commandsQuery(task.id));
  return (
    <>
      {mayChange && <Buttons task={task} />}
      <Outcomes commands={commands.data ?? []} />
    </>
  );
}

function Buttons({ task }: { task: TaskAnswer }) {
  const mine = useMaySteer(task);
  const client = useQueryClient();
  const navigate = useNavigate();
  const [asking, setAsking] = useState<Asking>(null);
  const path = { params: { path: { task_id: task.id } } };
  const refresh = async () => {
    for (const what of ["task", "commands", "why"]) await client.invalidateQueries({ queryKey: [what, task.id] });
  };
  const command = useMutation({
    mutationFn: (body: { command: string; data?: Record<string, unknown> }) =>
      ask(api.POST("/api/v1/tasks/{task_id}/commands", { ...path, body: { data: {}, ...body } })),
    onSettled: refresh,
  });
  const stop = useMutation({
    mutationFn: (save: boolean) => ask(api.POST("/api/v1/tasks/{task_id}/stop", { ...path, body: { save } })),
    onSettled: refresh,
  });
  const move = useMutation({
    mutationFn: (verb: "pause" | "cancel") => ask(api.POST(`/api/v1/tasks/{task_id}/${verb}`, path)),
    onSettled: refresh,
  });
  const again = useMutation({
    mutationFn: (verb: "resume" | "retry") =>
      verb === "resume"
        ? ask(api.POST("/api/v1/tasks/{task_id}/resume", { ...path, body: {} }))
        : ask(api.POST("/api/v1/tasks/{task_id}/retry", path)),
    onSuccess: (made, verb) => {
      if (made.id === task.id) return;
      toast(verb === "resume" ? "Resumed as a new run" : "Submitted again", "good");
      void navigate({ to: "/tasks/$taskId", params: { taskId: made.id } });
    },
    onSettled: refresh,
  });

  const refusal = useRefusal(task);
  const order = (name: string, busy = command.isPending) => ({
    type: "button" as const,
    disabled: busy || refusal(name) !== undefined,
    title: refusal(name),
  });
  const checkpoints = useQuery({ ...checkpointsQuery(task.id), enabled: isFinal(task.status) });
  const nothing = checkpoints.data?.length === 0 ? "No checkpoint to resume from" : undefined;
  const live = mine && task.status === "running" && task.desired === "run";
  const training = isTraining(task.kind);
  const final = isFinal(task.status);
  return (
    <div className="controls" role="toolbar" aria-label="Controls">
      {live && (
        <>
          <button {...order("pause", move.isPending)} onClick={() => move.mutate("pause")}>
            Pause
          </button>
          <button {...order("save_checkpoint")} onClick={() => command.mutate({ command: "save_checkpoint" })}>
            Save checkpoint
          </button>
          {training && (
            <>
              <button {...order("evaluate")} onClick={() => command.mutate({ command: "evaluate" })}>
                Evaluate
              </button>
              <Rate
                busy={command.isPending}
                refusal={refusal("set")}
                onSet={(learning_rate) => command.mutate({ command: "set", data: { learning_rate } })}
              />
              <button {...order("save_and_stop", stop.isPending)} onClick={() => setAsking("stop")}>
                Stop and keep
              </button>
            </>
          )}
          <button {...order("abort")} className="danger" onClick={() => setAsking("abort")}>
            Discard
          </button>
        </>
      )}
      {mine && task.status === "paused" && (
        <button type="button" className="primary" onClick={() => again.mutate("resume")} disabled={again.isPending}>
          Resume
        </button>
      )}
      {mine && !final && (
        <button type="button" className="danger" onClick={() => setAsking("cancel")}>
          Cancel
        </button>
      )}
      {mine && final && training && task.reason !== "finished" && (
        <button
          type="button"
          onClick={() => again.mutate("resume")}
          disabled={again.isPending || nothing !== undefined}
          title={nothing}
        >
          Resume
        </button>
      )}
      {final && (
        <button type="button" onClick={() => again.mutate("retry")} disabled={again.isPending}>
          Retry
        </button>
      )}
      <Link to="/new" search={{ from: task.id }} className="button">
        Clone
      </Link>
      {asking === "stop" && (
        <Confirm
          title="Stop and keep the result?"
          action="Stop and keep"
          onDo={() => stop.mutate(true)}
          onClose={() => setAsking(null)}
        >
          The run saves a checkpoint, uploads the model trained so far, and ends as completed. Dependent tasks run.
        </Confirm>
      )}
      {asking === "abort" && (
        <Confirm
          title="Discard this run?"
          action="Discard"
          danger
          onDo={() => command.mutate({ command: "abort" })}
          onClose={() => setAsking(null)}
        >
          The run stops at the current step without a final checkpoint or model. Earlier checkpoints are kept.
        </Confirm>
      )}
      {asking === "cancel" && (
        <Confirm
          title="Cancel this run?"
          action="Cancel run"
          danger
          onDo={() => move.mutate("cancel")}
          onClose={() => setAsking(null)}
        >
          The run stops after the current step. Saved checkpoints are kept, and you can resume from them.
        </Confirm>
      )}
    </div>
  );
}

/** Why the server would refuse a command to this task; `undefined` if it would not. */
function useRefusal(task: TaskAnswer): (command: string) => string | undefined {
  const worker = useQuery(workersQuery).data?.items.find((each) => each.id === task.worker_id);
  const supported = worker?.capabilities.executors.find((each) => each.kind === task.kind)?.heeds;
  return (command) => {
    if (task.worker_id === null) return "Shards run on several workers; they can only be cancelled";
    if (task.merged_into) return `Runs as part of ${task.merged_into}; it can only be cancelled`;
    if (supported && !supported.includes(command)) return `Runs of type ${task.kind} do not support this`;
    return undefined;
  };
}

function Rate({ busy, refusal, onSet }: { busy: boolean; refusal: string | undefined; onSet: (rate: number) => void }) {
  const [text, setText] = useState("");
  const rate = Number(text);
  const good = text !== "" && Number.isFinite(rate) && rate > 0;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!good) return;
    onSet(rate);
    setText("");
  };
  return (
    <form className="joined" onSubmit={submit}>
      <input
        aria-label="New learning rate"
        placeholder="learning rate"
        inputMode="decimal"
        value={text}
        onChange={(event) => setText(event.target.value)}
        aria-invalid={text !== "" && !good}
        disabled={refusal !== undefined}
      />
      <button type="submit" disabled={!good || busy || refusal !== undefined} title={refusal}>
        Set
      </button>
    </form>
  );
}

function Outcomes({ commands }: { commands: readonly CommandView[] }) {
  if (commands.length === 0) return null;
  return (
    <ul className="commands" aria-label="Commands">
      {commands
        .slice(-SHOWN)
        .reverse()
        .map((each) => (
          <li key={each.id} title={`${each.id}${each.message ? `: ${each.message}` : ""}`} className="row tight">
            <Status status={each.state} note={said(each)} />
            <span>
              {COMMANDS[each.command] ?? each.command}
              {each.command === "set" && <span className="muted"> {values(each.data ?? {})}</span>}
            </span>
            <span className="muted">
              <Time at={each.created_at} />
            </span>
            {each.state === "failed" && <span className="muted">{each.message}</span>}
          </li>
        ))}
    </ul>
  );
}

function said(command: CommandView): string {
  const step = command.step == null ? "" : ` at step ${number(command.step)}`;
  return command.state === "durable" ? `saved${step}` : `${command.state}${step}`;
}

function values(data: Record<string, unknown>): string {
  return Object.entries(data)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "number" ? number(value) : String(value)}`)
    .join(", ");
}
