/** Rejected updates, with their reasons. */
import type { UpdateView } from "../../api/schema";
import { number } from "../../lib/format";
import { Status, Time } from "../../parts/bits";
import { Empty } from "../../parts/states";

export function Refused({ updates }: { updates: readonly UpdateView[] }) {
  if (updates.length === 0) return <Empty title="No rejected updates" />;
  return (
    <table>
      <thead>
        <tr>
          <th>Worker</th>
          <th className="num">Round</th>
          <th>Reason</th>
          <th>Time</th>
        </tr>
      </thead>
      <tbody>
        {updates.map((each) => (
          <tr key={each.id}>
            <td>
              {each.worker}
              <div className="small">
                <Status status={each.state === "rejected" ? "failed" : "cancelled"} note={each.state} />
              </div>
            </td>
            <td className="num">{number(each.round)}</td>
            <td className="small wrap">{each.reason}</td>
            <td className="muted nowrap">
              <Time at={each.created_at} relative />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
