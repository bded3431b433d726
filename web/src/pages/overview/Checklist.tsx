/** First steps on a new server: each is ticked once it is done; the list can be dismissed. */
import { useQuery } from "@tanstack/react-query";
import { Link, type LinkProps } from "@tanstack/react-router";
import { CircleCheck, CircleDashed, X } from "lucide-react";
import { taskCountsQuery, workersQuery } from "../../api/queries";
import { anyDatasetQuery } from "../../api/queries_overview";
import { isTraining } from "../../lib/words";
import { useSession } from "../../parts/session";
import { isFlag, useStored } from "../../parts/stored";

interface Step {
  title: string;
  about: string;
  done: boolean;
  action: string;
  link: Pick<LinkProps, "to" | "search">;
}

export function Checklist() {
  const { mayChange } = useSession();
  const [dismissed, dismiss] = useStored<boolean>("first-steps-dismissed", false, isFlag);
  return mayChange && !dismissed ? <Steps onDismiss={() => dismiss(true)} /> : null;
}

function Steps({ onDismiss }: { onDismiss: () => void }) {
  const steps = useSteps();
  if (!steps || steps.every((step) => step.done)) return null;
  const next = steps.findIndex((step) => !step.done);
  return (
    <section className="panel first-steps" aria-labelledby="first-steps">
      <header>
        <h2 id="first-steps">
          First steps{" "}
          <span className="muted num">
            {steps.filter((step) => step.done).length} of {steps.length}
          </span>
        </h2>
        <button type="button" className="quiet" aria-label="Dismiss first steps" title="Dismiss" onClick={onDismiss}>
          <X aria-hidden="true" />
        </button>
      </header>
      <ol className="body">
        {steps.map(({ title, about, done, action, link }, at) => (
          <li key={title} className={done ? "done" : undefined}>
            {done ? <CircleCheck aria-label="Done" /> : <CircleDashed aria-label="Open" />}
            <div className="grow">
              <strong>{title}</strong>
              <p className="muted small">{about}</p>
            </div>
            {!done && (
              <Link {...link} className={at === next ? "button primary" : "button"}>
                {action}
              </Link>
            )}
          </li>
        ))}
      </ol>
    </section>
  );
}

/** `undefined` until it is known what is done. */
function useSteps(): Step[] | undefined {
  const { owner } = useSession().info;
  const mine = { owner: owner ?? undefined };
  const workers = useQuery(workersQuery).data;
  const data = useQuery(anyDatasetQuery).data;
  const all = useQuery(taskCountsQuery(mine)).data;
  const completed = useQuery(taskCountsQuery({ ...mine, status: "completed" })).data;
  if (!workers || data === undefined || !all || !completed) return undefined;
  const trained = Object.keys(completed.kind).some(isTraining);
  return [
    {
      title: "Start a worker",
      about: "A machine that runs your fine-tunes, with or without a GPU.",
      done: workers.items.length > 0,
      action: "Join a machine",
      link: { to: "/workers", search: { join: true } },
    },
    {
      title: "Upload data",
      about: "A JSONL, CSV or Parquet file of chats, or of prompts and responses.",
      done: data || trained,
      action: "Upload",
      link: { to: "/datasets" },
    },
    {
      title: "Fine-tune a model",
      about: "Choose model, data and method; the wizard suggests the rest.",
      done: trained,
      action: "Fine-tune",
      link: { to: "/train" },
    },
    {
      title: "Chat with it",
      about: "Compare the answers of your model with those of its base model.",
      done: (all.kind.chat ?? 0) > 0,
      action: "Playground",
      link: { to: "/playground" },
    },
  ];
}
