/** The commands of links, and their inputs. */
import type { components } from "../../client/schema";
import type { Api } from "../application";

type Schemas = components["schemas"];

export type Rate = Schemas["RateLink"] & { userId: string };
export type Register = Schemas["RegisterUser"];
/** One user follows another. */
export interface Following {
  userId: string;
  otherId: string;
}

/**
 * Returns the id of the user with a subject. Each byte other than a letter, digit, dot, dash or
 * underscore becomes a colon and two hexadecimal digits.
 */
export function userIdOf(subject: string): string {
  const isPlain = (byte: number) => /[A-Za-z0-9._-]/.test(String.fromCharCode(byte));
  return [...new TextEncoder().encode(subject)]
    .map((byte) => (isPlain(byte) ? String.fromCharCode(byte) : `:${byte.toString(16).toUpperCase().padStart(2, "0")}`))
    .join("");
}

export function commands(api: Api) {
  const header = (key: string) => ({ "Idempotency-Key": key });
  const path = ({ userId, otherId }: Following) => ({ id: userId, otherId });
  return {
    rate: ({ userId, ...body }: Rate, key: string) =>
      api.POST("/users/{id}/ratings", { body, params: { path: { id: userId }, header: header(key) } }),
    register: (body: Register, key: string) => api.POST("/users", { body, params: { header: header(key) } }),
    follow: (input: Following, key: string) =>
      api.PUT("/users/{id}/follows/{otherId}", { params: { path: path(input), header: header(key) } }),
    unfollow: (input: Following, key: string) =>
      api.DELETE("/users/{id}/follows/{otherId}", { params: { path: path(input), header: header(key) } }),
  };
}
