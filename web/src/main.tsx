import { render } from "preact";
import { useState } from "preact/hooks";
import { App } from "./app";
import type { Application } from "./application";
import { limitConnections, readConfig, type Config } from "./config";
import { resume, signIn } from "./session";
import "@picocss/pico/css/pico.classless.min.css";
import "./styles.css";

const root = document.getElementById("app");
if (root === null) throw new Error("index.html has no element `app`");

// One folder for each application. To delete an application is to delete its folder.
const folders = import.meta.glob<{ application: Application }>("./*/index.tsx", { eager: true });
const applications = Object.values(folders).map(({ application }) => application);

function Welcome({ config, failure }: { config: Config; failure?: string | undefined }) {
  const [problem, setProblem] = useState(failure);
  const failed = (error: unknown) => setProblem(`The sign-in failed: ${textOf(error)}`);
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
        <button type="button" onClick={() => void signIn(config).catch(failed)}>
          Sign in
        </button>
      </p>
    </main>
  );
}

function textOf(error: unknown): string {
  return error instanceof Error && error.message !== "" ? error.message : String(error);
}

// A page that the browser restores has the tokens and the outbox of an earlier time.
addEventListener("pageshow", ({ persisted }) => {
  if (persisted) location.reload();
});

try {
  const config = await readConfig();
  limitConnections(config);
  let failure: string | undefined;
  const session = await resume(config).catch((error: unknown) => {
    failure = `The sign-in failed: ${textOf(error)}`;
    return undefined;
  });
  const page =
    session === undefined ? (
      <Welcome config={config} failure={failure} />
    ) : (
      <App config={config} session={session} applications={applications} />
    );
  render(page, root);
} catch (error) {
  render(
    <main class="welcome">
      <h1>Ledgerline</h1>
      <p class="problem" role="alert">
        The app cannot start: {textOf(error)}
      </p>
    </main>,
    root,
  );
}
