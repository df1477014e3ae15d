import { relative } from "node:path";
import { defineConfig } from "vitest/config";
import type { Reporter } from "vitest/reporters";

/** The first start of a stack builds the functions. */
const hookTimeout = 600_000;

/** Prints the command that repeats each failed test. */
const repeatCommands: Reporter = {
  onTestRunEnd(modules) {
    for (const module of modules) {
      for (const { name, project } of module.children.allTests("failed")) {
        const file = relative(import.meta.dirname, module.moduleId);
        console.log(`Again, in web: npx vitest run --project ${project.name} ${file} -t ${JSON.stringify(name)}`);
      }
    }
  },
};

export default defineConfig({
  test: {
    reporters: ["default", repeatCommands],
    // Each test has the stack and the processor to itself.
    fileParallelism: false,
    teardownTimeout: 10_000,
    projects: [
      {
        test: {
          name: "client",
          include: ["src/**/*.test.ts"],
          exclude: ["src/**/*.browser.test.ts"],
          globalSetup: ["test/limited.ts"],
          hookTimeout,
          testTimeout: 30_000,
        },
      },
      {
        test: {
          name: "deployed",
          include: ["test/deployed.test.ts"],
          testTimeout: 120_000,
        },
      },
      {
        test: {
          name: "browser",
          include: ["src/**/*.browser.test.ts", "test/*.browser.test.ts"],
          globalSetup: ["test/build.ts"],
          hookTimeout,
          testTimeout: 60_000,
          // A page shows a change at once, and the answer of the API only later: after retries and
          // a busy processor, more than the second that vitest waits.
          expect: { poll: { timeout: 10_000 } },
        },
      },
    ],
  },
});
