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
/** Items of the session storage: the request under way, and whether the user had signed in. */
const REQUEST = "ledgerline-sign-in";
const SIGNED_IN = "ledgerline-signed-in";

/** The session of the user has ended. The user must sign in again. */
export class SessionEnded extends Error {
  override name = "SessionEnded";
}

export interface User {
  /** The subject of the token. */
  subject: string;
  /** The name to show. */
  name: string;
}

export interface Session {
  user: User;
  /** Returns a token that is valid for a while, or throws {@link SessionEnded}. */
  token(): Promise<string>;
  /** Checks after a failed request whether the session has ended, and throws {@link SessionEnded}. */
  check(): Promise<void>;
  signOut(): void;
}

/** What the app has to know of a request to sign in after the browser returns. */
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
const home = () => location.origin + location.pathname;

/** Leaves the app for the sign-in page. */
export async function signIn({ signIn, clientId }: Config): Promise<void> {
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
  location.assign(`${signIn}/oauth2/authorize?${query}`);
}

/**
 * Returns the session if the browser comes back from the sign-in page. Returns nothing if no user is
 * signed in. If the user had signed in before a reload, leaves for the sign-in page.
 */
export async function resume(config: Config): Promise<Session | undefined> {
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
      throw new Error(`The sign-in failed: ${answer.get("error")}.`);
    }
    const { verifier: code_verifier } = request;
    const grant = { grant_type: "authorization_code", code, code_verifier, redirect_uri: home() };
    const session = open(config, await requestTokens(config, grant));
    sessionStorage.setItem(SIGNED_IN, "true");
    return session;
  }
  if (sessionStorage.getItem(SIGNED_IN) !== null) {
    await signIn(config);
    // The browser leaves the page.
    await new Promise(() => {});
  }
  return undefined;
}

function open(config: Config, first: Tokens): Session {
  let tokens = first;
  let expires = expiry(tokens);
  let refreshing: Promise<void> | undefined;

  async function refresh(): Promise<void> {
    const { refresh_token } = tokens;
    if (refresh_token === undefined) throw new SessionEnded();
    const grant = { grant_type: "refresh_token", refresh_token };
    tokens = { ...tokens, ...(await requestTokens(config, grant)) };
    expires = expiry(tokens);
  }

  /** Requests that start together share one refresh. */
  function refreshOnce(): Promise<void> {
    refreshing ??= refresh().finally(() => (refreshing = undefined));
    return refreshing;
  }

  return {
    user: userOf(tokens.id_token),
    async token() {
      if (Date.now() > expires - MARGIN) await refreshOnce();
      return tokens.access_token;
    },
    check: refreshOnce,
    signOut() {
      sessionStorage.clear();
      const query = new URLSearchParams({ client_id: config.clientId, logout_uri: home() });
      location.assign(`${config.signIn}/logout?${query}`);
    },
  };
}

function expiry({ expires_in }: Tokens): number {
  return Date.now() + expires_in * 1_000;
}

async function requestTokens(config: Config, grant: Record<string, string>): Promise<Tokens> {
  const body = new URLSearchParams({ ...grant, client_id: config.clientId });
  const response = await fetch(`${config.signIn}/oauth2/token`, { method: "POST", body });
  // Anything else, such as a 503, says nothing about the session.
  if (response.status === 400 || response.status === 401) throw new SessionEnded();
  if (!response.ok) throw new TypeError(`the answer of the sign-in is ${response.status}`);
  return (await response.json()) as Tokens;
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
