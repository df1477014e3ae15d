/** Amounts in minor units, as the API has them, and as people write them. */

/** Returns the number of digits after the decimal point, such as 2 for EUR and 0 for JPY. */
function digits(currency: string): number {
  return new Intl.NumberFormat("en", { style: "currency", currency }).resolvedOptions().maximumFractionDigits ?? 2;
}

/** Shows an amount: `5000` minor units of EUR as `€50.00`. */
export function shown(minor: number, currency: string): string {
  const places = digits(currency);
  // As a text, so that no amount loses a digit.
  const text = Math.abs(minor).toString().padStart(places + 1, "0");
  const whole = text.slice(0, text.length - places);
  const decimal = `${minor < 0 ? "-" : ""}${whole}.${text.slice(text.length - places) || "0"}`;
  return new Intl.NumberFormat(undefined, { style: "currency", currency }).format(decimal as `${number}`);
}

/** Reads an amount: `50`, `50.5` or `50,50`. Returns nothing if the text is no amount above 0. */
export function read(text: string, currency: string): number | undefined {
  const places = digits(currency);
  const [, whole, fraction = ""] = /^(\d{1,15})(?:[.,](\d+))?$/.exec(text.trim()) ?? [];
  if (whole === undefined || fraction.length > places) return undefined;
  const minor = Number(whole + fraction.padEnd(places, "0"));
  return minor >= 1 && Number.isSafeInteger(minor) ? minor : undefined;
}
