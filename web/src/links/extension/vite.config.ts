/** Builds the browser extension into `dist-extension`: `APP=https://… npm run build:extension`. */
import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const app = process.env["APP"];
if (app === undefined || !/^https?:/.test(app)) throw new Error("set APP to the address of the app");

export default defineConfig({
  root: fileURLToPath(new URL(".", import.meta.url)),
  publicDir: "files",
  define: { APP: JSON.stringify(app) },
  build: {
    outDir: fileURLToPath(new URL("../../../dist-extension", import.meta.url)),
    emptyOutDir: true,
    target: "es2022",
    lib: { entry: "worker.ts", formats: ["es"], fileName: () => "worker.js" },
  },
});
