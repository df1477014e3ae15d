/** Local stacks for tests. */
import { spawn, type ChildProcess } from "node:child_process";
import { readFileSync, readdirSync, readlinkSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

export interface Stack {
  /** The address of the API. */
  url: string;
  /** The address of the web app on a port of its own, which makes it a page of another origin. */
  app: string;
  /** The ports on which the process listens, as the kernel of Linux knows them. */
  ports(): number[];
  /** Kills the process, as a crash would. */
  kill(): Promise<void>;
}

/** Starts a stack on a free port, or on this one, with more arguments of the program `local`. */
export async function startStack({ port = 0, more = [] }: { port?: number; more?: string[] } = {}): Promise<Stack> {
  // Cargo becomes the program itself (`exec`), so a signal reaches the program.
  const local = ["run", "--quiet", "--package", "local", "--"];
  const free = ["--quiet", "--port", String(port), "--aws-address", "127.0.0.1:0"];
  const stack = spawn("cargo", [...local, ...free, ...more], { cwd: ROOT, stdio: ["ignore", "pipe", "inherit"] });
  let app = "";
  for await (const line of createInterface(stack.stdout)) {
    app = /^ +web app .*, and (\S+) /.exec(line)?.[1] ?? app;
    const url = /^Ready at (\S+)\. /.exec(line)?.[1];
    if (url) return { url, app, ports: () => ports(stack), kill: () => kill(stack) };
  }
  throw new Error("the local stack does not start");
}

function ports({ pid }: ChildProcess): number[] {
  const LISTENING = "0A";
  const target = (file: string) => {
    try {
      return readlinkSync(`/proc/${pid}/fd/${file}`);
    } catch {
      return undefined; // The process has closed the file in the meantime.
    }
  };
  const own = new Set(readdirSync(`/proc/${pid}/fd`).map(target));
  const sockets = ["tcp", "tcp6"].flatMap((table) => readFileSync(`/proc/${pid}/net/${table}`, "utf8").split("\n"));
  return sockets
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === LISTENING && own.has(`socket:[${fields[9]}]`))
    .map(([, address]) => Number.parseInt(address?.split(":")[1] ?? "", 16));
}

async function kill(stack: ChildProcess): Promise<void> {
  if (stack.exitCode !== null || stack.signalCode !== null) return;
  const ended = new Promise((done) => stack.once("exit", done));
  stack.kill("SIGKILL");
  await ended;
}
