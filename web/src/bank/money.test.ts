import { expect, test } from "vitest";
import { askForMoney, formatMoney, parseMoney } from "./money";

/** Every language that the runtime knows, and regions whose marks differ from those of their language. */
const LETTERS = [..."abcdefghijklmnopqrstuvwxyz"];
const CODES = LETTERS.flatMap((one) => LETTERS.flatMap((two) => [one + two, ...LETTERS.map((three) => one + two + three)]));
const REGIONS = "de-AT de-CH de-LI fr-CH fr-CA it-CH en-IN en-ZA en-CH pt-PT pt-CV es-MX es-CR nl-BE ar-KW ar-EG ar-MA uz-AF";
const LOCALES = [...Intl.NumberFormat.supportedLocalesOf(CODES), ...REGIONS.split(" ")];
const CURRENCIES = ["EUR", "JPY", "BHD", "CLF", "CVE", "HUF"];
const AMOUNTS = [1, 50, 999, 1_000, 5_000, 123_456, 1_000_000, 123_456_789, 10_000_000_000, Number.MAX_SAFE_INTEGER];

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
  for (const text of ["", "0", "-1", "1.999", "1e3", "1 00", "1,00,0", "0x10", "1.", ".5", "1.2.3", "50 $", "90071992547409.92"]) {
    expect(parseMoney(text, "EUR"), text).toBeUndefined();
  }
  expect(parseMoney("7.5", "JPY")).toBeUndefined();
});

test("an amount is read as the locale shows it", () => {
  for (const [locale, currency, text, minor] of [
    ["en-US", "BHD", "1,000", 1_000_000],
    ["en-US", "BHD", "1.000", 1_000],
    ["en-US", "CLF", "1,000", 10_000_000],
    ["en-US", "BHD", "0,500", 500],
    ["en-US", "EUR", "1,000.5", 100_050],
    ["de-DE", "BHD", "1,000", 1_000],
    ["de-DE", "BHD", "1.000", 1_000_000],
    ["de-DE", "EUR", "1.000,00", 100_000],
    ["de-DE", "EUR", "1 000,00", 100_000],
    ["fr-FR", "EUR", "1 000,00", 100_000],
    ["de-CH", "CHF", "1'000.50", 100_050],
    ["en-IN", "INR", "1,00,000", 10_000_000],
    ["ar-KW", "KWD", "٥٠", 50_000],
    ["ar-KW", "KWD", "٥٬٠٠٠٫٠٠٠", 5_000_000],
    ["ar-KW", "KWD", "1000.5", 1_000_500],
    ["ja-JP", "JPY", "５０", 50],
    ["ja-JP", "JPY", "１，０００", 1_000],
    ["en-US", "EUR", "€50", 5_000],
    ["en-US", "EUR", "50 EUR", 5_000],
    ["pt-CV", "CVE", "50$5", 5_050],
  ] as const) {
    expect(parseMoney(text, currency, locale), `${text} in ${locale}`).toBe(minor);
  }
});

test("an amount that may be two is refused with a question that shows both", () => {
  const en = { currency: "EUR", locale: "en-US" };
  for (const { text, currency, locale, readings } of [
    { ...en, text: "1.000", readings: ["€1.00", "€1,000.00"] },
    { ...en, text: "1.999", readings: ["€1,999.00"] },
    { ...en, text: "1.000,50", readings: ["€1,000.50"] },
    { ...en, text: "1.000.000", readings: ["€1,000,000.00"] },
    { text: "1.000", currency: "JPY", locale: "ja-JP", readings: ["￥1", "￥1,000"] },
    { text: "1,000", currency: "BHD", locale: "de-CH", readings: ["BHD 1.000", "BHD 1'000.000"] },
    { text: "1,000", currency: "KWD", locale: "ar-KW", readings: ["\u200f١٫٠٠٠ د.ك.\u200f", "\u200f١٬٠٠٠٫٠٠٠ د.ك.\u200f"] },
    { text: "1.000", currency: "BHD", locale: "fr-FR", readings: ["1,000 BHD", "1 000,000 BHD"] },
  ]) {
    expect(parseMoney(text, currency, locale), `${text} in ${locale}`).toBeUndefined();
    const question = askForMoney(text, currency, locale).replace(/\s/g, " ");
    expect(question).toBe(`Does “${text}” mean ${readings.join(" or ")}? Write it like that.`);
  }
  expect(askForMoney("much", "EUR", "en-US")).toBe("Write an amount above 0 in EUR, such as €12.00.");
});

test("every amount that a locale shows is read as the same amount", { timeout: 60_000 }, () => {
  const differ: unknown[] = [];
  const check = (currency: string, locale: string) => {
    for (const minor of AMOUNTS) {
      const shown = formatMoney(minor, currency, locale);
      const read = parseMoney(shown, currency, locale);
      if (read !== minor) differ.push([locale, shown, minor, read]);
    }
  };
  for (const locale of LOCALES) for (const currency of CURRENCIES) check(currency, locale);
  for (const currency of Intl.supportedValuesOf("currency")) for (const locale of ["en-US", "de", "fr", "ar-KW"]) check(currency, locale);
  expect(LOCALES.length).toBeGreaterThan(200);
  expect(differ).toEqual([]);
});

test("an amount as another locale shows it is read as that one, as this locale shows it, or not at all", () => {
  const locales = ["en-US", "de-DE", "de-CH", "fr-FR", "fr-CH", "en-IN", "es-ES", "ar-KW", "ar-MA", "hi-IN", "fa-IR", "ja-JP"];
  const wrong: unknown[] = [];
  let read = 0;
  for (const currency of CURRENCIES) for (const other of locales) for (const minor of AMOUNTS) {
    const text = formatMoney(minor, currency, other).replace(/[^\p{Nd}.,'٬٫\u2019\u00a0\u202f]/gu, "").trim();
    for (const locale of locales) {
      const found = parseMoney(text, currency, locale);
      if (found === undefined) continue;
      read += 1;
      const form = { style: "currency", currency, useGrouping: true, maximumFractionDigits: 4 } as const;
      const shown = new Intl.NumberFormat(locale, form).format(Number(formatMoney(found, currency, "en-US").replace(/[^\d.]/g, "")));
      if (found !== minor && !shown.includes(text)) wrong.push([locale, text, minor, found, shown]);
    }
  }
  expect(read).toBeGreaterThan(1_000);
  expect(wrong).toEqual([]);
});

test("every digit of an amount is shown", () => {
  expect(formatMoney(5, "EUR")).toMatch(/0\.05/);
  expect(formatMoney(-1_999, "EUR")).toMatch(/-.*19\.99/);
  expect(formatMoney(7, "JPY")).toMatch(/7$/);
  expect(formatMoney(5_001, "HUF")).toMatch(/50\.01/);
  expect(formatMoney(Number.MAX_SAFE_INTEGER, "EUR")).toMatch(/90,071,992,547,409\.91/);
});
