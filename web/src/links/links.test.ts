import { expect, test } from "vitest";
import { userIdOf } from "./commands";

test("the id of a user is that which the API derives from the subject", () => {
  for (const [subject, id] of [
    ["2b6f0cc9-4e1f-4b0f", "2b6f0cc9-4e1f-4b0f"],
    ["auth0|5f7c", "auth0:7C5f7c"],
    ["ö x", ":C3:B6:20x"],
  ] as const) {
    expect(userIdOf(subject)).toBe(id);
  }
});
