import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["client/**/*.test.ts"],
    globalSetup: ["test/stack.ts"],
    // The first start of the stack builds the functions.
    hookTimeout: 600_000,
    teardownTimeout: 10_000,
    testTimeout: 30_000,
  },
});
