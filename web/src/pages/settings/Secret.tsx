/** A secret that the server shows once: to copy, and gone when that is done. */
import { Copyable } from "../../parts/bits";

export function Secret({ title, secret, onDone }: { title: string; secret: string; onDone: () => void }) {
  return (
    <div className="secret" role="status">
      <div className="row between tight">
        <strong>{title}</strong>
        <button type="button" className="quiet" onClick={onDone}>
          I have it
        </button>
      </div>
      <Copyable text={secret} />
      <div className="muted small">It is shown this once: the server keeps no copy that could be read.</div>
    </div>
  );
}
