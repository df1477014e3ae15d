/** The parts that all pages share, for a user who has signed in. */
import { ledgerline } from "../client/index";
import type { paths } from "../client/schema";
import type { Application, Shared } from "./application";
import type { Config } from "./config";
import { explain } from "./explain";
import { openOutbox, type Send } from "./outbox";
import type { Session } from "./session";

export function share(
  config: Config,
  session: Session,
  applications: Application[],
  notify: Shared["notify"],
): Shared {
  const api = ledgerline<paths>({ baseUrl: config.api, token: (refused) => session.token(refused) });
  const kinds = applications.flatMap(({ name, commands }) =>
    Object.entries(commands(api)).map(([kind, send]): [string, Send<never>] => [`${name}.${kind}`, send]),
  );
  const queries = new Set<() => Promise<unknown>>();

  async function reload() {
    await Promise.all([...queries].map((read) => read()));
  }

  return {
    api,
    session,
    outbox: openOutbox(session.user.subject, new Map(kinds)),
    queries,
    reload,
    notify,
    async carriedOut(kind, input, label) {
      const [name, command = ""] = kind.split(".");
      const { results } = applications.find((application) => application.name === name) ?? {};
      const address = results?.[command] as ((input: unknown) => string) | undefined;
      notify(`${label}: done.`, false, address?.(input));
      await reload();
    },
    explain: (error) => explain(session, error),
  };
}
