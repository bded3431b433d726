/** Starts chats, and opens them. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { api, ask } from "../../api/client";
import type { TaskAnswer } from "../../api/schema";
import { type ChatStart, chatWith, endpointOf } from "../../lib/chats";
import type { Loading } from "../../lib/models";
import { unique } from "../../lib/unique";
import { allKept, keepAs } from "../../parts/kept";
import { useSession } from "../../parts/session";
import { type Conversation, conversationKey } from "./talk";

export function useStart() {
  const navigate = useNavigate();
  return useMutation({
    mutationFn: ({ loading, template }: { loading: Loading; template?: boolean | null }) => {
      const { document, inputs }: ChatStart = chatWith(loading, template);
      return ask(
        api.POST("/api/v1/workflows", {
          params: { header: { "idempotency-key": unique() } },
          body: { document, filename: null, inputs, strict: false },
        }),
      );
    },
    onSuccess: (made) => void navigate({ to: "/playground", search: { task: made.tasks[0]?.id } }),
  });
}

/** Starts the endpoint of a model; the list of endpoints shows it. */
export function useServe() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (loading: Loading) => {
      const { document, inputs } = endpointOf(loading);
      return ask(
        api.POST("/api/v1/workflows", {
          params: { header: { "idempotency-key": unique() } },
          body: { document, filename: null, inputs, strict: false },
        }),
      );
    },
    onSuccess: () => client.invalidateQueries({ queryKey: ["endpoints"] }),
  });
}

/** Load the model of an ended chat again; the conversation continues. */
export function useReload(task: TaskAnswer) {
  const navigate = useNavigate();
  const { info } = useSession();
  return useMutation({
    mutationFn: () =>
      ask(
        api.POST("/api/v1/tasks/{task_id}/clone", {
          params: { path: { task_id: task.id } },
          body: { overrides: {}, inputs: {} },
        }),
      ),
    onSuccess: (made) => {
      const key = conversationKey(task.id);
      const conversation = allKept<Conversation>(info.owner, key).get(key);
      if (conversation) keepAs(info.owner, conversationKey(made.id), conversation);
      void navigate({ to: "/playground", search: { task: made.id } });
    },
  });
}
