/** The built app. */
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";

test("the app has at most 60 KB, compressed", () => {
  const dist = fileURLToPath(new URL("../dist", import.meta.url));
  const files = readdirSync(dist, { recursive: true, withFileTypes: true }).filter((file) => file.isFile());
  const sizes = files.map((file) => gzipSync(readFileSync(`${file.parentPath}/${file.name}`)).length);
  expect(sizes.length).toBeGreaterThan(2);
  expect(sizes.reduce((sum, size) => sum + size)).toBeLessThanOrEqual(60 * 1024);
});
