/** Typed API client. Same origin, with the session cookie; an error response is thrown as `ApiError`. */
import createClient from "openapi-fetch";
import { withoutCommands } from "../lib/words";
import type { FaultView, paths } from "./schema";

export interface ProblemBody {
  type: string;
  title: string;
  status: number;
  detail: string;
  hint?: string | null;
  faults?: FaultView[];
}

export class ApiError extends Error {
  constructor(readonly problem: ProblemBody) {
    super(problem.detail);
    this.name = "ApiError";
  }

  get status(): number {
    return this.problem.status;
  }

  get hint(): string | undefined {
    return withoutCommands(this.problem.hint);
  }

  get faults(): FaultView[] {
    return this.problem.faults ?? [];
  }
}

export const api = createClient<paths>({ baseUrl: location.origin, credentials: "same-origin" });

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** Return the response data, or throw an `ApiError`. */
export async function ask<T>(call: Promise<Answer<T>>): Promise<T> {
  let answer: Answer<T>;
  try {
    answer = await call;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError({
      type: "urn:tunefleet:error:unreachable",
      title: "No response",
      status: 0,
      detail: "The server does not respond.",
      hint: "The page retries automatically.",
    });
  }
  if (!answer.response.ok) throw new ApiError(asProblem(answer.error, answer.response));
  return answer.data as T;
}

function asProblem(body: unknown, response: Response): ProblemBody {
  if (typeof body === "object" && body !== null && "detail" in body) return body as ProblemBody;
  const { status, statusText } = response;
  return { type: "", title: statusText, status, detail: `The server returned ${status} ${statusText}.` };
}
