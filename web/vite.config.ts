import { defineConfig } from "vite";

export default defineConfig({
  // Addresses relative to the page: the local stack serves the app at `/app/`, and CloudFront at `/`.
  base: "./",
  build: {
    target: "es2022",
    // Every browser with support for ES2022 modules preloads modules itself.
    modulePreload: { polyfill: false },
    // A file in the page as a `data:` address is forbidden by the Content-Security-Policy.
    assetsInlineLimit: 0,
    // The licences of the libraries in the app, which must be copied with them.
    license: { fileName: "licenses.md" },
  },
});
