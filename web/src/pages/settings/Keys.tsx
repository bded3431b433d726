/** API keys and their roles. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { api, ask } from "../../api/client";
import { keysQuery } from "../../api/queries_server";
import type { KeyCreated, KeyView } from "../../api/schema";
import { Confirm, Panel, Time } from "../../parts/bits";
import { useSession } from "../../parts/session";
import { Answer } from "../../parts/states";
import { ROLES, type Role } from "./Roles";
import { Secret } from "./Secret";

export function Keys() {
  const { info, isAdmin } = useSession();
  if (isAdmin) return <All />;
  return (
    <Panel title="Your key">
      <dl className="facts">
        <dt>Owner</dt>
        <dd>{info.owner}</dd>
        <dt>Role</dt>
        <dd>{info.role}</dd>
        <dt>Id</dt>
        <dd>
          <code>{info.key_id}</code>
        </dd>
      </dl>
      <div className="muted small">Only administrators can create and revoke keys.</div>
    </Panel>
  );
}

function All() {
  const keys = useQuery(keysQuery);
  const [revoked, setRevoked] = useState(false);
  const gone = keys.data?.items.filter((key) => key.revoked_at).length ?? 0;
  return (
    <Panel
      title="Keys"
      actions={
        gone > 0 && (
          <label className="row tight small">
            <input type="checkbox" checked={revoked} onChange={(event) => setRevoked(event.target.checked)} />
            Show revoked <span className="muted num">{gone}</span>
          </label>
        )
      }
      flush
    >
      <Create />
      <Answer query={keys}>
        {({ items }) => (
          <table>
            <thead>
              <tr>
                <th>Key</th>
                <th>Role</th>
                <th className="hide-phone">Owner</th>
                <th className="hide-phone">Created</th>
                <th>Used</th>
                <th>
                  <span className="hidden">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {items
                .filter((key) => revoked || !key.revoked_at)
                .map((key) => (
                  <Row key={key.id} found={key} />
                ))}
            </tbody>
          </table>
        )}
      </Answer>
    </Panel>
  );
}

function Row({ found }: { found: KeyView }) {
  const { info } = useSession();
  const client = useQueryClient();
  const [asking, setAsking] = useState(false);
  const own = found.id === info.key_id;
  const revoke = useMutation({
    mutationFn: () => ask(api.DELETE("/api/v1/keys/{key_id}", { params: { path: { key_id: found.id } } })),
    onSettled: () => client.invalidateQueries({ queryKey: own ? ["info"] : ["keys"] }),
  });
  return (
    <tr className={found.revoked_at ? "muted" : undefined}>
      <td title={found.id}>
        {found.name}
        {own && <span className="tag">yours</span>}
      </td>
      <td>{found.role}</td>
      <td className="muted hide-phone">{found.owner}</td>
      <td className="muted nowrap hide-phone">
        <Time at={found.created_at} relative />
      </td>
      <td className="muted nowrap">{found.last_used_at ? <Time at={found.last_used_at} relative /> : "never"}</td>
      <td className="num">
        {found.revoked_at ? (
          <span className="small">
            revoked <Time at={found.revoked_at} relative />
          </span>
        ) : (
          <button
            type="button"
            className="quiet"
            aria-label={`Revoke ${found.name}`}
            disabled={revoke.isPending}
            onClick={() => setAsking(true)}
          >
            Revoke
          </button>
        )}
        {asking && (
          <Confirm
            title={`Revoke ${found.name}?`}
            action="Revoke"
            danger
            onDo={() => revoke.mutate()}
            onClose={() => setAsking(false)}
          >
            {own
              ? "This session uses the key. You are logged out immediately."
              : "Requests with this key are rejected from now on, and its sessions are logged out."}
          </Confirm>
        )}
      </td>
    </tr>
  );
}

function Create() {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("member");
  const [owner, setOwner] = useState("");
  const [made, setMade] = useState<KeyCreated>();
  const create = useMutation({
    mutationFn: () => ask(api.POST("/api/v1/keys", { body: { name: name.trim(), role, owner: owner.trim() || null } })),
    onSuccess: (key) => {
      setMade(key);
      setName("");
      setOwner("");
    },
    onSettled: () => client.invalidateQueries({ queryKey: ["keys"] }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate();
  };
  return (
    <div className="lead">
      {made && (
        <Secret title={`Key ${made.name} (${made.role})`} secret={made.secret} onDone={() => setMade(undefined)} />
      )}
      <form className="line-form" aria-label="New key" onSubmit={submit}>
        <label>
          Name
          <input value={name} required maxLength={64} onChange={(event) => setName(event.target.value)} />
        </label>
        <label>
          Role
          <select value={role} onChange={(event) => setRole(event.target.value as Role)}>
            {ROLES.map(([each]) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </label>
        <label>
          Owner
          <input
            value={owner}
            placeholder={name || "same as name"}
            onChange={(event) => setOwner(event.target.value)}
          />
        </label>
        <button type="submit" disabled={!name.trim() || create.isPending}>
          Create key
        </button>
      </form>
    </div>
  );
}
