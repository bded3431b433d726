/** What each role may do, and which one this window has. */
import type { KeyView } from "../../api/schema";
import { Panel } from "../../parts/bits";
import { useSession } from "../../parts/session";

export type Role = KeyView["role"];

export const ROLES: readonly (readonly [Role, string])[] = [
  ["admin", "Everything: keys, workers, other people's tasks, pruning."],
  ["member", "Submits and steers tasks of their own, and sees everybody's."],
  ["viewer", "Sees everything, changes nothing."],
  ["worker", "Is for machines: takes tasks and delivers them. It logs nobody in."],
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
