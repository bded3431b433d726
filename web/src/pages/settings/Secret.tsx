/** A secret that the server shows once, to copy. */
import { Copyable } from "../../parts/bits";

export function Secret({ title, secret, onDone }: { title: string; secret: string; onDone: () => void }) {
  return (
    <div className="secret" role="status">
      <div className="row between tight">
        <strong>{title}</strong>
        <button type="button" className="quiet" onClick={onDone}>
          Done
        </button>
      </div>
      <Copyable text={secret} />
      <div className="muted small">Copy it now. It is not shown again.</div>
    </div>
  );
}
