/** Permissions of each role, and the role of this session. */
import type { KeyView } from "../../api/schema";
import { Panel } from "../../parts/bits";
import { useSession } from "../../parts/session";

export type Role = KeyView["role"];

export const ROLES: readonly (readonly [Role, string])[] = [
  ["admin", "Full access: keys, workers, all users' runs, pruning."],
  ["member", "Submits and controls own runs, and can view all runs."],
  ["viewer", "Read-only access."],
  ["worker", "For workers: executes runs and uploads results. Cannot log in."],
];

export function Roles() {
  const { info } = useSession();
  return (
    <Panel title="Roles">
      <dl className="facts">
        {ROLES.map(([role, about]) => (
          <div key={role} className="fact">
            <dt>
              {role}
              {role === info.role && <span className="tag">yours</span>}
            </dt>
            <dd className="muted">{about}</dd>
          </div>
        ))}
      </dl>
    </Panel>
  );
}
