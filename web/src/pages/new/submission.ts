/** Submits a workflow file, and shows what was made. */
import { useMutation } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useRef } from "react";
import { parse } from "yaml";
import { api, ask } from "../../api/client";
import type { SweepDetail, WorkflowDetail } from "../../api/schema";
import { inputsOf, type Submitted } from "../../lib/along";
import { unique } from "../../lib/unique";
import { toast } from "../../parts/toasts";

/** `onMade`: before the page of the run opens. */
export function useSubmission(text: string, earlier: readonly Submitted[], onMade: () => void) {
  const navigate = useNavigate();
  // A repeated click, or one after a lost response, does not submit twice.
  const once = useRef({ text: "", key: "" });
  return useMutation({
    mutationFn: async (): Promise<WorkflowDetail | SweepDetail> => {
      if (once.current.text !== text) once.current = { text, key: unique() };
      const params = { header: { "idempotency-key": once.current.key } };
      const body = { document: text, filename: null, inputs: inputsOf(text, earlier) };
      if (isSweep(text)) return ask(api.POST("/api/v1/sweeps", { params, body }));
      return ask(api.POST("/api/v1/workflows", { params, body: { ...body, strict: false } }));
    },
    onSuccess: (made) => {
      onMade();
      if ("trial_list" in made) {
        void navigate({ to: "/sweeps/$name", params: { name: made.id } });
        return;
      }
      for (const warning of made.warnings ?? []) toast(warning);
      const [only] = made.tasks;
      if (made.tasks.length === 1 && only) void navigate({ to: "/tasks/$taskId", params: { taskId: only.id } });
      else void navigate({ to: "/workflows/$workflowId", params: { workflowId: made.id } });
    },
  });
}

/** Whether a workflow file is a hyperparameter sweep. */
function isSweep(text: string): boolean {
  try {
    const document: unknown = parse(text);
    return typeof document === "object" && document !== null && "sweep" in document && document.sweep != null;
  } catch {
    // The server says what is wrong with it.
    return false;
  }
}
