/** The commands of the bank, and their inputs. */
import type { components } from "../../client/schema";
import type { Api } from "../application";

type Schemas = components["schemas"];

export type Open = Schemas["OpenAccount"] & { accountId: string };
export type Transfer = Schemas["RequestTransfer"] & { transferId: string };
/** A change of an account that the user saw at this version. */
interface Change {
  id: string;
  version: number;
}
export type Booking = Schemas["Booking"] & Change;
export type Close = Change;

/** The headers of a change to this version of an account. */
function changeHeaders(key: string, { version }: Change) {
  return { "Idempotency-Key": key, "If-Match": `"${version}"` };
}

export function commands(api: Api) {
  return {
    open: (body: Open, key: string) =>
      api.POST("/accounts", { body, params: { header: { "Idempotency-Key": key } } }),
    credit: ({ id, version, ...body }: Booking, key: string) =>
      api.POST("/accounts/{id}/credits", { body, params: { path: { id }, header: changeHeaders(key, { id, version }) } }),
    debit: ({ id, version, ...body }: Booking, key: string) =>
      api.POST("/accounts/{id}/debits", { body, params: { path: { id }, header: changeHeaders(key, { id, version }) } }),
    close: (change: Close, key: string) =>
      api.POST("/accounts/{id}/close", { params: { path: { id: change.id }, header: changeHeaders(key, change) } }),
    transfer: (body: Transfer, key: string) =>
      api.POST("/transfers", { body, params: { header: { "Idempotency-Key": key } } }),
  };
}
