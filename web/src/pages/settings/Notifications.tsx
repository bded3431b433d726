/** Notification channels, with a test of each, and recent notifications. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "../../api/client";
import { channelsQuery, noticesQuery } from "../../api/queries_server";
import type { ChannelTestReply, ChannelView, NotificationView } from "../../api/schema";
import { plain } from "../../lib/words";
import { Confirm, DocsLink, Panel, Status, TaskLink, Time } from "../../parts/bits";
import { useSession } from "../../parts/session";
import { Answer, Empty } from "../../parts/states";
import { toast } from "../../parts/toasts";
import { AddChannel } from "./AddChannel";
import { OCCASIONS } from "./occasions";

export function Notifications() {
  const { mayChange } = useSession();
  const channels = useQuery(channelsQuery);
  const [adding, setAdding] = useState(false);
  return (
    <div className="stack">
      <Panel
        title="Notifications"
        actions={
          <>
            <DocsLink page="how-to/notifications" />
            {mayChange && (
              <button type="button" aria-expanded={adding} onClick={() => setAdding(!adding)}>
                Add channel
              </button>
            )}
          </>
        }
        flush
      >
        {adding && <AddChannel />}
        <Answer query={channels}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty title="No notification channels yet">
                Get notified on Slack, Discord, by e-mail or webhook when runs end, fail or stall.
              </Empty>
            ) : (
              <table>
                <thead>
                  <tr>
                    <th>Channel</th>
                    <th className="hide-phone">Target</th>
                    <th>Events</th>
                    <th>
                      <span className="hidden">Actions</span>
                    </th>
                  </tr>
                </thead>
                <tbody>
                  {items.map((channel) => (
                    <Channel key={channel.id} channel={channel} />
                  ))}
                </tbody>
              </table>
            )
          }
        </Answer>
      </Panel>
      <Newest />
    </div>
  );
}

function Channel({ channel }: { channel: ChannelView }) {
  const { info, isAdmin, mayChange } = useSession();
  const mine = mayChange && (isAdmin || channel.owner === info.owner);
  return (
    <tr className={channel.enabled ? undefined : "muted"}>
      <td>
        {channel.name}
        {!channel.enabled && <span className="muted small"> · disabled</span>}
        <div className="muted small">
          {channel.owner}
          {channel.everyone && ", all users' runs"}
        </div>
      </td>
      <td className="muted hide-phone">
        {channel.to}
        <div className="small">
          {channel.format}
          {channel.signed && ", signed"}
        </div>
      </td>
      <td className="muted small">
        {channel.on.length === OCCASIONS.length ? "all" : channel.on.map(plain).join(", ")}
      </td>
      <td className="num">{mine && <Verbs channel={channel} />}</td>
    </tr>
  );
}

function Verbs({ channel }: { channel: ChannelView }) {
  const client = useQueryClient();
  const [asking, setAsking] = useState(false);
  const path = { params: { path: { channel_id: channel.id } } };
  const onSettled = () => client.invalidateQueries({ queryKey: ["channels"] });
  const test = useMutation({
    mutationFn: () => ask(api.POST("/api/v1/notifications/channels/{channel_id}/test", path)),
    onSuccess: ({ sent, error }: ChannelTestReply) =>
      sent
        ? toast(`Test notification sent to ${channel.name}`, "good")
        : toast(`Delivery to ${channel.name} failed`, "bad", error ?? ""),
    onSettled: () => client.invalidateQueries({ queryKey: ["notices"] }),
  });
  const turn = useMutation({
    mutationFn: () =>
      ask(api.PATCH("/api/v1/notifications/channels/{channel_id}", { ...path, body: { enabled: !channel.enabled } })),
    onSettled,
  });
  const remove = useMutation({
    mutationFn: () => ask(api.DELETE("/api/v1/notifications/channels/{channel_id}", path)),
    onSettled,
  });
  return (
    <div className="row tight end">
      <button type="button" className="quiet" disabled={test.isPending} onClick={() => test.mutate()}>
        {test.isPending ? "Testing …" : "Test"}
      </button>
      <button type="button" className="quiet" disabled={turn.isPending} onClick={() => turn.mutate()}>
        {channel.enabled ? "Disable" : "Enable"}
      </button>
      <button type="button" className="quiet" aria-label={`Remove ${channel.name}`} onClick={() => setAsking(true)}>
        Remove
      </button>
      {asking && (
        <Confirm
          title={`Remove channel ${channel.name}?`}
          action="Remove"
          danger
          onDo={() => remove.mutate()}
          onClose={() => setAsking(false)}
        >
          Pending notifications are dropped. Workflow files that name this channel are rejected from now on.
        </Confirm>
      )}
    </div>
  );
}

function Newest() {
  const notices = useQuery(noticesQuery);
  if (!notices.data || notices.data.items.length === 0) return null;
  return (
    <Panel title="Recent notifications" flush>
      <table>
        <tbody>
          {notices.data.items.slice(0, 8).map((notice) => (
            <Notice key={notice.id} notice={notice} />
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function Notice({ notice }: { notice: NotificationView }) {
  return (
    <tr>
      <td>
        {notice.task_id ? <TaskLink id={notice.task_id} name={notice.title} /> : notice.title}
        {notice.error && <div className="small reason">{notice.error}</div>}
      </td>
      <td className="muted hide-phone">{notice.channel ?? notice.to}</td>
      <td>
        <Status status={STATES[notice.state] ?? "pending"} note={notice.state} />
      </td>
      <td className="muted nowrap">
        <Time at={notice.sent_at ?? notice.created_at} relative />
      </td>
    </tr>
  );
}

/** Notification states mapped to task status colours. */
const STATES: Record<string, string> = { sent: "completed", failed: "failed", waiting: "pending" };
