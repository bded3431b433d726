/** The playground: chat with a fine-tuned model and the base model, side by side. */
import { useQuery } from "@tanstack/react-query";
import { useSearch } from "@tanstack/react-router";
import { taskQuery } from "../api/queries";
import { useSession } from "../parts/session";
import { Empty, Failed, Loading } from "../parts/states";
import "../styles/playground.css";
import { Begin } from "./playground/Begin";
import { Session } from "./playground/Session";

export function Playground() {
  const { task } = useSearch({ from: "/playground" });
  return task ? <OfTask key={task} id={task} /> : <Choice />;
}

/** For a chat task, join it; for any other task, offer its model. */
function OfTask({ id }: { id: string }) {
  const task = useQuery(taskQuery(id));
  if (task.data?.kind === "chat") return <Session task={task.data} />;
  if (task.data) return <Choice task={id} />;
  return <div className="page">{task.error ? <Failed error={task.error} /> : <Loading rows={6} />}</div>;
}

function Choice({ task }: { task?: string }) {
  const { mayChange } = useSession();
  return (
    <div className="page">
      <h1>Playground</h1>
      {mayChange ? (
        <Begin task={task} />
      ) : (
        <Empty title="Your key is read-only">To chat, use a key with the member or admin role.</Empty>
      )}
    </div>
  );
}
