/** The addresses of pages in the app. The browser extension opens them too, without the app's code. */

/** The address of the page of a link. The form of the page begins with the title. */
export function pageOf(url: string, title?: string): string {
  return `#/links/link?${new URLSearchParams(title === undefined ? { url } : { url, title })}`;
}
