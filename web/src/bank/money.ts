/** Amounts in minor units, as the API has them, and as people write them. */

/**
 * The currencies whose minor unit is not a hundredth, by the number of digits (ISO 4217). The tables
 * of browsers differ: some show no fillér of a forint, which the API counts.
 */
const DIGITS: Record<string, number> = Object.fromEntries([
  ...list("BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF", 0),
  ...list("BHD IQD JOD KWD LYD OMR TND", 3),
  ...list("CLF UYW", 4),
]);

function list(currencies: string, digits: number): [string, number][] {
  return currencies.split(" ").map((currency) => [currency, digits]);
}

function digitsOf(currency: string): number {
  return DIGITS[currency] ?? 2;
}

function formatterOf(currency: string, locale: string | undefined, places: number, useGrouping?: boolean) {
  const form = { minimumFractionDigits: places, maximumFractionDigits: places };
  const grouping = useGrouping === undefined ? {} : { useGrouping };
  return new Intl.NumberFormat(locale, { style: "currency", currency, ...form, ...grouping });
}

/** Shows an amount as the locale of the page writes it: `5000` minor units of EUR as `€50.00`. */
export function formatMoney(minor: number, currency: string, locale?: string): string {
  const places = digitsOf(currency);
  // As a text, so that no amount loses a digit.
  const text = Math.abs(minor).toString().padStart(places + 1, "0");
  const whole = text.slice(0, text.length - places);
  const decimal = `${minor < 0 ? "-" : ""}${whole}.${text.slice(text.length - places) || "0"}`;
  return formatterOf(currency, locale, places).format(decimal as `${number}`);
}

/** One form of each digit and mark, without the characters that only direct a text. */
function normalize(text: string): string {
  return text.normalize("NFKC").replace(/\p{Cf}/gu, "").replace(/\u2019/g, "'").replace(/\s+/g, " ");
}

/** The rules by which a locale shows the amounts of a currency. */
function rulesOf(currency: string, locale: string | undefined) {
  const formatter = formatterOf(currency, locale, 1, true);
  const textOf = (number: string, kinds: string[]) => {
    const parts = formatter.formatToParts(number as `${number}`).filter(({ type }) => kinds.includes(type));
    return normalize(parts.map(({ value }) => value).join(""));
  };
  const digits = [...textOf("9876543210", ["integer"])].reverse();
  const ascii = (text: string) => digits.reduce((before, digit, value) => before.replaceAll(digit, `${value}`), text);
  return {
    decimal: textOf("0", ["decimal"]),
    /** The digits of a whole number in groups. */
    group: (whole: string) => ascii(textOf(whole, ["integer", "group"])),
    /** The number of a text, in ASCII digits and with its marks, without the currency. */
    numberOf(text: string): string {
      let number = normalize(text).trim();
      for (const name of [textOf("0", ["currency"]).trim(), currency]) {
        if (name !== "" && number.startsWith(name)) number = number.slice(name.length);
        else if (name !== "" && number.endsWith(name)) number = number.slice(0, -name.length);
      }
      return ascii(number.trim());
    },
  };
}

/** A number whose marks may all be group marks: `1,000`, and `1,00,000` as in India. */
const GROUPED = /^[1-9]\d{0,2}([.,' ])(?:\d{2,3}\1)*\d{3}$/;

/** Returns minor units; `undefined` for no amount above 0, and for digits that no minor unit shows. */
function minorOf(whole: string, fraction: string, places: number): number | undefined {
  if (!/^\d+$/.test(whole) || !/^\d*$/.test(fraction) || fraction.length > places) return undefined;
  const minor = Number(whole + fraction.padEnd(places, "0"));
  return minor >= 1 && Number.isSafeInteger(minor) ? minor : undefined;
}

/**
 * Reads an amount by the rules by which the page shows amounts. Spaces separate groups in every
 * locale, and a mark that separates no group of three digits is a decimal mark: `50,5` is never
 * `505`. Returns `undefined` if the text is no amount above 0, or may be two: {@link askForMoney}.
 */
export function parseMoney(text: string, currency: string, locale?: string): number | undefined {
  const places = digitsOf(currency);
  const { decimal, group, numberOf } = rulesOf(currency, locale);
  const number = numberOf(text);
  const [whole = "", fraction, ...rest] = number.split(decimal);
  const digits = whole.replace(/\D/g, "");
  const grouped = group(digits);
  if ([digits, grouped, grouped.replace(/\D/g, " ")].includes(whole) && rest.length === 0 && fraction !== "") {
    return minorOf(digits, fraction ?? "", places);
  }
  const [, before = "", after = ""] = /^(\d+)[.,](\d+)$/.exec(number) ?? [];
  return GROUPED.test(number) ? undefined : minorOf(before, after, places);
}

/** Asks for an amount in place of a text that is none, or that may be two. */
export function askForMoney(text: string, currency: string, locale?: string): string {
  const places = digitsOf(currency);
  const number = rulesOf(currency, locale).numberOf(text);
  const [, whole = "", mark = "", fraction = ""] = /^(.*)([.,])(\d+)$/.exec(number) ?? [];
  const digits = (part: string) => (GROUPED.test(part) ? part.replace(/\D/g, "") : part);
  const written = /^0+$/.test(fraction.slice(places)) ? fraction.slice(0, places) : fraction;
  const readings = [
    whole.includes(mark) ? undefined : minorOf(digits(whole), written, places),
    minorOf(digits(number), "", places),
  ].filter((minor) => minor !== undefined);
  const show = (minor: number) => formatMoney(minor, currency, locale);
  if (readings.length === 0) return `Write an amount above 0 in ${currency}, such as ${show(12 * 10 ** places)}.`;
  return `Does “${text}” mean ${readings.map(show).join(" or ")}? Write it like that.`;
}
