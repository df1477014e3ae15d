import { render } from "preact";
import { App } from "./app";
import type { Application } from "./application";
import { limitConnections, readConfig, type Config } from "./config";
import { resume, signIn } from "./session";
import "./styles.css";

const root = document.getElementById("app");
if (root === null) throw new Error("index.html has no element `app`");

// One folder for each application. To delete an application is to delete its folder.
const folders = import.meta.glob<{ application: Application }>("./*/index.tsx", { eager: true });
const applications = Object.values(folders).map(({ application }) => application);

function Welcome({ config, problem }: { config: Config; problem?: string | undefined }) {
  return (
    <main class="welcome">
      <h1>Ledgerline</h1>
      {problem !== undefined && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      <p>{applications.map(({ title }) => title).join(", ")}: sign in to continue.</p>
      <p>
        <button type="button" onClick={() => void signIn(config)}>
          Sign in
        </button>
      </p>
    </main>
  );
}

// A page that the browser restores has the tokens and the outbox of an earlier time.
addEventListener("pageshow", ({ persisted }) => {
  if (persisted) location.reload();
});

try {
  const config = await readConfig();
  limitConnections(config);
  let problem: string | undefined;
  const session = await resume(config).catch((error: unknown) => {
    problem = error instanceof Error && error.message !== "" ? error.message : "The sign-in failed.";
    return undefined;
  });
  const page =
    session === undefined ? (
      <Welcome config={config} problem={problem} />
    ) : (
      <App config={config} session={session} applications={applications} />
    );
  render(page, root);
} catch (error) {
  const text = error instanceof Error ? error.message : String(error);
  render(
    <main class="welcome">
      <h1>Ledgerline</h1>
      <p class="problem" role="alert">
        The app cannot start: {text}
      </p>
    </main>,
    root,
  );
}
