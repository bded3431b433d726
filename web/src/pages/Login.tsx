/** Login: with an API key, or with the code of a login link after `#`. */
import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useEffect, useState } from "react";
import { ApiError, api, ask } from "../api/client";

// Removed from the URL immediately, so that it cannot be copied. Each code works once.
const code = new URLSearchParams(location.hash.slice(1)).get("code");
if (code) history.replaceState(null, "", location.pathname + location.search);
let redeemed = false;

export function Login() {
  const client = useQueryClient();
  const [key, setKey] = useState("");
  const [error, setError] = useState<ApiError>();
  const [busy, setBusy] = useState(false);

  const enter = async (by: { key: string } | { code: string }) => {
    setBusy(true);
    try {
      client.setQueryData(["info"], await ask(api.POST("/api/v1/session", { body: by })));
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      setError(failure);
      setBusy(false);
    }
  };
  // biome-ignore lint/correctness/useExhaustiveDependencies: a code is redeemed once
  useEffect(() => {
    if (!code || redeemed) return;
    redeemed = true;
    void enter({ code });
  }, []);

  const submit = (event: FormEvent) => {
    event.preventDefault();
    void enter({ key: key.trim() });
  };
  return (
    <main className="login">
      <form onSubmit={submit}>
        <h1>Log in to Tunefleet</h1>
        {error && (
          <div className="fault" role="alert">
            {error.message} {error.hint}
          </div>
        )}
        <label>
          API key
          <input
            type="password"
            autoComplete="off"
            required
            // biome-ignore lint/a11y/noAutofocus: the only thing to do here
            autoFocus
            value={key}
            onChange={(event) => setKey(event.target.value)}
          />
        </label>
        <button type="submit" className="primary" disabled={busy || !key.trim()}>
          {busy ? "Logging in …" : "Log in"}
        </button>
        <p className="muted small">
          Or open the login link that <code>tunefleet up</code> prints. To create another, run{" "}
          <code>tunefleet login</code>.
        </p>
      </form>
    </main>
  );
}
