/** Digest of an artifact. */
import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex, utf8ToBytes } from "@noble/hashes/utils.js";

export interface Entry {
  path: string;
  digest: string;
  size_bytes: number;
}

/** The digest of its canonical JSON, which is sorted by path and escapes non-ASCII characters. */
export function manifestDigest(entries: readonly Entry[]): string {
  const sorted = entries.toSorted((one, other) => (one.path < other.path ? -1 : 1));
  const text = JSON.stringify(sorted.map((each) => [each.path, each.digest, each.size_bytes]));
  const escaped = text.replace(/[\u007f-\uffff]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return bytesToHex(sha256(utf8ToBytes(escaped)));
}
