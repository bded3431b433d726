/** Training agents: machines without inbound connections that poll for training runs. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "../../api/client";
import type { AgentView } from "../../api/schema";
import { Confirm, Panel, Status, Time } from "../../parts/bits";
import { WorkerLink } from "../../parts/Fleet";
import { useSession } from "../../parts/session";

export function Agents({ agents }: { agents: readonly AgentView[] }) {
  const { info, isAdmin, mayChange } = useSession();
  const client = useQueryClient();
  const [asked, setAsked] = useState<string>();
  const remove = useMutation({
    mutationFn: (agent_id: string) =>
      ask(api.DELETE("/api/training/agents/{agent_id}", { params: { path: { agent_id } } })),
    onSettled: () => client.invalidateQueries({ queryKey: ["agents"] }),
  });
  if (agents.length === 0) return null;
  return (
    <Panel
      title={
        <>
          Training agents <span className="muted num">{agents.length}</span>
        </>
      }
      flush
    >
      <table>
        <thead>
          <tr>
            <th>Agent</th>
            <th>State</th>
            <th className="hide-phone">Machine</th>
            <th>Last poll</th>
            <th className="hide-phone">Version</th>
            <th className="hide-phone">Owner</th>
            <th>
              <span className="hidden">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {agents.map((agent) => (
            <tr key={agent.agent_id}>
              <td>
                <WorkerLink id={agent.agent_id} />
              </td>
              <td>
                <Status status={agent.status} />
                {!agent.has_lease && (
                  <span className="muted small" title="Longer timeout before marked as lost">
                    {" "}
                    · no heartbeats
                  </span>
                )}
              </td>
              <td className="muted hide-phone">
                {agent.hostname} {agent.platform && `(${agent.platform})`}
              </td>
              <td className="muted nowrap">
                <Time at={agent.last_poll_at} relative />
              </td>
              <td className="muted hide-phone">{agent.version}</td>
              <td className="muted hide-phone">{agent.user_id}</td>
              <td className="num">
                {mayChange && !agent.is_online && (isAdmin || agent.user_id === info.owner) && (
                  <button type="button" className="quiet" onClick={() => setAsked(agent.agent_id)}>
                    Remove
                  </button>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {asked && (
        <Confirm
          title={`Remove ${asked}?`}
          action="Remove"
          danger
          onDo={() => remove.mutate(asked)}
          onClose={() => setAsked(undefined)}
        >
          Its unfinished tasks are rescheduled.
        </Confirm>
      )}
    </Panel>
  );
}
