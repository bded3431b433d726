/** Files that the page creates itself. */

/** How long the object URL of a download is kept: the browser reads it later, and a busy one even later. */
const KEPT_MS = 60_000;

export function download(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}

/** A name that all systems accept for a file. */
export function fileName(text: string): string {
  return text.replaceAll(/[^\p{L}\p{N}._-]+/gu, "-").replaceAll(/^-+|-+$/g, "");
}
