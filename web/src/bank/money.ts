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

/** Shows an amount: `5000` minor units of EUR as `€50.00`. */
export function formatMoney(minor: number, currency: string): string {
  const places = digitsOf(currency);
  // As a text, so that no amount loses a digit.
  const text = Math.abs(minor).toString().padStart(places + 1, "0");
  const whole = text.slice(0, text.length - places);
  const decimal = `${minor < 0 ? "-" : ""}${whole}.${text.slice(text.length - places) || "0"}`;
  const form = { minimumFractionDigits: places, maximumFractionDigits: places };
  return new Intl.NumberFormat(undefined, { style: "currency", currency, ...form }).format(decimal as `${number}`);
}

/** Reads an amount: `50`, `50.5` or `50,50`. Returns `undefined` if the text is no amount above 0. */
export function parseMoney(text: string, currency: string): number | undefined {
  const places = digitsOf(currency);
  const [, whole, fraction = ""] = /^(\d{1,15})(?:[.,](\d+))?$/.exec(text.trim()) ?? [];
  if (whole === undefined || fraction.length > places) return undefined;
  const minor = Number(whole + fraction.padEnd(places, "0"));
  return minor >= 1 && Number.isSafeInteger(minor) ? minor : undefined;
}
