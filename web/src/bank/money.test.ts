import { expect, test } from "vitest";
import { parseMoney, formatMoney } from "./money";

test("an amount that a user writes is a whole number of minor units", () => {
  expect(parseMoney("50", "EUR")).toBe(5_000);
  expect(parseMoney(" 0,5 ", "EUR")).toBe(50);
  expect(parseMoney("19.99", "EUR")).toBe(1_999);
  expect(parseMoney("7", "JPY")).toBe(7);
  expect(parseMoney("0.001", "BHD")).toBe(1);
  expect(parseMoney("0.001", "IQD")).toBe(1);
  expect(parseMoney("50", "HUF")).toBe(5_000);
  expect(parseMoney("90071992547409.91", "EUR")).toBe(Number.MAX_SAFE_INTEGER);
});

test("a text that is no amount is not rounded to one", () => {
  for (const text of ["", "0", "-1", "1.999", "1e3", "1 000", "0x10", "1.", ".5", "90071992547409.92"]) {
    expect(parseMoney(text, "EUR"), text).toBeUndefined();
  }
  expect(parseMoney("7.5", "JPY")).toBeUndefined();
});

test("every digit of an amount is shown", () => {
  expect(formatMoney(5, "EUR")).toMatch(/0\.05/);
  expect(formatMoney(-1_999, "EUR")).toMatch(/-.*19\.99/);
  expect(formatMoney(7, "JPY")).toMatch(/7$/);
  expect(formatMoney(5_001, "HUF")).toMatch(/50\.01/);
  expect(formatMoney(Number.MAX_SAFE_INTEGER, "EUR")).toMatch(/90,071,992,547,409\.91/);
});
