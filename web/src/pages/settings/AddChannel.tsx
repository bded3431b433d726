/** New notification channel: target and events. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { api, ask } from "../../api/client";
import type { ChannelCreate, ChannelCreated } from "../../api/schema";
import { plain } from "../../lib/words";
import { useSession } from "../../parts/session";
import { toast } from "../../parts/toasts";
import { OCCASIONS, type Occasion } from "./occasions";
import { Secret } from "./Secret";

const EMPTY = { name: "", to: "", everyone: false };

export function AddChannel() {
  const { isAdmin } = useSession();
  const client = useQueryClient();
  const [wanted, setWanted] = useState(EMPTY);
  const [on, setOn] = useState<readonly Occasion[]>(OCCASIONS);
  const [made, setMade] = useState<ChannelCreated>();
  const create = useMutation({
    mutationFn: () => ask(api.POST("/api/v1/notifications/channels", { body: body(wanted, on) })),
    onSuccess: (channel) => {
      if (channel.secret) setMade(channel);
      setWanted(EMPTY);
      toast(`${channel.name} added. Send a test notification`, "good");
    },
    onSettled: () => client.invalidateQueries({ queryKey: ["channels"] }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate();
  };
  const toggle = (occasion: Occasion) =>
    setOn(OCCASIONS.filter((each) => (each === occasion ? !on.includes(each) : on.includes(each))));
  return (
    <div className="lead">
      {made?.secret && (
        <Secret title={`Signing secret for ${made.name}`} secret={made.secret} onDone={() => setMade(undefined)} />
      )}
      <form className="stack" aria-label="New channel" onSubmit={submit}>
        <div className="line-form">
          <label>
            Name
            <input
              value={wanted.name}
              required
              pattern="[A-Za-z0-9][A-Za-z0-9._\-]*"
              maxLength={64}
              onChange={(event) => setWanted({ ...wanted, name: event.target.value })}
            />
          </label>
          <label className="wide">
            Target
            <input
              value={wanted.to}
              required
              placeholder="https://… or mailto:ada@example.org"
              onChange={(event) => setWanted({ ...wanted, to: event.target.value })}
            />
          </label>
          <button type="submit" disabled={!wanted.name || !wanted.to || on.length === 0 || create.isPending}>
            Add
          </button>
        </div>
        <fieldset className="plain checks" aria-label="Events">
          {OCCASIONS.map((occasion) => (
            <label key={occasion}>
              <input type="checkbox" checked={on.includes(occasion)} onChange={() => toggle(occasion)} />
              {plain(occasion)}
            </label>
          ))}
          {isAdmin && (
            <label>
              <input
                type="checkbox"
                checked={wanted.everyone}
                onChange={(event) => setWanted({ ...wanted, everyone: event.target.checked })}
              />
              All users' runs
            </label>
          )}
        </fieldset>
      </form>
    </div>
  );
}

/** The server derives the format from the URL. */
function body(wanted: typeof EMPTY, on: readonly Occasion[]): ChannelCreate {
  return { name: wanted.name.trim(), to: wanted.to.trim(), on: [...on], everyone: wanted.everyone };
}
