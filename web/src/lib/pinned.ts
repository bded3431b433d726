/** Pins the tasks of a workflow file to one worker, whose id is one of its tags. Pure. */
import { isMap, isSeq, parseDocument } from "yaml";

/** Require a worker in each task; comments and order are kept. */
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
