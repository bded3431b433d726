/** Submits a workflow file, and shows what was made. */
import { useMutation } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useRef } from "react";
import { api, ask } from "../../api/client";
import { inputsOf, type Submitted } from "../../lib/along";
import { unique } from "../../lib/unique";
import { toast } from "../../parts/toasts";

/** `onMade`: before the page of the run opens. */
export function useSubmission(text: string, earlier: readonly Submitted[], onMade: () => void) {
  const navigate = useNavigate();
  // A repeated click, or one after a lost response, does not submit twice.
  const once = useRef({ text: "", key: "" });
  return useMutation({
    mutationFn: () => {
      if (once.current.text !== text) once.current = { text, key: unique() };
      return ask(
        api.POST("/api/v1/workflows", {
          params: { header: { "idempotency-key": once.current.key } },
          body: { document: text, filename: null, inputs: inputsOf(text, earlier), strict: false },
        }),
      );
    },
    onSuccess: (made) => {
      onMade();
      for (const warning of made.warnings ?? []) toast(warning);
      const [only] = made.tasks;
      if (made.tasks.length === 1 && only) void navigate({ to: "/tasks/$taskId", params: { taskId: only.id } });
      else void navigate({ to: "/workflows/$workflowId", params: { workflowId: made.id } });
    },
  });
}
