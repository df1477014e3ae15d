/** Rated links: rate a link, see its ratings, follow users, read the feed. */
import type { Application } from "../application";
import { commands } from "./commands";
import { FeedPage } from "./feed";
import { LinkPage } from "./link";
import { UserPage } from "./user";
import { PeoplePage } from "./people";

export const application: Application = {
  name: "links",
  title: "Links",
  commands,
  page({ segments: [kind, id], query }) {
    const url = query.get("url");
    if (kind === undefined) return <FeedPage />;
    if (kind === "link" && url !== null) return <LinkPage url={url} title={query.get("title") ?? undefined} />;
    if (kind === "users" && id !== undefined) return <UserPage id={id} />;
    if (kind === "people") return <PeoplePage />;
    return undefined;
  },
};
