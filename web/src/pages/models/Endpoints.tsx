/** Models that are served, with the command that calls each. */
import { useQuery } from "@tanstack/react-query";
import { endpointsQuery } from "../../api/queries_models";
import { number } from "../../lib/format";
import { Copyable, Panel, Status, TaskLink } from "../../parts/bits";

export function Endpoints() {
  const { data } = useQuery(endpointsQuery);
  const shown = (data ?? []).filter(({ state }) => state !== "stopped");
  if (!shown.length) return null;
  return (
    <Panel title="Endpoints">
      <div className="stack">
        {shown.map(({ name, url, state, requests, replicas }) => (
          <details key={name}>
            <summary>
              <strong>{name}</strong> <Status status={state} />{" "}
              <span className="muted">{number(requests)} requests</span>
            </summary>
            <Copyable text={curlOf(`${window.location.origin}${url}`, name)} />
            <p className="row tight">
              {replicas.map(({ task_id }) => (
                <TaskLink key={task_id} id={task_id} />
              ))}
            </p>
          </details>
        ))}
      </div>
    </Panel>
  );
}

function curlOf(url: string, model: string): string {
  const body = JSON.stringify({ model, messages: [{ role: "user", content: "Hello" }] });
  return [
    `curl ${url}/chat/completions \\`,
    "  -H 'Authorization: Bearer KEY' -H 'Content-Type: application/json' \\",
    `  -d '${body}'`,
  ].join("\n");
}
