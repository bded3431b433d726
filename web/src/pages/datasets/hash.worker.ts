/** Computes the digest of a file in a web worker, so that a large file does not block the page. */
import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";

const PIECE_BYTES = 4 << 20;

export type HashReport = { done: number } | { digest: string } | { error: string };

const tell = (report: HashReport) => self.postMessage(report);

self.onmessage = async ({ data: file }: MessageEvent<File>) => {
  try {
    const digest = sha256.create();
    for (let at = 0; at < file.size; at += PIECE_BYTES) {
      digest.update(new Uint8Array(await file.slice(at, at + PIECE_BYTES).arrayBuffer()));
      tell({ done: Math.min(at + PIECE_BYTES, file.size) });
    }
    tell({ digest: bytesToHex(digest.digest()) });
  } catch (error) {
    tell({ error: String(error) });
  }
};
