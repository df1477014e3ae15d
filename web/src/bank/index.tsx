/** The bank: accounts, their bookings, and transfers. */
import type { components } from "../../client/schema";
import { link, type Api, type Application } from "../application";
import { AccountPage } from "./account";
import { AccountsPage } from "./accounts";
import { TransferPage } from "./transfer";

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

/** The headers of a change that is based on a version. */
function based(key: string, { version }: Change) {
  return { "Idempotency-Key": key, "If-Match": `"${version}"` };
}

function commands(api: Api) {
  return {
    open: (body: Open, key: string) =>
      api.POST("/accounts", { body, params: { header: { "Idempotency-Key": key } } }),
    credit: ({ id, version, ...body }: Booking, key: string) =>
      api.POST("/accounts/{id}/credits", { body, params: { path: { id }, header: based(key, { id, version }) } }),
    debit: ({ id, version, ...body }: Booking, key: string) =>
      api.POST("/accounts/{id}/debits", { body, params: { path: { id }, header: based(key, { id, version }) } }),
    close: (change: Close, key: string) =>
      api.POST("/accounts/{id}/close", { params: { path: { id: change.id }, header: based(key, change) } }),
    transfer: (body: Transfer, key: string) =>
      api.POST("/transfers", { body, params: { header: { "Idempotency-Key": key } } }),
  };
}

export const application: Application = {
  name: "bank",
  title: "Bank",
  commands,
  results: {
    open: ({ accountId }: Open) => link("bank", "accounts", accountId),
    transfer: ({ transferId }: Transfer) => link("bank", "transfers", transferId),
  },
  page({ segments: [kind, written] }) {
    // The API reads an id in capitals too, and answers with the id in small letters.
    const id = written?.toLowerCase();
    if (kind === undefined) return <AccountsPage />;
    if (kind === "accounts" && id !== undefined) return <AccountPage id={id} />;
    if (kind === "transfers" && id !== undefined) return <TransferPage id={id} />;
    return undefined;
  },
};
