/** Builds the app that the stacks of the browser tests serve. */
import { fileURLToPath } from "node:url";
import { build } from "vite";

export async function setup(): Promise<void> {
  await build({ root: fileURLToPath(new URL("..", import.meta.url)), logLevel: "warn" });
}
