/** Errors in words for the user. */
import { Problem } from "../client/index";
import { NotStored } from "./outbox";
import { SessionEnded, type Session } from "./session";

const OUTDATED = "This was changed in the meantime. Check the new state, and then send the change again.";
const BUSY = "The service is busy. Retry in a minute.";
const LOST = "The connection was lost. Check it, and retry.";
export const ENDED = "Your session has ended.";
const NOT_STORED = "The browser stores nothing, so the app sent nothing. Free space, and retry.";
const FAILED = "The app failed. Reload the page.";

/** Explains an error, and finds out whether the session has ended. */
export async function explain(session: Session, error: unknown): Promise<string> {
  if (error instanceof SessionEnded) return ENDED;
  if (error instanceof NotStored) return NOT_STORED;
  if (isUnclear(error)) {
    const ended = await session.check(error instanceof Problem).catch((failed: unknown) => failed);
    return ended instanceof SessionEnded ? ENDED : LOST;
  }
  if (!(error instanceof Problem)) {
    console.error(error);
    return FAILED;
  }
  if (error.isOutdated) return OUTDATED;
  return error.status === 429 || error.status >= 500 ? BUSY : sentence(error.detail);
}

/**
 * Whether an error may be that of a session that has ended. A page of another origin cannot read a
 * 401 of API Gateway, and sees a failed request.
 */
function isUnclear(error: unknown): boolean {
  const isTooLate = error instanceof DOMException && error.name === "TimeoutError";
  return error instanceof TypeError || isTooLate || (error instanceof Problem && error.status === 401);
}

function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}
