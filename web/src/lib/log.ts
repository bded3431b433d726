/** A log's text as lines with levels. Pure. */

export type Level = "error" | "warning" | "";

/** A progress bar writes over its line by carriage returns: what stands at the end is what a terminal shows. */
export function lines(text: string): string[] {
  const found = text.split("\n");
  if (found.at(-1) === "") found.pop();
  return found.map((line) => {
    const end = line.endsWith("\r") ? line.slice(0, -1) : line;
    return end.slice(end.lastIndexOf("\r") + 1);
  });
}

export function levelOf(line: string): Level {
  if (/\b(ERROR|CRITICAL|FATAL)\b|^Traceback |^\w*(Error|Exception)\b/.test(line)) return "error";
  if (/\bWARN(ING)?\b|Warning:/.test(line)) return "warning";
  return "";
}
