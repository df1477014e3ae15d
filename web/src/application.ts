/** The parts that an application adds to the app: one folder each, found by `main.tsx`. */
import { createContext, type VNode } from "preact";
import { useContext } from "preact/hooks";
import type { Client } from "../client/index";
import type { paths } from "../client/schema";
import type { Outbox, Send } from "./outbox";
import type { Session } from "./session";

export type Api = Client<paths>;

/** The route in the app: `#/bank/accounts/163…?x=y` has the segments `accounts` and `163…`. */
export interface Route {
  segments: string[];
  query: URLSearchParams;
}

export interface Application {
  /** The first part of its places, and of the kinds of its commands. */
  name: string;
  title: string;
  /** The commands, by name. */
  commands: (api: Api) => Record<string, Send<never>>;
  /** The places where the results of commands are, by the names of the commands. */
  results?: Record<string, (input: never) => string>;
  /** Returns the page of a route, or `undefined` if there is none. */
  page: (route: Route) => VNode | undefined;
}

/** The parts that all pages share. */
export interface Shared {
  api: Api;
  session: Session;
  outbox: Outbox;
  /** The queries of the page. Each function reads the data of a query again. */
  queries: Set<() => Promise<unknown>>;
  /** Reads the data of the page again. */
  reload: () => Promise<void>;
  /** Shows the user a message, which a screen reader reads aloud. */
  notify: (text: string, isError?: boolean, href?: string) => void;
  /** Tells the user that the API has carried out a command, and reads the data of the page again. */
  carriedOut: (kind: string, input: unknown, label: string) => Promise<void>;
  /** Explains an error to the user, and finds out whether the session has ended. */
  explain: (error: unknown) => Promise<string>;
}

export const SharedContext = createContext<Shared | undefined>(undefined);

export function useShared(): Shared {
  const shared = useContext(SharedContext);
  if (shared === undefined) throw new Error("the page is outside of the app");
  return shared;
}

/** The address of a route in the app. */
export function link(...segments: string[]): string {
  return `#/${segments.map(encodeURIComponent).join("/")}`;
}
