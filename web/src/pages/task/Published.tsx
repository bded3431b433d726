/** Where a push task has published its files. */
import { useQuery } from "@tanstack/react-query";
import { resultQuery } from "../../api/queries_data";
import type { TaskAnswer } from "../../api/schema";
import { bytes, number } from "../../lib/format";
import { isWebAddress, type PushResult } from "../../lib/result";
import { Panel } from "../../parts/bits";

export function Published({ task }: { task: TaskAnswer }) {
  const result = useQuery(resultQuery(task.id, true)).data?.result as PushResult | undefined;
  if (!result?.url) return null;
  const { url, files = [], size_bytes } = result;
  return (
    <Panel title="Result">
      <p className="wrap">
        Published to{" "}
        {isWebAddress(url) ? (
          <a href={url} target="_blank" rel="noopener noreferrer">
            {url}
          </a>
        ) : (
          <code>{url}</code>
        )}
        <span className="muted small">
          {" "}
          · {number(files.length)} {files.length === 1 ? "file" : "files"}, {bytes(size_bytes)}
        </span>
      </p>
    </Panel>
  );
}
