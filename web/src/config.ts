/** The addresses of a deployment, from `config.json` beside the page. */
export interface Config {
  /** The address of the HTTP API. */
  api: string;
  /** The address of the pages for sign-in: those of the user pool, or of the local stack. */
  signIn: string;
  /** The client of the user pool. */
  clientId: string;
}

/** Reads the configuration. Each address may be relative to the page. */
export async function readConfig(): Promise<Config> {
  const response = await fetch("config.json", { cache: "no-store" });
  if (!response.ok) throw new Error(`config.json: the answer is ${response.status}`);
  const fields = (await response.json()) as Record<string, unknown>;
  const text = (name: string) => {
    const value = fields[name];
    if (typeof value !== "string") throw new Error(`config.json: \`${name}\` is missing`);
    return value;
  };
  const address = (name: string) => new URL(text(name), location.href).href.replace(/\/$/, "");
  return { api: address("api"), signIn: address("signIn"), clientId: text("clientId") };
}

/**
 * Limits the page to the addresses of this deployment. The header of the deployment has to allow
 * every API of its region, because CloudFront's policy cannot name an API that itself names the
 * distribution. Browsers apply both policies.
 */
export function limitConnections({ api, signIn }: Config): void {
  const policy = document.createElement("meta");
  policy.httpEquiv = "Content-Security-Policy";
  const origins = new Set([api, signIn].map((address) => new URL(address).origin));
  policy.content = `connect-src 'self' ${[...origins].join(" ")}`;
  document.head.append(policy);
}
