import { expect, test } from "vitest";
import { read, shown } from "./money";

test("an amount that a user writes is a whole number of minor units", () => {
  expect(read("50", "EUR")).toBe(5_000);
  expect(read(" 0,5 ", "EUR")).toBe(50);
  expect(read("19.99", "EUR")).toBe(1_999);
  expect(read("7", "JPY")).toBe(7);
  expect(read("0.001", "BHD")).toBe(1);
  expect(read("0.001", "IQD")).toBe(1);
  expect(read("50", "HUF")).toBe(5_000);
  expect(read("90071992547409.91", "EUR")).toBe(Number.MAX_SAFE_INTEGER);
});

test("a text that is no amount is not rounded to one", () => {
  for (const text of ["", "0", "-1", "1.999", "1e3", "1 000", "0x10", "1.", ".5", "90071992547409.92"]) {
    expect(read(text, "EUR"), text).toBeUndefined();
  }
  expect(read("7.5", "JPY")).toBeUndefined();
});

test("every digit of an amount is shown", () => {
  expect(shown(5, "EUR")).toMatch(/0\.05/);
  expect(shown(-1_999, "EUR")).toMatch(/-.*19\.99/);
  expect(shown(7, "JPY")).toMatch(/7$/);
  expect(shown(5_001, "HUF")).toMatch(/50\.01/);
  expect(shown(Number.MAX_SAFE_INTEGER, "EUR")).toMatch(/90,071,992,547,409\.91/);
});
