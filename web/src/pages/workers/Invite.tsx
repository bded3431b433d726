/** The command that joins a machine as a worker: its token is single-use and shown once. */
import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { api, ask } from "../../api/client";
import { useSession } from "../../parts/session";
import { Secret } from "../settings/Secret";
import { asked, NAME } from "./invited";

const EMPTY = { name: "", tags: "" };

export function Invite() {
  const { isAdmin } = useSession();
  const [wanted, setWanted] = useState(EMPTY);
  const invite = useMutation({
    mutationFn: () => ask(api.POST("/api/v1/invitations", { body: asked(wanted.name, wanted.tags) })),
    onSuccess: () => setWanted(EMPTY),
  });
  if (!isAdmin) return <div className="muted">Administrators can create the command here.</div>;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    invite.mutate();
  };
  return (
    <div className="stack tight">
      {invite.data && (
        <Secret title="Run this on the machine" secret={invite.data.command} onDone={() => invite.reset()} />
      )}
      <form className="line-form" aria-label="New invitation" onSubmit={submit}>
        <label>
          Worker name (optional)
          <input
            value={wanted.name}
            pattern={NAME}
            placeholder="from the hostname"
            onChange={(event) => setWanted({ ...wanted, name: event.target.value })}
          />
        </label>
        <label>
          Tags (optional)
          <input
            value={wanted.tags}
            placeholder="lab, a100"
            onChange={(event) => setWanted({ ...wanted, tags: event.target.value })}
          />
        </label>
        <button type="submit" disabled={invite.isPending}>
          Create command
        </button>
      </form>
    </div>
  );
}
