/** A local stack for tests. `LEDGERLINE_URL` names one that runs already. */
import { spawn, type ChildProcess } from "node:child_process";
import { createInterface } from "node:readline";
import type { TestProject } from "vitest/node";

declare module "vitest" {
  export interface ProvidedContext {
    url: string;
  }
}

const ROOT = new URL("../..", import.meta.url);

let stack: ChildProcess | undefined;

export async function setup(project: TestProject): Promise<() => void> {
  project.provide("url", process.env["LEDGERLINE_URL"] ?? (await start()));
  return () => stack?.kill();
}

/** Starts a stack on free ports, and returns its address. */
async function start(): Promise<string> {
  const local = ["run", "--quiet", "--package", "local", "--"];
  const free = ["--quiet", "--port", "0", "--aws-address", "127.0.0.1:0"];
  // A caller who sends more is asked to wait.
  const limit = ["--parameter-overrides", "CallerRequestsPerSecond=10"];
  stack = spawn("cargo", [...local, ...free, ...limit], { cwd: ROOT, stdio: ["ignore", "pipe", "inherit"] });
  if (!stack.stdout) throw new Error("the stack has no output");
  for await (const line of createInterface(stack.stdout)) {
    const url = /^Ready at (\S+)\. /.exec(line)?.[1];
    if (url) return url;
  }
  throw new Error("the local stack does not start");
}
