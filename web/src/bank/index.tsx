/** The bank: accounts, their bookings, and transfers. */
import { link, type Application } from "../application";
import { AccountPage } from "./account";
import { AccountsPage } from "./accounts";
import { commands, type Open, type Transfer } from "./commands";
import { TransferPage } from "./transfer";

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
