/** Versions of the server and its parts, and workers on another version. */
import { useQuery } from "@tanstack/react-query";
import { workersQuery } from "../../api/queries";
import { serverQuery } from "../../api/queries_server";
import type { ServerView } from "../../api/schema";
import { DocsLink, Panel } from "../../parts/bits";
import { WorkerLink } from "../../parts/Fleet";
import { Answer } from "../../parts/states";

export function Versions() {
  const server = useQuery(serverQuery);
  return (
    <Panel title="Versions" actions={<DocsLink page="how-to/upgrade">Upgrade</DocsLink>}>
      <Answer query={server} rows={4}>
        {(found) => <Shown server={found} />}
      </Answer>
    </Panel>
  );
}

function Shown({ server }: { server: ServerView }) {
  const workers = useQuery(workersQuery).data?.items ?? [];
  const others = workers.filter((each) => each.capabilities.version !== server.version);
  const same = workers.length - others.length;
  return (
    <div className="stack">
      <dl className="facts">
        <dt>Tunefleet</dt>
        <dd>
          {server.version} <span className="muted">· API {server.api}</span>
        </dd>
        <dt>Python</dt>
        <dd>
          {server.python} <span className="muted">· {server.platform}</span>
        </dd>
        <dt>Database</dt>
        <dd>
          {server.database} <span className="muted">· schema revision {server.schema_revision}</span>
        </dd>
        <dt>Files</dt>
        <dd>
          in {server.artifacts === "s3" ? "a bucket" : "a folder"}
          {server.data_dir && <span className="muted"> · {server.data_dir}</span>}
        </dd>
        <dt>Elastic scaling</dt>
        <dd>{server.elastic_scaling ? "on: idle workers go to standby" : "off"}</dd>
        <dt>Workers</dt>
        <dd>
          {workers.length === 0 ? (
            <span className="muted">no workers</span>
          ) : (
            `${same} of ${workers.length} run the server version`
          )}
        </dd>
      </dl>
      {others.length > 0 && (
        <table aria-label="Workers on another version">
          <tbody>
            {others.map((worker) => (
              <tr key={worker.id}>
                <td>
                  <WorkerLink id={worker.id} />
                </td>
                <td className="warn-text">{worker.capabilities.version}, differs from the server</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </div>
  );
}
