/** Fields of an invitation. */
import type { InvitationCreate } from "../../api/schema";

/** Allowed worker names, as on the server. */
export const NAME = "[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}";

const HOUR_S = 3600;

/** The machine chooses values for empty fields. */
export function asked(name: string, tags: string): InvitationCreate {
  const listed = tags.split(/[\s,]+/).filter(Boolean);
  return { worker_id: name.trim() || null, tags: listed.length ? listed : null, expires_s: HOUR_S };
}
