/** Workers of a federation. */
import type { MemberView } from "../../api/schema";
import { number } from "../../lib/format";
import { Time } from "../../parts/bits";
import { Empty } from "../../parts/states";

export function Members({ members }: { members: readonly MemberView[] }) {
  if (members.length === 0)
    return <Empty title="No workers yet">A worker joins with its first upload. It needs the federation token.</Empty>;
  return (
    <table>
      <thead>
        <tr>
          <th>Worker</th>
          <th className="num">Updates</th>
          <th className="num">Examples</th>
          <th className="num hide-phone">Step</th>
          <th className="num">Loss</th>
          <th>Seen</th>
        </tr>
      </thead>
      <tbody>
        {members.map((each) => (
          <tr key={each.worker}>
            <td>
              {each.worker}
              {each.refused ? (
                <div className="bad-text small">Its latest update was rejected. {each.refused}</div>
              ) : null}
            </td>
            <td className="num">{number(each.updates)}</td>
            <td className="num">{number(each.num_examples)}</td>
            <td className="num hide-phone">{number(each.step)}</td>
            <td className="num">{number(each.loss)}</td>
            <td className="muted nowrap">
              <Time at={each.seen_at} relative />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
