/** A document whose tasks only one worker may take: its id is a tag of its own. Pure. */
import { isMap, isSeq, parseDocument } from "yaml";

/** Ask for a worker in each task of a document; comments and order stay. */
export function pinned(text: string, worker: string): string {
  const document = parseDocument(text);
  const spec = document.get("spec");
  if (document.errors.length > 0 || !isMap(spec)) return text;
  const tags = ["resources", "tags"];
  const stages = spec.get("stages");
  if (isSeq(stages)) {
    stages.items.forEach((_, at) => {
      document.setIn(["spec", "stages", at, "spec", ...tags], document.createNode([worker], { flow: true }));
    });
  } else document.setIn(["spec", ...tags], document.createNode([worker], { flow: true }));
  return document.toString({ lineWidth: 0 });
}
