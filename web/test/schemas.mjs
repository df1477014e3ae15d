// Compiles every schema of the contract with the default options of Ajv, which refuse keywords and
// formats that no standard has.
import { readdirSync, readFileSync } from "node:fs";
import Ajv from "ajv/dist/2020.js";
import addFormats from "ajv-formats";

const folder = new URL("../../docs/schemas/", import.meta.url);

/** Returns the schemas in a document of OpenAPI or AsyncAPI. */
function schemasIn(value, name = "") {
  if (typeof value !== "object" || value === null) return [];
  const named = name === "schemas" ? Object.values(value) : [];
  const own = name === "schema" || name === "payload" ? [value] : [];
  const inner = Object.entries(value).flatMap(([name, value]) => schemasIn(value, name));
  return own.length ? own : [...named, ...inner];
}

for (const file of readdirSync(folder, { recursive: true })) {
  if (!file.endsWith(".json")) continue;
  const text = readFileSync(new URL(file, folder), "utf8");
  const document = JSON.parse(text.replaceAll("#/components/schemas/", "contract#/$defs/"));
  const ajv = new Ajv({ logger: false });
  addFormats(ajv);
  const $defs = document.components?.schemas;
  if ($defs) ajv.addSchema({ $id: "contract", $defs });
  for (const schema of $defs ? schemasIn(document) : [document]) {
    try {
      ajv.compile(schema);
    } catch (error) {
      throw new Error(`docs/schemas/${file}: ${error.message}: ${JSON.stringify(schema)}`);
    }
  }
}
