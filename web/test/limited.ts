/** The stack of the tests of the client. `LEDGERLINE_URL` names one that runs already. */
import type { TestProject } from "vitest/node";
import { startStack } from "./stack";

declare module "vitest" {
  export interface ProvidedContext {
    url: string;
  }
}

export async function setup(project: TestProject): Promise<(() => Promise<void>) | undefined> {
  const running = process.env["LEDGERLINE_URL"];
  if (running !== undefined) {
    project.provide("url", running);
    return undefined;
  }
  // The API throttles a caller beyond this rate.
  const stack = await startStack({ more: ["--parameter-overrides", "CallerRequestsPerSecond=10"] });
  project.provide("url", stack.url);
  return stack.kill;
}
