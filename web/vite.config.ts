import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { gzipSync } from "node:zlib";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";
import { documents } from "./documents.ts";

const SERVER = process.env.TUNEFLEET_URL ?? "http://127.0.0.1:8000";
const COMPRESSED = /\.(js|css|html|svg)$/;

/** Write a `.gz` beside each text file: the server sends it as it lies there, and compresses nothing itself. */
function compressed(): Plugin {
  let folder = "dist";
  return {
    name: "tunefleet-compressed",
    apply: "build",
    configResolved: (config) => {
      folder = config.build.outDir;
    },
    closeBundle: () => {
      for (const name of readdirSync(folder, { recursive: true, encoding: "utf8" })) {
        if (COMPRESSED.test(name)) {
          const path = join(folder, name);
          writeFileSync(`${path}.gz`, gzipSync(readFileSync(path), { level: 9 }));
        }
      }
    },
  };
}

export default defineConfig({
  base: "/ui/",
  plugins: [react(), documents(resolve(import.meta.dirname, "../docs")), compressed()],
  build: {
    outDir: process.env.TUNEFLEET_PAGE ?? "dist",
    emptyOutDir: true,
    // One stylesheet: a page that is opened later needs no other one from a server that may not respond.
    cssCodeSplit: false,
    target: "es2022",
    reportCompressedSize: false,
    chunkSizeWarningLimit: 600,
  },
  server: {
    fs: { allow: [".."] },
    proxy: Object.fromEntries(
      ["/api", "/login", "/logout", "/docs", "/healthz", "/metrics"].map((path) => [path, SERVER]),
    ),
  },
});
