/**
 * The sign-in of a user: authorization code with PKCE (RFC 7636).
 *
 * Tokens are in memory only, so no other page and no later user of the browser can read them.
 * After a reload, the app asks the pages for sign-in again. They know the browser by their own
 * cookie, and answer without a form.
 */
import type { Config } from "./config";

const SCOPE = "openid email ledgerline/read ledgerline/write";
/** A token is refreshed if it expires within this time, in milliseconds. */
const MARGIN = 60_000;
/** The longest requests for tokens and for a revocation, in milliseconds. */
const LONGEST_REQUEST = 10_000;
const LONGEST_REVOCATION = 3_000;
/** Items of the session storage: the request under way, and whether the user had signed in. */
const REQUEST = "ledgerline-sign-in";
const SIGNED_IN = "ledgerline-signed-in";

/** The session of the user has ended. The user must sign in again. */
export class SessionEnded extends Error {
  override name = "SessionEnded";
  override message = "the session has ended";
}

export interface User {
  /** The subject of the token. */
  subject: string;
  /** The name to show. */
  name: string;
}

export interface Session {
  user: User;
  /** Returns a valid token, and not the refused one, or throws {@link SessionEnded}. */
  token(refused?: string): Promise<string>;
  /**
   * Checks after a failed request whether the session has ended, and throws {@link SessionEnded}.
   * The session ends if the API refused a new token, too.
   */
  check(isRefused: boolean): Promise<void>;
  /** Calls the listener when the session ends, until the returned function is called. */
  onEnd(listener: () => void): () => void;
  /** Ends the session in all tabs, and leaves for the page that ends it at the user pool. */
  signOut(): Promise<void>;
}

/** A request to sign in. The app needs it when the browser returns from the sign-in page. */
interface Request {
  state: string;
  verifier: string;
  /** The page of the app to return to. */
  hash: string;
}

interface Tokens {
  access_token: string;
  id_token: string;
  refresh_token?: string;
  expires_in: number;
}

/** The address of the app, which is a callback of the client. */
const home = () => new URL(".", location.origin + location.pathname).href;

/** Leaves the app for the sign-in page. */
export async function signIn(config: Config): Promise<void> {
  location.assign(await addressOf(config));
}

/** Begins a request to sign in, and returns the address of the sign-in page. */
async function addressOf({ signIn, clientId }: Config): Promise<string> {
  const request: Request = { state: secret(), verifier: secret(), hash: location.hash };
  sessionStorage.setItem(REQUEST, JSON.stringify(request));
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(request.verifier));
  const query = new URLSearchParams({
    response_type: "code",
    client_id: clientId,
    redirect_uri: home(),
    scope: SCOPE,
    state: request.state,
    code_challenge_method: "S256",
    code_challenge: base64url(new Uint8Array(digest)),
  });
  return `${signIn}/oauth2/authorize?${query}`;
}

/**
 * Returns the session if the browser returns from the sign-in page. Returns `undefined` if no user
 * is signed in. Leaves for the sign-in page if the user signed in earlier in this tab.
 */
export async function resume(config: Config): Promise<Session | undefined> {
  // Tabs of the app share the session at the user pool, so they end together. The tab listens before
  // it gets its tokens.
  const tabs = new BroadcastChannel("ledgerline-sign-out");
  tabs.onmessage = () => {
    sessionStorage.removeItem(SIGNED_IN);
    location.replace(home());
  };
  const answer = new URLSearchParams(location.search);
  const kept = sessionStorage.getItem(REQUEST);
  sessionStorage.removeItem(REQUEST);
  const request = kept === null ? undefined : (JSON.parse(kept) as Request);
  if (answer.has("code") || answer.has("error")) {
    // The code leaves the address: it must not stay in the history of the browser.
    history.replaceState(null, "", home() + (request?.hash ?? location.hash));
    // An answer that belongs to no request of this page is not for this user (CSRF).
    if (request === undefined || answer.get("state") !== request.state) return undefined;
    const code = answer.get("code");
    if (code === null) {
      sessionStorage.removeItem(SIGNED_IN);
      throw new Error(answer.get("error") ?? "");
    }
    const { verifier: code_verifier } = request;
    const grant = { grant_type: "authorization_code", code, code_verifier, redirect_uri: home() };
    const session = open(config, await requestTokens(config, grant), tabs);
    sessionStorage.setItem(SIGNED_IN, "true");
    return session;
  }
  if (sessionStorage.getItem(SIGNED_IN) !== null) {
    // The page is replaced: the button "Back" must not lead to a page that leaves at once.
    location.replace(await addressOf(config));
    await new Promise(() => {});
  }
  return undefined;
}

function open(config: Config, first: Tokens, tabs: BroadcastChannel): Session {
  let tokens: Tokens | undefined = first;
  let expires = expiry(first);
  let refreshing: Promise<void> | undefined;
  const listeners = new Set<() => void>();
  // The user may decide to stay on a page with commands without an answer.
  tabs.addEventListener("message", end);

  function end() {
    tokens = undefined;
    for (const listener of listeners) listener();
  }

  async function refresh(): Promise<void> {
    try {
      if (tokens?.refresh_token === undefined) throw new SessionEnded();
      const grant = { grant_type: "refresh_token", refresh_token: tokens.refresh_token };
      const next = await requestTokens(config, grant);
      // The user may have signed out in the meantime.
      if (tokens === undefined) throw new SessionEnded();
      tokens = { ...tokens, ...next };
      expires = expiry(next);
    } catch (error) {
      if (error instanceof SessionEnded) end();
      throw error;
    }
  }

  /** Requests that start together share one refresh. */
  function refreshOnce(): Promise<void> {
    refreshing ??= refresh().finally(() => (refreshing = undefined));
    return refreshing;
  }

  return {
    user: userOf(first.id_token),
    async token(refused) {
      if (refused !== undefined && refused === tokens?.access_token) {
        await refreshOnce();
      } else if (Date.now() > expires - MARGIN) {
        await refreshOnce().catch((error: unknown) => {
          // While the token is valid, the app works without the sign-in pages.
          if (error instanceof SessionEnded || Date.now() > expires) throw error;
        });
      }
      if (tokens === undefined) throw new SessionEnded();
      return tokens.access_token;
    },
    async check(isRefused) {
      await refreshOnce();
      if (!isRefused) return;
      end();
      throw new SessionEnded();
    },
    onEnd(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    async signOut() {
      const token = tokens?.refresh_token;
      tabs.postMessage("");
      end();
      sessionStorage.clear();
      const { signIn, clientId } = config;
      if (token !== undefined) {
        const body = new URLSearchParams({ token, client_id: clientId });
        // Without an answer, the refresh token remains valid, but no page has it.
        const signal = AbortSignal.timeout(LONGEST_REVOCATION);
        await fetch(`${signIn}/oauth2/revoke`, { method: "POST", body, mode: "no-cors", signal }).catch(() => {});
      }
      location.assign(`${signIn}/logout?${new URLSearchParams({ client_id: clientId, logout_uri: home() })}`);
    },
  };
}

function expiry({ expires_in }: Tokens): number {
  return Date.now() + expires_in * 1_000;
}

async function requestTokens(config: Config, grant: Record<string, string>): Promise<Tokens> {
  const body = new URLSearchParams({ ...grant, client_id: config.clientId });
  const signal = AbortSignal.timeout(LONGEST_REQUEST);
  const response = await fetch(`${config.signIn}/oauth2/token`, { method: "POST", body, signal });
  const answer = (await response.json().catch(() => ({}))) as Tokens & { error?: string };
  if (answer.error === "invalid_grant") throw new SessionEnded();
  // Any other error, such as a 503, says nothing about the session.
  if (!response.ok) throw new TypeError(`the answer of the sign-in is ${response.status}`);
  return answer;
}

/** Reads the user of an identity token. The token is from the token endpoint itself, over TLS. */
function userOf(token: string): User {
  const [, payload = ""] = token.split(".");
  const bytes = Uint8Array.from(atob(payload.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
  const claims = JSON.parse(new TextDecoder().decode(bytes)) as Record<string, unknown>;
  const text = (name: string) => (typeof claims[name] === "string" ? claims[name] : undefined);
  const subject = text("sub");
  if (subject === undefined) throw new Error("The identity token has no subject.");
  return { subject, name: text("email") ?? text("cognito:username") ?? subject };
}

function secret(): string {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
}
