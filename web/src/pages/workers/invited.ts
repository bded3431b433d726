/** What an invitation is asked for. */
import type { InvitationCreate } from "../../api/schema";

/** What a worker may be called, as the server has it. */
export const NAME = "[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}";

const HOUR_S = 3600;

/** What is left empty the machine chooses by itself. */
export function asked(name: string, tags: string): InvitationCreate {
  const listed = tags.split(/[\s,]+/).filter(Boolean);
  return { worker_id: name.trim() || null, tags: listed.length ? listed : null, expires_s: HOUR_S };
}
